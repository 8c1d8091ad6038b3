"""Planning domains: divide the servers into domains that suit the recorded traffic, and compute the cost.

* :mod:`~antecede.pipeline.planning.traffic`: the messages between servers, from a trace or a table.
* :mod:`~antecede.pipeline.planning.problem`: the cost of a message in a domain of s servers, the input of the search
  as arrays, and the lower bound of the cost.
* :mod:`~antecede.pipeline.planning.kernel`: compiled code that evaluates, changes and searches plans.
* :mod:`~antecede.pipeline.planning.search`: the start plans, many runs of the search, and the plans that no other plan
  beats in cost, hops and load together (the Pareto front).
* :mod:`~antecede.pipeline.planning.report`: the report of ``antecede plan``, and a check of a plan with the same
  traffic in the simulator.

Laumay et al. (§7) leave the division into domains as future work. The closest published works are Saturn (EuroSys 2017,
a tree of serializers) and papers on hub location with congestion. The code of this package may import topologies
and orders. Only ``report`` imports the simulator. The package must not import servers or sockets.
"""

"""Sweeps: grids of simulated runs as Spark tasks, and one table of what they measured.

* :mod:`~antecede.pipeline.sweep.arrays`: one run in the array kernel, where it knows the order.
* :mod:`~antecede.pipeline.sweep.kernel`, ``pruned_log``, ``schedule``: the kernel, and the schedule that it walks.
"""

"""Walks: load with a known outcome on real servers. The demo runs this load, and the trials cause faults while it runs.

* :mod:`~antecede.walks.walkers`: agents that forward walks; the messages that each must have received can be computed.
* :mod:`~antecede.walks.processes`: the servers of one topology as processes that start and stop.
* :mod:`~antecede.walks.load`: clients that start walks and wait until all have returned, and the final checks.
"""

"""A load for real servers. It consists of *walks*: a client sends a message to an agent, agents forward it several
times, and the last agent sends it back to the client. All messages of a walk can be computed in advance. The demo runs
this load, and the trials cause faults while it runs.

* :mod:`~antecede.walks.walkers`: agents that forward walks, and functions that compute the messages that each agent
  must receive.
* :mod:`~antecede.walks.processes`: the servers of one topology as processes that start and stop.
* :mod:`~antecede.walks.load`: clients that start walks and wait until all walks have returned, and the final checks.
"""

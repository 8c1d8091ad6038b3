"""A load for real servers: walks, which go from agent to agent and return to the client that started them. The messages
that a walk causes are known in advance. The demo runs this load, and the trials cause faults while it runs.

* :mod:`~antecede.walks.walkers`: agents that forward walks, and functions that compute the messages that each agent
  must receive.
* :mod:`~antecede.walks.processes`: the servers of one topology as processes that start and stop.
* :mod:`~antecede.walks.load`: clients that start walks and wait until all walks have returned, and the final checks.
"""

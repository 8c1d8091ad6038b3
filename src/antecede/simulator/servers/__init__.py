"""Whole servers in a simulated world: the real machine and the real log, virtual time, and faults.

* :mod:`~antecede.simulator.servers.world`: the loop of events, the network, the clients, the faults.
* :mod:`~antecede.simulator.servers.server`: one server through its restarts; it may crash between any two effects.
* :mod:`~antecede.simulator.servers.client`: a client that repeats publishes that were not accepted.
* :mod:`~antecede.simulator.servers.judgement`: the final checks, from the logs on the disks.
* :mod:`~antecede.simulator.servers.schedules`: a random topology (a forest), orders, agents and faults from one seed.

``python -m antecede.simulator.servers SEED`` plays one seed again.
"""

from antecede.simulator.servers.faults import NONE, ROUGH, Faults
from antecede.simulator.servers.world import ServerWorld

__all__ = ["NONE", "ROUGH", "Faults", "ServerWorld"]

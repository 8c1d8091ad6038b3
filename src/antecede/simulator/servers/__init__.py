"""Whole servers in a simulated world: the real code of the machine and of the log runs in virtual time, with faults.

* :mod:`~antecede.simulator.servers.network`: virtual time, faults, connections and identities.
* :mod:`~antecede.simulator.servers.server`: one server with all its restarts; it may crash between any two effects.
* :mod:`~antecede.simulator.servers.client`: clients and operators. A client resends publishes that were not accepted.
* :mod:`~antecede.simulator.servers.world`: the loop of events, and the choice of faults.
* :mod:`~antecede.simulator.servers.judgement`: the checks at the end, which read the logs on the disks.

Random worlds, with changes, intruders and backups, are in ``tests/worlds``.
"""

from antecede.simulator.servers.network import NONE, ROUGH, Faults
from antecede.simulator.servers.world import ServerWorld

__all__ = ["NONE", "ROUGH", "Faults", "ServerWorld"]

"""Random worlds of whole servers, and changes of their topologies: what the simulated servers of the package
(:mod:`antecede.simulator.servers`) are tested with. Each seed gives one schedule.

* ``schedules``: a topology (a forest), orders, agents and faults, and the loss of a server's data.
* ``workload``: the agents, mailboxes with special settings, and letters that end processes.
* ``intruders``: worlds in which every end proves its identity.
* ``backups``: a backup that is made and restored in the middle of a schedule.
* ``changes``: changes of the topology under load.

``./run test tests/campaigns/test_servers.py --first SEED`` plays one seed again, ``test_changes_simulated.py`` one with
changes.
"""

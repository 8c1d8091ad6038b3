"""Topologies: the domains in which servers order messages, the servers of the agents, and routes between servers.

* :mod:`~antecede.topology.graph`: the graph of servers and domains, the test that it has no cycle, routes and hops.
* :mod:`~antecede.topology.file`: the topology file, its canonical form and its epoch.
* :mod:`~antecede.topology.change`: the difference between two topologies, and the parts that pause during the change.
* :mod:`~antecede.topology.guarantees`: the guarantees from sender to receiver, and the reasons to refuse a topology.
* :mod:`~antecede.topology.shapes`: the shapes of topologies in Laumay et al. (bus, daisy, tree), and the flat topology.
* :mod:`~antecede.topology.cost`: the cost of a message in a topology.
* :mod:`~antecede.topology.outline`, :mod:`~antecede.topology.svg`: drawings.

This package does no I/O and does not know the orders' code: an order is only a name here, and callers provide its
guarantees.
"""

from antecede.topology.change import Change, Difference, plan_change
from antecede.topology.cost import cost_max, cost_mean
from antecede.topology.file import Address, AgentHome, DomainEntry, TopologyFile, parse_topology
from antecede.topology.graph import Domain, Topology, shown
from antecede.topology.guarantees import Check, OrderFacts, Pair, check
from antecede.topology.mailboxes import Mailboxes, Quota
from antecede.topology.shapes import SHAPES, make

__all__ = [
    "SHAPES",
    "Address",
    "AgentHome",
    "Change",
    "Check",
    "Difference",
    "Domain",
    "DomainEntry",
    "Mailboxes",
    "OrderFacts",
    "Pair",
    "Quota",
    "Topology",
    "TopologyFile",
    "check",
    "cost_max",
    "cost_mean",
    "make",
    "parse_topology",
    "plan_change",
    "shown",
]

"""Topologies: the domains in which servers order messages, the servers of the agents, and routes between servers.

* ``graph``: the graph of servers and domains, the test that it has no cycle, routes, and the cost of a message.
* ``file``: the topology file, its canonical form and its epoch, with the settings of mailboxes and reactions.
* ``change``: the difference between two topologies, and the parts that pause during the change.
* ``guarantees``: the guarantees from sender to receiver, and the reasons to refuse a topology.
* ``shapes``: the shapes of topologies in Laumay et al. (bus, daisy, tree), and the flat topology.
* ``svg``: drawings, as SVG and as an outline for the terminal.

This package does no I/O and does not know the orders' code: an order is only a name here, and callers provide its
guarantees.
"""

from antecede.topology.change import Change, Difference, plan_change
from antecede.topology.file import (
    Address,
    AgentHome,
    DomainEntry,
    Mailboxes,
    ObjectHome,
    Quota,
    TopologyFile,
    brief,
    is_name,
    line_of,
    natural,
    parse_topology,
)
from antecede.topology.graph import Domain, Topology, cost_max, cost_mean, costs_from, hops_mean, shown
from antecede.topology.guarantees import Check, OrderFacts, Pair, check, strength
from antecede.topology.shapes import SHAPES, best_size, make
from antecede.topology.svg import draw, outline

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
    "ObjectHome",
    "OrderFacts",
    "Pair",
    "Quota",
    "Topology",
    "TopologyFile",
    "best_size",
    "brief",
    "check",
    "cost_max",
    "cost_mean",
    "costs_from",
    "draw",
    "hops_mean",
    "is_name",
    "line_of",
    "make",
    "natural",
    "outline",
    "parse_topology",
    "plan_change",
    "shown",
    "strength",
]

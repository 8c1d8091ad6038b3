"""Servers, domains, agents' homes: who keeps order with whom, and the way from one server to another.

* :mod:`~antecede.topology.graph`: the servers–domains graph, the forest test, routes and hops.
* :mod:`~antecede.topology.file`: the topology file, its canonical form and its epoch.
* :mod:`~antecede.topology.guarantees`: what is kept end to end, and what must be refused.
* :mod:`~antecede.topology.shapes`: the organisations that Laumay et al. draw (bus, daisy, tree) and flat.
* :mod:`~antecede.topology.cost`: what a message costs in an organisation.
* :mod:`~antecede.topology.outline`, :mod:`~antecede.topology.svg`: how it is drawn.

This room does no I/O and knows no order's code: an order is its name here, and whoever knows orders says what that
name promises.
"""

from antecede.topology.cost import cost_max, cost_mean, cost_of_traffic
from antecede.topology.file import Address, AgentHome, DomainEntry, TopologyFile, parse_topology
from antecede.topology.graph import Domain, Topology, shown
from antecede.topology.guarantees import Check, OrderFacts, Pair, check
from antecede.topology.shapes import SHAPES, make

__all__ = [
    "SHAPES",
    "Address",
    "AgentHome",
    "Check",
    "Domain",
    "DomainEntry",
    "OrderFacts",
    "Pair",
    "Topology",
    "TopologyFile",
    "check",
    "cost_max",
    "cost_mean",
    "cost_of_traffic",
    "make",
    "parse_topology",
    "shown",
]

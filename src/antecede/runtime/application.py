"""From a topology file to what one server runs: its plan, its agents' classes."""

import sys
from importlib import import_module
from pathlib import Path

from antecede import limits
from antecede.engine.agents import Agent
from antecede.errors import AgentError, OrderError, TopologyError, UsageError
from antecede.orders import parse
from antecede.server import Plan
from antecede.topology import OrderFacts, TopologyFile, check


def plan_of(topology: TopologyFile) -> Plan:
    """What every server of this topology knows; an organisation that must not run is refused."""
    orders = {}
    for domain in topology.domains:
        try:
            orders[domain.name] = parse(domain.order)
            orders[domain.name].create(0, len(domain.servers))
        except OrderError as error:
            raise TopologyError(f"{topology.name}: domain {domain.name}: {error}") from None
    refusals = check(topology, lambda text: OrderFacts(parse(text).guarantees(), parse(text).kind.needs)).refusals
    if refusals:
        raise TopologyError(f"{topology.name}: {refusals[0]}")
    homes = {agent.name: agent.server for agent in topology.agents}
    return Plan(topology.organisation, orders, homes, limits.peer_resend_seconds)


def agents_of(topology: TopologyFile, server: str) -> dict[str, type[Agent]]:
    """The classes of the agents that the file puts on a server, after importing the application."""
    if server not in topology.servers:
        raise UsageError(f"{topology.name} has no server {server}: expected one of {', '.join(topology.servers)}")
    if topology.module is not None:
        _import(topology.module, topology.name)
    return {agent.name: load_class(agent.kind) for agent in topology.agents if agent.server == server}


def load_class(kind: str) -> type[Agent]:
    """The agent class that ``module:Class`` names."""
    module, _, path = kind.partition(":")
    found = _import(module, f"agent class {kind}")
    for name in path.split("."):
        found = getattr(found, name, None)
        if found is None:
            raise AgentError(f"agent class {kind}: module {module} has no {path}")
    if not (isinstance(found, type) and issubclass(found, Agent)):
        raise AgentError(f"agent class {kind}: {path} is no subclass of antecede.Agent")
    return found


def find_beside(topology_path: str) -> None:
    """Let modules be imported from the topology file's own folder and from the current one."""
    for folder in (str(Path.cwd()), str(Path(topology_path).resolve().parent)):
        if folder not in sys.path:
            sys.path.insert(0, folder)


def _import(module: str, what: str) -> object:
    try:
        return import_module(module)
    except ImportError as error:
        raise AgentError(f"{what}: cannot import {module}: {error}") from None

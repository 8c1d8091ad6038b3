"""Read a topology file and make its plan: the configuration that all servers share. Also import the classes of the
agents and objects that the file names."""

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import fields

from antecede import limits
from antecede.engine import Belongings
from antecede.engine.agents import Agent, handlers_of
from antecede.errors import AgentError, ObjectError, OrderError, TopologyError, UsageError, similar
from antecede.failures import described, is_ctrl_c, place_of
from antecede.objects import Object, ReplicatedObject
from antecede.objects.replicas import Placed, replicas
from antecede.orders import OrderSpec, parse
from antecede.server import Plan
from antecede.topology import OrderFacts, TopologyFile, check

Kind = TypeVar("Kind")
Classes = Mapping[str, type[Agent] | type[Object]]
"""The classes of agents and of replicated objects. The key is the name of the agent or object in the topology."""


def plan_of(topology: TopologyFile, objects: Mapping[str, type[Object]] | None = None) -> Plan:
    """Return the plan of this topology: the configuration that all its servers share. Raise TopologyError if the
    topology breaks a rule. ``objects``: the classes of replicated objects, by the object's name; classes that are
    missing here are imported."""
    orders: dict[str, OrderSpec] = {}
    for domain in topology.domains:
        try:
            orders[domain.name] = parse(domain.order)
            orders[domain.name].create(0, len(domain.servers))
        except OrderError as error:
            raise TopologyError(f"{topology.name}: domain {domain.name}: {error}") from None
    refusals = check(topology, lambda text: OrderFacts(parse(text).guarantees(), parse(text).kind.needs)).refusals
    if refusals:
        raise TopologyError(f"{topology.name}: {refusals[0]}")
    if topology.objects:
        _host(topology, orders, objects)
    homes = {agent.name: agent.server for agent in topology.agents}
    return Plan(topology.organisation, orders, homes, limits.peer_resend_seconds, topology.mailboxes, topology)


def run_by(topology: TopologyFile, server: str, given: Classes | None = None) -> tuple[Plan, dict[str, type[Agent]]]:
    """Return the plan for this topology, and the classes of the server's agents by agent name. ``given``: the classes
    to use. If it is None, import the classes."""
    if given is None:
        plan, agents = plan_of(topology), agents_of(topology, server)
    else:
        plan = plan_of(topology, {name: kind for name, kind in given.items() if issubclass(kind, Object)})
        agents = {name: kind for name, kind in given.items() if issubclass(kind, Agent)}
    check_beginnings(agents)
    return plan, agents


def readable(topology: TopologyFile, server: str, came: list[Belongings], given: Classes | None = None) -> None:
    """Check that a server can run its agents under a topology: import their classes, and try to read the states of the
    agents that move to this server (``came``). Raise an error if this fails. ``given``: classes to use instead of
    importing them."""
    if server not in topology.servers:
        return
    kinds = agents_of(topology, server, given)
    check_beginnings(kinds)
    for one in came:
        kind = kinds.get(one.address) or (load_class(one.born) if one.born else None)
        if kind is not None and one.state is not None:
            try:
                msgspec.msgpack.decode(one.state, type=kind)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise AgentError(
                    f"agent {one.address}: its state cannot be read as {kind.__qualname__}: {error}"
                ) from None


def check_beginnings(agents: Mapping[str, type[Agent]]) -> None:
    """Raise AgentError if an agent of the topology has no handlers, or has a field without a default value. A
    topology cannot set fields, so each of these agents starts with the default values."""
    for name, kind in agents.items():
        if not handlers_of(kind):
            raise AgentError(f"agent {name}: {kind.__qualname__} has no handlers, expected methods on_…")
        wanting = [field.name for field in fields(kind) if field.required]
        if wanting:
            which = f"{kind.__qualname__}.{wanting[0]}"
            raise AgentError(
                f"agent {name}: field {which} has no default value: add one, because a topology cannot set fields"
            )


def agents_of(topology: TopologyFile, server: str, given: Classes | None = None) -> dict[str, type[Agent]]:
    """Import the application. Return the classes of the agents that run on this server according to the topology file,
    by agent name. ``given``: classes to use instead of importing them."""
    if server not in topology.servers:
        raise UsageError(f"{topology.name} has no server {server}: expected one of {', '.join(topology.servers)}")
    if topology.module is not None:
        _import(topology.module, topology.name)
    known = {name: kind for name, kind in (given or {}).items() if issubclass(kind, Agent)}
    return {
        agent.name: known.get(agent.name) or load_class(agent.kind)
        for agent in topology.agents
        if agent.server == server
    }


def _host(topology: TopologyFile, orders: dict[str, OrderSpec], given: Mapping[str, type[Object]] | None) -> None:
    """Change ``orders`` for the replicated objects of the topology. All servers that hold the objects are in one
    domain. The order of this domain is replaced by an order that also knows the objects and their conflicting
    operations. All servers of the domain need the classes of the objects: even a server that only calls an object must
    know which operations of the object conflict."""
    domain = next(one for one in topology.domains if set(topology.objects[0].servers) <= set(one.servers))
    kinds = dict(given or {})
    if topology.module is not None and not all(one.name in kinds for one in topology.objects):
        _import(topology.module, topology.name)
    for one in topology.objects:
        kind = kinds.get(one.name)
        if kind is None:
            kind = kinds[one.name] = load_class(one.kind, ReplicatedObject)
        elif not issubclass(kind, Object):
            raise AgentError(f"object {one.name}: {kind.__qualname__} is not a subclass of antecede.ReplicatedObject")
    placed = tuple(Placed(one.name, one.servers, kinds[one.name]) for one in topology.objects)
    try:
        orders[domain.name] = replicas(orders[domain.name], domain.servers, placed)
        for me in range(len(domain.servers)):
            orders[domain.name].create(me, len(domain.servers))
    except (OrderError, ObjectError) as error:
        raise TopologyError(f"{topology.name}: domain {domain.name}: {error}") from None


def load_class(kind: str, base: type[Kind] = Agent) -> type[Kind]:  # type: ignore[assignment]
    """Import and return a class. ``kind`` is the name of the class, ``module:Class``. The class must be a subclass of
    ``base``."""
    module, _, path = kind.partition(":")
    found = _import(module, f"agent class {kind}")
    for name in path.split("."):
        outer, found = found, getattr(found, name, None)
        if found is None:
            classes = [key for key, value in vars(outer).items() if isinstance(value, type) and issubclass(value, base)]
            raise AgentError(f"agent class {kind}: module {module} has no {path}{similar(name, classes)}")
    if not (isinstance(found, type) and issubclass(found, base)):
        raise AgentError(f"agent class {kind}: {path} is not a subclass of antecede.{base.__name__}")
    return found


def find_beside(topology_path: str) -> None:
    """Let Python also import modules from the folder of the topology file and from the current folder."""
    # Installed packages come first: a file of the application may have the name of a module that we need.
    for folder in (str(Path(topology_path).resolve().parent), str(Path.cwd())):
        if folder not in sys.path:
            sys.path.append(folder)


def _import(module: str, what: str) -> object:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        place = place_of(error)
        raise AgentError(f"{what}: cannot import {module}: {error}" + (f" ({place})" if place else "")) from None
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        # An error in the module concerns its author, who needs the place in the module, not our import.
        raise AgentError(f"{what}: cannot import {module}: {described(error)}") from None

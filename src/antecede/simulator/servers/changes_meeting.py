"""Connections in a world of machines whose topology changes: the rules that hellos apply between whole servers."""

from antecede.server import AgentServer
from antecede.server.learning import learns, teaches
from antecede.wire import VERSION, LinkHello, ServerHello


def pair_of(source: str, target: str) -> tuple[str, str]:
    """Return two servers in the sequence of their names."""
    return (source, target) if source < target else (target, source)


def shared(one: AgentServer, other: AgentServer) -> list[str]:
    """Return the domains that a server shares with another one."""
    return [name for name, consumer in one.channel.consumers.items() if other.name in consumer.links]


def agree(one: AgentServer, other: AgentServer) -> bool:
    """Return whether two servers may connect: neither is behind, and they agree on all domains that they share."""
    return one.organisation.change == other.organisation.change and continue_(one, other, connected=False)


def continue_(one: AgentServer, other: AgentServer, connected: bool = True) -> bool:
    """Return whether the connection of two servers continues after the first has applied an item about a change.
    ``connected``: whether both servers are connected already."""
    if one.organisation.removed or other.organisation.removed:
        return False
    if one.organisation.is_apart(other.name) or other.organisation.is_apart(one.name):
        return False
    if connected and one.organisation.learned == one.organisation.change != other.organisation.change:
        return False
    ours = {name: one.organisation.digest(name, one.plan) for name in shared(one, other)}
    theirs = {name: other.organisation.digest(name, other.plan) for name in shared(other, one)}
    return bool(ours) and ours == theirs


def is_behind(me: AgentServer, other: AgentServer) -> bool:
    """Return whether a server must learn from another one, which is ready to teach it."""
    return teaches(other, _hello(me, other)) and learns(me, _hello(other, me, teaches=True))


def _hello(machine: AgentServer, to: AgentServer, teaches: bool = False) -> ServerHello:
    organisation = machine.organisation
    links = [LinkHello(name, 0, 0, 0, 0, 0) for name in shared(machine, to)]
    head = (VERSION, VERSION, machine.epoch, machine.name, to.name, "", links)
    return ServerHello(*head, organisation.system, organisation.change, organisation.attempt, teaches=teaches)

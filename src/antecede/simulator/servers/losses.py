"""The check of a server that lost its data: its disk is empty, or has an older copy of the data.

The server's peers remember messages that the server has lost. So the server and its peers must not continue as if
nothing had happened. The links between them stop, and ``status`` shows the stopped links. An operator then resets each
domain in which the server has lost data. A reset of the server's other domains is refused. After the reset, every new
message is delivered exactly once. If the lost disk is found later and put back, its data is from before the reset. So
the peers in the reset domains do not accept a connection with the server.
"""

from collections.abc import Callable, Iterator

from antecede.server.peering.peer import Peer
from antecede.simulator.servers.world import ServerWorld

_patience_seconds = 25.0
"""A time that is long enough for a server to dial every peer again, even a peer that has refused it many times."""

_reset_texts = {True: "reset", False: "not reset"}

Probe = Callable[[], Callable[[], int]]
"""A function that sends a message to an agent, and returns another function, which counts the deliveries of this
message."""


def lost_data(world: ServerWorld, name: str, copy: dict[str, bytes], probe: Probe) -> list[str]:
    """Let a server lose its data in an idle world, and check what the servers and an operator do then. ``copy``: the
    content of the server's disk after the loss. Return the errors, one line each."""
    world.losing = True
    server = world.servers[name]
    earlier = server.disk.contents()
    wiped = not copy
    remembered = {peer: world.servers[peer].core.peering.hello(_of(world, peer, name)) for peer in _peers(world, name)}
    server.replace_disk(copy)
    forgot: list[tuple[str, str]] = []
    for peer, hello in remembered.items():
        mine = {link.domain: link for link in server.core.peering.hello(_of(world, name, peer)).links}
        for theirs in hello.links:
            now = mine[theirs.domain]
            known = theirs.target not in (0, now.source)
            if known or theirs.accepted > now.sent or theirs.sent > now.accepted:
                forgot.append((theirs.domain, peer))
    world.pass_time(_patience_seconds)
    found = list(_unnoticed(world, name, forgot))
    for domain in world.plan.topology.domains_of(name):
        members = [world.servers[member] for member in world.plan.topology.domains[domain].servers]
        # A copy from before an earlier reset need not have forgotten any frame.
        lost = domain in dict(forgot) or len({one.machine.channel.consumers[domain].generation for one in members}) > 1
        reset = world.operators.reset_lost(domain, members)
        if reset != lost:
            found.append(f"{name} lost {'' if lost else 'nothing of '}domain {domain}, which was {_reset_texts[reset]}")
    for client in world.clients.values():
        if client.home is server and not client.over:
            client.restart()
    world.pass_time(_patience_seconds)
    counts = [probe() for _ in range(4)]
    world.pass_time(_patience_seconds)
    delivered = [count() for count in counts]
    if delivered != [1] * len(counts):
        found.append(
            f"{name} lost its data and was reset: then letters were delivered {delivered} times, expected once each"
        )
    if wiped and forgot:
        server.replace_disk(earlier)
        world.pass_time(_patience_seconds)
        found += _connected(world, name, [peer for _, peer in forgot])
    return found + world.errors


def _unnoticed(world: ServerWorld, name: str, forgot: list[tuple[str, str]]) -> Iterator[str]:
    server = world.servers[name]
    yield from _connected(world, name, [peer for _, peer in forgot])
    for domain, peer in forgot:
        other = world.servers[peer]
        stopped = (domain, name) in other.machine.stopped or (domain, peer) in server.machine.stopped
        # A copy from before the domain was reset is refused at the hello.
        if not stopped and name not in other.core.peering.refusals and peer not in server.core.peering.refusals:
            yield f"{name} lost its data, but its link {domain} with {peer} did not stop"
        elif stopped and "link stopped" not in (server.core.operations.health(), other.core.operations.health()):
            yield f"{name} lost its data, and no status shows it"


def _connected(world: ServerWorld, name: str, peers: list[str]) -> Iterator[str]:
    for peer in peers:
        if _of(world, peer, name).ready or _of(world, name, peer).ready:
            yield f"{peer} is connected to {name}, although their data do not fit together"


def _peers(world: ServerWorld, name: str) -> list[str]:
    return list(world.servers[name].core.peering.peers)


def _of(world: ServerWorld, name: str, peer: str) -> Peer:
    """Return the data that the server ``name`` has about its peer ``peer``."""
    return world.servers[name].core.peering.peers[peer]

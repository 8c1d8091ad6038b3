"""The conditions for two servers to connect: the same system, and equal shared domains."""

from collections.abc import Sequence
from typing import Final

from antecede import limits, wire
from antecede.access import Refusal
from antecede.errors import UsageError
from antecede.server import AgentServer

CHANGING: Final = "changing"
"""The code for refusing a server that does not take part in the change in progress. The refused server may try again
soon."""
BEHIND: Final = ("other-topology", "unknown-server", "other-links")
"""Codes of refusals. If a server is refused with one of them, it perhaps has not made a change of the topology yet."""


def check_hello(epoch: str, server: str, peer: str, token: str, domains: Sequence[str]) -> None:
    """Raise UsageError if a hello with this token and these domains would be longer than a server accepts."""
    most = limits.counter_max
    links = [wire.LinkHello(domain, most, most, most, most, most, most, most, "0" * 16) for domain in domains]
    names = (epoch, server, peer, token)
    size = len(wire.frame([wire.ServerHello(*names, links, "0" * 16, most)]))
    if size > limits.hello_bytes_max:
        raise UsageError(
            f"the hello between {server} and {peer} has {size} bytes, but a server reads at most "
            f"{limits.hello_bytes_max}: expected a shorter token, or fewer than {len(links)} shared domains"
        )


def shared_domains(machine: AgentServer) -> dict[str, list[str]]:
    """Return, for each peer, the domains that this server shares with it."""
    shared: dict[str, list[str]] = {}
    for domain, peer, _ in machine.channel.links.ends:
        shared.setdefault(peer, []).append(domain)
    return shared


def link_hellos(machine: AgentServer, peer: str, domains: Sequence[str]) -> list[wire.LinkHello]:
    """Return the present state of the links to a peer in these domains, for a hello."""
    links, organisation = [], machine.organisation
    for domain in domains:
        consumer = machine.channel.consumers[domain]
        mine = consumer.links[peer].hello()
        links.append(
            wire.LinkHello(
                domain,
                mine.source,
                mine.target,
                mine.sent,
                mine.accepted,
                consumer.generation,
                mine.life,
                mine.base,
                organisation.digest(domain, machine.plan),
            )
        )
    return links


def refusal_of(
    machine: AgentServer, shared: Sequence[str] | None, hello: wire.ServerHello, epoch: str
) -> Refusal | None:
    """Return why the sender of a hello must not connect, or None if the sender may connect. ``shared``: the domains
    that the sender shares with this server, or None if the sender is not a peer. ``epoch``: the
    epoch of this server."""
    me, other = machine.name, hello.server[:64]
    if hello.to != me:
        return Refusal("wrong-server", f"this is server {me}, not {hello.to[:64]}")
    if shared is None:
        return Refusal("unknown-server", f"server {other} shares no domain with {me}")
    other_topology = _other_topology(machine, shared, hello, epoch)
    if other_topology is not None:
        return other_topology
    for link in hello.links:
        mine = machine.channel.consumers[link.domain].generation
        if link.generation != mine:
            return Refusal(
                "other-generation",
                f"domain {link.domain} was reset {link.generation} times at {other} and {mine} times at {me}: "
                "reset it at all its members (antecede topology forget)",
            )
    return None


def _other_topology(machine: AgentServer, shared: Sequence[str], hello: wire.ServerHello, epoch: str) -> Refusal | None:
    """Return why the sender of a hello must not connect, or None if the sender may connect. The sender must belong to
    the same system. It must take part in the change that is staged here (if there is one). Its last change of the
    topology must be the same as ours. The digests of the domains that both servers share must be equal."""
    me, other, organisation = machine.name, hello.server[:64], machine.organisation
    if hello.epoch.partition("~")[2] != epoch.partition("~")[2]:
        return Refusal(
            "other-system",
            f"server {other} belongs to another system ({hello.epoch[:64]}) than {me}: one was restored from a backup; "
            "to let a server without data join the restored system: antecede topology apply",
        )
    if hello.system and organisation.system and hello.system != organisation.system:
        return Refusal("other-system", f"server {other} belongs to another system ({hello.system[:64]}) than {me}")
    theirs = {link.domain: link.digest for link in hello.links}
    if len(theirs) < len(hello.links):
        return Refusal("bad-hello", f"server {other} names a link twice")
    ours = {one: organisation.digest(one, machine.plan) for one in shared}
    if organisation.is_apart(hello.server):
        return Refusal(CHANGING, f"the topology changes, and server {other} does not take part: try again")
    if theirs.keys() != ours.keys() and hello.epoch == epoch:
        return Refusal("other-links", f"server {other} names other links than the topology has")
    differ = sorted(one for one in {*theirs, *ours} if theirs.get(one) != ours.get(one))
    if hello.change == organisation.change and not differ:
        return None
    reason = (
        f"server {other} has change {hello.change} of the topology (epoch {hello.epoch[:64]}) and {me} has change "
        f"{organisation.change} ({epoch}), and "
    )
    if hello.change != organisation.change:
        # The server with the lower number would have learned from the other, unless they have different histories.
        return Refusal("other-topology", reason + "the server with the lower number cannot learn from the other")
    return Refusal(
        "other-topology",
        f"{reason}domain {differ[0][:64]} differs: finish the change (antecede topology apply); if both were "
        "first started with different files, start them with one file and empty data directories",
    )

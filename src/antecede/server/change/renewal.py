"""Check that the snapshots of all servers fit together, and make snapshots for a new system from them.

A **restored system** is a new system. Each of its servers has a new incarnation, and knows the new incarnations of its
peers. So a server of the old system and a server of the restored system refuse each other before one of them accepts
anything. New letters get ids that the old system never used. These parts are kept: agents, mailboxes, clients and their
numbers, timers, orders, and the frames in transit, which are still stored in the senders' links. No link of the new
system is stopped.

**The check.** The snapshots must not contradict each other. For each pair of servers in a domain, the following four
statements must be true. Every frame that one server has accepted was sent by the other server. Every frame that was
sent and not accepted is still stored at the sender, which can send it again. A server that has met the other server
remembers the present incarnation of the other server. Both servers have reset the domain the same number of times.
Copies of directories that were made at different moments fail this check.
"""

from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from antecede.errors import SnapshotError
from antecede.link import SavedLink
from antecede.server.snapshots import State, decode_state, encode_state


def faults_of(snapshots: Mapping[str, bytes]) -> Iterator[str]:
    """Yield the contradictions between the snapshots of all servers. Yield nothing if the snapshots fit together.
    ``snapshots``: server → snapshot."""
    states = {server: decode_state(snapshot) for server, snapshot in snapshots.items()}
    links = {server: dict(_links(state)) for server, state in states.items()}
    for server, own in links.items():
        for (domain, peer), link in own.items():
            other = links.get(peer, {}).get((domain, server))
            if other is None:
                yield f"{server} shares domain {domain} with {peer}, whose state is missing"
            else:
                yield from _misfits(f"{server} and {peer} in domain {domain}", peer, link, other)
            generations = [states[one].consumers[domain].generation for one in (server, peer) if one in states]
            if server < peer and len(set(generations)) > 1:
                yield f"domain {domain} was reset {generations[0]} times at {server} and {generations[1]} at {peer}"


def _misfits(where: str, peer: str, link: SavedLink, other: SavedLink) -> Iterator[str]:
    """Yield the contradictions between the two ends of a link. There are three kinds. (1) The accepting end remembers a
    wrong incarnation of the sending end. (2) The accepting end has accepted frames that were never sent. (3) Frames are
    lost: the accepting end has not accepted them, and the sending end has not kept them. ``link``: the sending end.
    ``other``: the accepting end, at server ``peer``."""
    if other.peer not in (0, link.incarnation):
        yield f"{where}: {peer} remembers incarnation {other.peer:016x}, not {link.incarnation:016x}"
        return
    if other.accepted.largest > link.sent:
        yield f"{where}: {peer} has accepted frame {other.accepted.largest}, but only {link.sent} were sent"
    lost = [
        number
        for number in range(other.accepted.upto + 1, link.sent + 1)
        if number not in other.accepted and number not in link.bodies
    ]
    if lost:
        yield f"{where}: {len(lost)} frames from {lost[0]} on are lost: not kept by the sender, nor accepted by {peer}"


def renewed(snapshot: bytes, server: str, incarnations: Mapping[str, int], epoch: str, topology: str = "") -> bytes:
    """Return the snapshot of a server, changed for a new system. ``incarnations``: the incarnations of all servers of
    the new system. ``epoch``, ``topology``: the epoch and the text of the new system's topology. If the snapshot has
    the text of a topology and ``topology`` is not empty, ``topology`` replaces this text."""
    state = decode_state(snapshot)
    mine = incarnations[server]
    consumers = {}
    for domain, consumer in state.consumers.items():
        own = _read(consumer.own)
        links = {peer: _read(link).under(mine, incarnations[peer]) for peer, link in consumer.links.items()}
        consumers[domain] = replace(
            consumer, own=own.under(mine, mine if own.peer else 0), links=links, lives=dict.fromkeys(links, 0)
        )
    organisation = state.organisation
    if organisation.topology and topology:
        # A restored system must not connect to the one from which the backup was taken.
        system = f"{min(incarnations.values()):016x}" if organisation.system else ""
        organisation = replace(organisation, topology=topology, system=system)
    renewal = {"incarnation": mine, "epoch": epoch, "consumers": consumers, "stopped": [], "organisation": organisation}
    return encode_state(replace(state, **renewal))


def _links(state: State) -> Iterator[tuple[tuple[str, str], SavedLink]]:
    for domain, consumer in state.consumers.items():
        for peer, link in consumer.links.items():
            yield (domain, peer), _read(link)


def _read(link: bytes) -> SavedLink:
    try:
        return SavedLink.read(link)
    except msgspec.MsgspecError as error:
        raise SnapshotError(f"unreadable saved link: {error}") from None

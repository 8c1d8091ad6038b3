"""Frames, acknowledgements and hellos from peers.

A link that finds that data was lost stops, until an operator resets its domain. Other errors close the connection.
"""

from typing import Protocol

from antecede.channel import Channel
from antecede.errors import LinkError, StampError, WireError
from antecede.link import Ack, Frame, Hello
from antecede.server.items import Item, Met
from antecede.server.words import FromPeer


class Machine(Protocol):
    """The parts of a server's machine that take what peers send."""

    channel: Channel
    stopped: dict[tuple[str, str], str]
    faults: list[tuple[str, str, str]]
    items: list[Item]

    def collect(self) -> None:
        """Put what was delivered into mailboxes."""
        ...


def take_from_peer(machine: Machine, given: FromPeer, now: float) -> None:
    """Take what a peer sent."""
    place = (given.domain, given.peer)
    if machine.stopped and place in machine.stopped:
        return
    consumer = machine.channel.consumers.get(given.domain)
    if consumer is None or given.peer not in consumer.links:
        # It was queued before a change of the topology removed the link.
        return
    content = given.content
    try:
        if type(content) is Frame:
            consumer.receive(given.peer, content, now)
            machine.collect()
        elif type(content) is Ack:
            consumer.links[given.peer].on_ack(content, now)
        elif isinstance(content, Hello):
            link = consumer.links[given.peer]
            known = (link.peer, link.peer_life)
            link.on_hello(content, now)
            if (link.peer, link.peer_life) != known:
                machine.items.append(Met(given.domain, given.peer, link.peer, link.peer_life))
    except LinkError as error:
        machine.stopped[place] = str(error)
        machine.faults.append((*place, str(error)))
    except (WireError, StampError) as error:
        machine.faults.append((*place, str(error)))

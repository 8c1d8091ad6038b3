"""Frames, acknowledgements and hellos from peers.

A link stops if the peer sends something that contradicts what was sent before, for example because one of the two
servers has lost data. A stopped link exchanges nothing until its domain starts with a new state. Either an operator
resets the domain, or a change of the topology restarts it. The log does not record that a link stopped; only snapshots
do. So after a restart a link may work again, until the next contradiction. Other errors only close the connection.
"""

from typing import TYPE_CHECKING

from antecede.errors import LinkError, StampError, WireError
from antecede.link import Ack, Frame, Hello
from antecede.server.inputs import FromPeer
from antecede.server.items import Met

if TYPE_CHECKING:
    from antecede.server import AgentServer


def take_from_peer(machine: "AgentServer", given: FromPeer, now: float) -> None:
    """Process a frame, an acknowledgement or a hello from a peer. Ignore it if the link has stopped or was removed."""
    domain, peer, content = given.domain, given.peer, given.content
    if machine.stopped and (domain, peer) in machine.stopped:
        return
    consumer = machine.channel.consumers.get(domain)
    if consumer is None or peer not in consumer.links:
        # It was queued before a change of the topology removed the link.
        return
    try:
        if type(content) is Frame:
            consumer.receive(peer, content, now)
            machine.collect()
        elif type(content) is Ack:
            consumer.links[peer].on_ack(content, now)
            machine.channel.links.changed()
        elif isinstance(content, Hello):
            link = consumer.links[peer]
            known = (link.peer, link.peer_life)
            link.on_hello(content, now)
            machine.channel.links.changed()
            if (link.peer, link.peer_life) != known:
                machine.items.append(Met(domain, peer, link.peer, link.peer_life))
    except LinkError as error:
        machine.stopped[domain, peer] = str(error)
        machine.faults.append((domain, peer, str(error)))
    except (WireError, StampError) as error:
        machine.faults.append((domain, peer, str(error)))

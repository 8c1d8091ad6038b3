"""The bus: how a program that is no agent sends, asks and listens.

    async with antecede.connect("tcp://127.0.0.1:7101", name="alice") as bus:
        await bus.send("shop", Order(item="tea", count=1))
        sold = await bus.ask("shop", Order(item="tea", count=1), expect=Sold, timeout=5)

A client has a durable name and a home server, where a mailbox stands for it under the address ``name@server``.

**Sending.** ``send`` puts a notification on its way and returns a ticket. To await the ticket is to wait until the
notification is *accepted*: on the entry server's disk, from where delivery exactly once is promised. Not to await it is
to pipeline; ``await bus.drain()`` then waits for all, and raises what went wrong with one that nobody awaited. What is
sent within one turn of the event loop to the same destination shares one batch. Publishes are numbered without gaps
and kept until they are accepted; after a broken connection those that the server does not have are sent again, so none
is sent twice. What comes after a refused publish was passed over by the server, and is numbered anew.

**Listening.** Letters come one after the other, each is acknowledged after its handler has returned, and comes again if
the client goes away before that. A handler that raises is tried again; then, as for a letter that no handler is for,
the letter is dead, at an operator's disposal (``antecede dead``).

The bus itself knows no socket. It speaks through a *line*: to a server over the network
(:mod:`antecede.live.client.line`), or to one in the same process (:mod:`antecede.live.local`).
"""

from antecede.live.client.bus import Bus
from antecede.live.client.inbox import Received
from antecede.live.client.ticket import Line, Ticket

__all__ = ["Bus", "Line", "Received", "Ticket"]

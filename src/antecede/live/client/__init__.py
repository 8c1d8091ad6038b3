"""The bus: how a program that is not an agent sends, asks and listens.

    async with antecede.connect("tcp://127.0.0.1:7101", name="alice") as bus:
        await bus.send("shop", Order(item="tea", count=1))
        sold = await bus.ask("shop", Order(item="tea", count=1), expect=Sold, timeout=5)

A client has a durable name and one server, which keeps the client's mailbox under the address ``name@server``.

**Sending.** ``send`` starts sending a notification and returns a ticket. Await the ticket to wait until the
notification is *accepted*. A notification is accepted when the server of the bus has stored it (by default, on its
disk). From then on, it is certain that the notification is delivered exactly once or becomes a dead letter. A program
need not await a ticket before the next send. ``await bus.drain()`` waits for all sends. Then it raises the first error
that the program has not seen yet (no ``await`` has raised this error). Consecutive notifications of one type to the
same destination usually share one batch, if they are sent in one iteration of the event loop. ``send_many`` sends many
notifications in one call, with one ticket for all.

**Numbers.** Each notification that is sent is one *publish*. Publishes are numbered without gaps and kept until they
are accepted. After a broken connection, the bus repeats the publishes that the server does not have, and no others. So
no publish is accepted twice. If the server refuses a publish, it skips the later publishes that are already on their
way. The bus gives the skipped publishes new numbers and sends them again. If the refusal is temporary (an overload),
no publish fails: the bus sends them again, the refused one first, until the server accepts them.

**Listening.** A *letter* is a notification that the client receives. Letters are handled one after the other. Each
letter is acknowledged after its handler has returned. If the client ends before the acknowledgement and later
connects again, the handler is called again for this letter. A handler that raises an exception is tried again. If all
tries fail, or if no handler accepts the letter, it becomes a dead letter, which an operator can handle (``antecede
dead``).

The bus itself has no socket. It uses a *line*, which leads to a server over the network
(:mod:`antecede.live.client.line`) or to a server in the same process (:mod:`antecede.live.server`).
"""

from antecede.live.client.bus import Bus, Line, Received, Ticket, Tickets

__all__ = ["Bus", "Line", "Received", "Ticket", "Tickets"]

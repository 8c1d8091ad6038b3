"""``antecede bench channel``: messages between two processes, with Antecede and with other systems, in one run.

**Rules.** Payloads have 100 bytes. There are two processes, a sender and a receiver; a broker's server, if there is
one, is a third. A *side* is one system in one of the shapes below. All sides take turns in each round, so that a
disturbance affects all of them; medians over the rounds are compared, and only ratios within one run are meaningful. A
side that is not installed is skipped, and the output says so.

**The shapes.** Our side has a server in each of the two processes, connected by one domain of order ``pruned``:

- *pipelined*: a program calls ``bus.send()`` one message at a time on the bus of its server; an agent without state on
  the other server receives the messages. The time runs from the first send until the agent's answer to the last message
  is back at the sender. This answer comes only when all messages before it are on both disks.
- *clients*: two clients of one server, which writes the messages to its disk; a message crosses two sockets, as it does
  with a broker. The sender passes 500 notifications to each ``bus.send_many()``; the time ends when the other client
  has handled the last one.
- *accepted*: a client in one process, a server in the other; the client awaits each ``bus.send()`` before the next.
- *exchange*: an agent at each end, and one letter that goes back and forth. An end sends the letter when its reaction
  is on disk. So a round trip costs one fdatasync at each end, as in the loop of :mod:`~antecede.bench.bare`.
- *ping-pong*: ``await bus.ask()`` in one process, the answering agent on the server of the other.

``antecede bench paper000`` (:mod:`~antecede.bench.paper000`) is separate: it runs many servers of one system.

A module that calls :func:`~antecede.bench.children.act` has the parties of one system; each party runs as a separate
process: ``python -m antecede.bench.MODULE ROLE SETTINGS``.
"""

payload = bytes(range(100))
"""The payload: 100 bytes."""

"""``antecede bench channel``: messages between two processes, ours and other people's, in one run.

**Rules.** Payloads of 100 bytes. Two processes, a sender and a receiver, and the broker's server where there is one.
All sides take turns in each round, so that what disturbs one disturbs all; medians over the rounds are compared, and
only ratios within one run mean anything. A peer that is not installed is skipped, and said to be.

**The shapes.** Ours is a server in each of the two processes, joined by one domain of order ``pruned``:

- *pipelined*: a program calls ``bus.send()`` one message at a time on the bus of its server; an agent without state on
  the other server gets them. The clock runs from the first send until the agent's answer to the last message is back
  at the sender, which it can be only when everything before it is on both disks.
- *accepted*: a client in one process, a server in the other; ``await bus.send()`` one after the other.
- *exchange*: an agent at each end, and one letter between them to and fro. It leaves when the reaction that sent it is
  on disk, so a round trip costs one fdatasync at either end; so does the bare loop's.
- *ping-pong*: ``await bus.ask()`` in one process, the answering agent on the server of the other.

Every module here but :mod:`~antecede.bench.channel`, :mod:`~antecede.bench.report` and
:mod:`~antecede.bench.children` is one kind of party, to be run as a process of its own:
``python -m antecede.bench.MODULE ROLE SETTINGS``.
"""

payload = bytes(range(100))
"""What travels: 100 bytes."""

"""``antecede bench channel`` measures messages between two processes, with Antecede and with other systems.

**Rules.** Payloads have 100 bytes. There are two processes, a sender and a receiver. Some systems need a third process,
the server of a broker. A *shape* is one way to exchange the messages; the shapes are listed below. A *side* is one
system that is measured in one shape. Each round measures all sides one after the other, so that a disturbance of the
machine affects all sides. Medians over the rounds are compared. Only ratios between sides of the same run are
meaningful. A side that is not installed is skipped, and the output says so.

**The shapes.** In most shapes, our side has a server in each of the two processes. The two servers are in one domain of
order ``pruned``. In the shapes *clients* and *accepted*, and in the side ``ping-pong-client``, only one server runs.

- *pipelined*: a program calls ``bus.send()`` once per message, on the bus of its server. An agent on the other server
  receives the messages. It has no state, except in the side ``stateful``. The time is measured from the first send
  until the agent's answer to the last message is back at the sender. When the answer arrives, all messages are on the
  disks of both servers, except in the side ``not-durable``.
- *clients*: one client sends to another client of the same server. The server writes the messages to its disk. Each
  message passes through two sockets, as with a broker. Each call of ``bus.send_many()`` sends 500 notifications. The
  time is measured until the other client has handled the last notification.
- *accepted*: there is a client in one process, and a server in the other. The client awaits each ``bus.send()`` before
  it calls the next one.
- *exchange*: two agents, one on each server, send one letter (a message) back and forth. Each agent's reaction is on
  disk before the letter is sent back. So a round trip costs one fdatasync at each end, as in
  :mod:`~antecede.bench.bare`.
- *ping-pong*: a program in one process calls ``await bus.ask()``, and an agent on the server of the other process
  answers.

``antecede bench paper000`` (:mod:`~antecede.bench.paper000`) is separate: it runs many servers of one system.

The parties of a measurement, such as the sender and the receiver, are separate processes. For each system, one module
contains the code of all its parties. The module calls :func:`~antecede.bench.children.act`. The command of a party is
``python -m antecede.bench.MODULE ROLE SETTINGS``.
"""

payload = bytes(range(100))
"""The payload of each message."""

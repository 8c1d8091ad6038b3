"""The reduction that makes the search smaller: it interleaves only inputs that other processes can notice.

An input of a process is a send of its application, or the arrival of a packet. An arrival is **silent** if it causes no
output: the process puts no packet on the network and has no send event. All other inputs are *noticeable*, including
all sends of the application. A **block** is a noticeable input of one process, together with the silent arrivals at
this process that come directly before it. The explorer interleaves whole blocks, and never a silent arrival by itself.

**Why nothing is missed.** Take any run. Move each silent arrival to a later moment: just before the next noticeable
input of the same process. If there is no such input, move the arrival to the end of the run. The result is also a
possible run:

* a packet in flight stays in flight until it arrives;
* a silent arrival puts no packet in flight;
* every process sees its own inputs in the same sequence as before.

The new run has the same inputs and, in every process, the same states, events and deliveries. It is a sequence of
blocks (a *block run*), followed by silent arrivals (one *silent tail* per process). So it is enough to play block runs
with silent tails. They reach every state that a process has in any run. They also reach every state that the whole
system has at the end of a run.

* Conditions at one process (FIFO, causal order, the order's contract) depend only on the inputs of this process and on
  sets of earlier messages: each message to this process carries such a set
  (:mod:`~antecede.simulator.explorer.machine`). The conditions are checked in every step of every block and of every
  silent tail.
* In a *quiet state*, no packet is in flight. After a block run, silent tails lead to a quiet state if and only if they
  contain the arrivals of all packets in flight. Tails of different processes are independent. So each process is
  checked separately: after such a tail, every message to this process must be delivered.
* Conditions on all processes (total and synchronous order) are checked for all combinations of tails. A cycle in the
  histories of the processes stays there when the histories grow. So it is enough to search for cycles in quiet states.

This reduction moves inputs, but neither adds nor removes any. So the shortest run with an error does not become longer.

The *situation* of a process consists of its state, the packets in flight to it, and the sets that the messages to it
carry. The situation determines all blocks of the process. So these blocks are computed once per situation
(:class:`Growth`), and used for all states of the system in which the process is in this situation.
"""

from collections.abc import Iterable
from typing import NamedTuple

from antecede.simulator.explorer.machine import UNSENT, Finding, Flights, Judgement, Local, Machine, Scope, Step

Incoming = tuple[tuple[int, int], ...]
"""Messages that have been sent to one process. Each entry is a pair. The first value is the position of the message in
bit masks of messages. The second value is the set that the message carries: messages that were sent before it, as a bit
mask. :mod:`~antecede.simulator.explorer.machine` explains these sets."""


class Node(NamedTuple):
    """The state of a process after some silent arrivals (arrivals that cause no output). The nodes of a :class:`Growth`
    form a tree. Its root is the state before these arrivals. One more arrival leads from a node to each of its
    children."""

    local: Local
    flights: Flights
    """The numbers of the packets that are still in flight to the process. Normally they are sorted by number. On FIFO
    links they are sorted by sender, and packets of one sender keep the sequence in which they were sent."""
    steps: int
    parent: int
    entry: int
    """The number of the packet whose arrival leads from the parent node to this node."""


class Block(NamedTuple):
    """A block consists of inputs of one process. First come *silent* arrivals (they cause no output), which lead to the
    state ``node``. Then comes the input ``entry``, which other processes can notice. If this input is an arrival,
    ``entry`` is the number of the packet. If it is a send, ``entry`` is the bitwise complement of the mask of
    destinations."""

    cell: int
    """The number of the cell of the process after the block. A cell is a state of a process together with the packets
    in flight to it; see :meth:`Blocks.cell`."""
    posted: tuple[tuple[int, int], ...]
    """The packets that the block sends to other processes: one pair (process, index) for each of these processes. At
    this index, ``Blocks._posts`` has the tuple of the packets to this process."""
    steps: int
    growth: "Growth"
    node: int
    entry: int


class Fault(NamedTuple):
    """An input that breaks a guarantee or the order's contract. The fields are as in :class:`Block`: the silent
    arrivals that lead to the state ``node`` come first, then the input ``entry``."""

    finding: Finding
    steps: int
    node: int
    entry: int


class Growth:
    """All possible sequences of inputs of one process in one *situation* (its state, the packets in flight to it, and
    the messages sent to it). Each sequence ends with the first input that other processes can notice."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.arrivals: list[Block] = []
        self.sends: list[Block] | None = None
        """Blocks that end in a send of the application; None until they are requested."""
        self.faults: list[Fault] = []
        self.ends: list[int] = []
        """The indices of the nodes in which all packets to the process have arrived."""

    def path(self, node: int, entry: int | None = None) -> list[int]:
        """Return the inputs that lead to a node, followed by ``entry`` if it is given."""
        inputs = [] if entry is None else [entry]
        while node:
            inputs.append(self.nodes[node].entry)
            node = self.nodes[node].parent
        return inputs[::-1]


class Blocks:
    """A table of the blocks of all processes. The *situation* of a process is its state, the packets in flight to it,
    and the messages sent to it. The blocks of a situation are computed when the situation first occurs. Later they
    are read from the table."""

    def __init__(self, machine: Machine, judgement: Judgement, scope: Scope) -> None:
        self._machine = machine
        self._judgement = judgement
        self._scope = scope
        self.cells: list[tuple[Local, Flights]] = []
        self._cell_numbers: dict[tuple[Local, Flights], int] = {}
        self.outgoing: list[tuple[Incoming, ...]] = []
        """For each cell (the state of a process, with the packets in flight to it): the messages that this process has
        sent. There is one ``Incoming`` for each destination process. The index is the number of the cell."""
        self._posts: list[Flights] = []
        self._post_numbers: dict[Flights, int] = {}
        self._posted: dict[tuple[int, int], int] = {}
        self._growths: dict[tuple[int, Incoming], Growth] = {}

    def cell(self, process: int, local: Local, flights: Flights) -> int:
        """Return the number of a cell: the state ``local`` of a process, together with the packets ``flights`` in
        flight to this process. A new cell gets the next free number."""
        key = (local, flights)
        number = self._cell_numbers.setdefault(key, len(self.cells))
        if number == len(self.cells):
            self.cells.append(key)
            sent = [
                (self._scope.bit(process, n), to, before)
                for n, (to, before) in enumerate(zip(local.accepted, local.befores, strict=True))
                if before != UNSENT
            ]
            self.outgoing.append(
                tuple(
                    tuple((bit, before) for bit, to, before in sent if to >> target & 1)
                    for target in range(self._scope.processes)
                )
            )
        return number

    def post(self, process: int, cell: int, post: int) -> int:
        """Return the number of the cell that a process has after more packets were sent to it. (A cell is the state of
        a process together with the packets in flight to it.) ``cell``: the number of its present cell. ``post``: the
        index in ``_posts`` of the tuple of the new packets."""
        after = self._posted.get((cell, post))
        if after is None:
            local, flights = self.cells[cell]
            after = self._posted[cell, post] = self.cell(process, local, self._joined(flights, self._posts[post]))
        return after

    def growth(self, process: int, cell: int, incoming: Incoming) -> Growth:
        """Return the possible sequences of inputs of a process. They start from the state in ``cell``, and each ends
        with the first input that other processes can notice. ``incoming``: the messages from other processes to this
        process that this process has not delivered yet."""
        growth = self._growths.get((cell, incoming))
        if growth is None:
            growth = self._growths[cell, incoming] = self._grow(process, cell, dict(incoming))
        return growth

    def _grow(self, process: int, cell: int, incoming: dict[int, int]) -> Growth:
        growth = Growth()
        local, flights = self.cells[cell]
        growth.nodes.append(Node(local, flights, 0, 0, 0))
        known = {(local, flights)}
        # The list grows during the loop: breadth first, so that each node is reached by a shortest path.
        for at, node in enumerate(growth.nodes):
            if not node.flights:
                growth.ends.append(at)
            for place in self._ready(node.flights):
                packet = node.flights[place]
                after, step = self._judgement.receive(process, node.local, packet, incoming)
                if isinstance(after, Finding):
                    growth.faults.append(Fault(after, node.steps + 1, at, packet))
                    continue
                remaining = node.flights[:place] + node.flights[place + 1 :]
                if step.emitted or any(is_send for is_send, _ in step.events):
                    growth.arrivals.append(self._block(growth, process, at, packet, after, remaining, step))
                elif (after, remaining) not in known:
                    known.add((after, remaining))
                    growth.nodes.append(Node(after, remaining, node.steps + 1, at, packet))
        return growth

    def sends(self, process: int, growth: Growth) -> list[Block]:
        """Return the blocks that end in a send of the application."""
        if growth.sends is None:
            growth.sends = []
            for at, node in enumerate(growth.nodes):
                for to in self._choices(process, node.local):
                    after, step = self._judgement.send(process, node.local, to)
                    if isinstance(after, Finding):
                        growth.faults.append(Fault(after, node.steps + 1, at, ~to))
                    else:
                        growth.sends.append(self._block(growth, process, at, ~to, after, node.flights, step))
        return growth.sends

    def _choices(self, process: int, local: Local) -> Iterable[int]:
        if self._scope.program is None:
            return self._scope.destinations(process)
        send = self._scope.next_send(process, len(local.accepted), local.delivered.bit_count())
        return () if send is None else (send.to,)

    def _block(
        self, growth: Growth, process: int, node: int, entry: int, after: Local, flights: Flights, step: Step
    ) -> Block:
        posted: dict[int, list[int]] = {}
        for packet in step.emitted:
            copies = 2 if self._scope.duplicates else 1
            posted.setdefault(self._machine.packets[packet].target, []).extend([packet] * copies)
        own = tuple(posted.pop(process, ()))
        cell = self.cell(process, after, self._joined(flights, own) if own else flights)
        others = tuple((target, self._post_number(tuple(packets))) for target, packets in sorted(posted.items()))
        return Block(cell, others, growth.nodes[node].steps + 1, growth, node, entry)

    def _post_number(self, packets: Flights) -> int:
        number = self._post_numbers.setdefault(packets, len(self._posts))
        if number == len(self._posts):
            self._posts.append(packets)
        return number

    def _joined(self, flights: Flights, more: Flights) -> Flights:
        if not self._scope.fifo_links:
            return tuple(sorted((*flights, *more)))
        packets = self._machine.packets
        # A stable sort keeps the sequence on each link and forgets the rest.
        return tuple(sorted((*flights, *more), key=lambda packet: packets[packet].source))

    def _ready(self, flights: Flights) -> list[int]:
        """Return the indices of the packets in ``flights`` that may arrive next. On FIFO links, only the first packet
        of each sender may arrive next. On other links, every packet may arrive next, but equal packets are listed only
        once."""
        if not self._scope.fifo_links:
            return [place for place, packet in enumerate(flights) if place == 0 or flights[place - 1] != packet]
        packets = self._machine.packets
        sources = [packets[packet].source for packet in flights]
        return [place for place, source in enumerate(sources) if place == 0 or sources[place - 1] != source]

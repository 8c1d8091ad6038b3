"""What the search is made of: the scope, a table of the steps of an order, and the state of one process.

The table has (state, input) → (new state, events, packets). Each row of the table is computed once. Orders are
deterministic and do no I/O, so a member's state and its input determine its step. States and packets get numbers when
they first occur. When a step is needed for the first time, the order is cloned and run. After that, every run takes the
result of this step from the table.

Each step is run on a clone of the order. A clone contains only the data of ``snapshot()`` and ``held_packets()``, so
this data identifies a state. Any other data (a field that ``dump`` forgets) is lost after every step.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from antecede import limits
from antecede.documents import read_bytes
from antecede.errors import OrderError, ScenarioError, UsageError
from antecede.messages import Deliver, Effects, Message, Packet, Send, Sent, mask_of
from antecede.orders.contract import Order

# The scope of an exploration: which messages may be sent, and how links behave.
#
# A scope may have a *program*: for each process, a list of sends, which the process makes in sequence. A send may have
# to wait until the process has delivered a given number of messages. If there is no program, any process may send a
# message at any moment, up to a total number of messages. In this case the *mode* determines which sets of destinations
# a message may have. Everything else is open, and the explorer tries all possibilities: which process acts next, and
# which packet in flight arrives next.
#
# A message is named by its sender and its number among the sender's messages. So the names do not depend on the
# sequence of independent events. The *bit* of a message is its position in bit masks of messages.


_word = re.compile(r"[A-Za-z0-9_.-]+")

MODES = ("unicast", "multicast", "broadcast")


class ProgramSend(msgspec.Struct, frozen=True):
    """One send of a given program."""

    to: int
    """The destinations, as a bit mask of processes."""
    after: int = 0
    """The number of deliveries that the sending process must have made before this send."""
    name: str = ""


Program = tuple[tuple[ProgramSend, ...], ...]
"""A program: for each process, its sends in sequence."""


class Scope(msgspec.Struct, frozen=True):
    """The bounds of one exploration: the number of processes, the messages that they may send, and the behaviour of the
    links."""

    processes: int
    messages: int
    mode: str = "unicast"
    to_self: bool = False
    fifo_links: bool = False
    duplicates: bool = False
    program: Program | None = None
    process_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.processes <= limits.explorer_processes_max:
            raise UsageError(f"{self.processes} processes: expected 1 to {limits.explorer_processes_max}")
        if not 1 <= self.messages <= limits.explorer_messages_max:
            raise UsageError(f"{self.messages} messages: expected 1 to {limits.explorer_messages_max}")
        if self.mode not in MODES:
            raise UsageError(f"mode {self.mode!r}: expected one of {', '.join(MODES)}")
        if self.program is None and self.processes == 1 and not self.to_self:
            raise UsageError("1 process cannot send to others: expected 2 or more processes, or --self")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the processes."""
        return self.process_names or tuple(f"P{number + 1}" for number in range(self.processes))

    def __str__(self) -> str:
        what = f"up to {self.messages} {self.mode} messages"
        if self.program is not None:
            what = f"a program of {sum(map(len, self.program))} messages"
        details = {
            "to oneself, too": self.to_self and self.program is None,
            "on FIFO links": self.fifo_links,
            "each packet twice": self.duplicates,
        }
        between = f"{what} between {self.processes} processes"
        return ", ".join([between, *(words for words, holds in details.items() if holds)])

    def destinations(self, source: int) -> list[int]:
        """Return all sets of destinations that a message of ``source`` may have, each as a bit mask."""
        everyone = (1 << self.processes) - 1
        others = everyone & ~(1 << source)
        if self.mode == "broadcast":
            return [others, everyone] if self.to_self and others else [others or everyone]
        allowed = everyone if self.to_self else others
        subsets = [mask for mask in range(1, everyone + 1) if not mask & ~allowed]
        return [mask for mask in subsets if mask.bit_count() == 1] if self.mode == "unicast" else subsets

    def next_send(self, source: int, accepted: int, delivered: int) -> ProgramSend | None:
        """Return the next send of a process that has made ``accepted`` sends and ``delivered`` deliveries; None if the
        next send must wait for more deliveries, or all sends have been made."""
        assert self.program is not None
        sends = self.program[source]
        if accepted < len(sends) and sends[accepted].after <= delivered:
            return sends[accepted]
        return None

    def bit(self, source: int, number: int) -> int:
        """Return the position of a message of ``source`` in bit masks of messages (its *bit*). ``number``: the number
        of the message among the messages of ``source``, from 0."""
        return source * self.messages + number

    def message(self, source: int, number: int, to: int) -> Message:
        """Return a message of ``source`` to the destinations ``to``. ``number``: the number of the message among the
        messages of ``source``, from 0."""
        return Message(f"{source}.{number}", source, to)

    def bit_of(self, id_: str) -> int:
        """Return the position of the message with this id in bit masks of messages (its *bit*)."""
        source, _, number = id_.partition(".")
        return self.bit(int(source), int(number))


class ProgramFile(NamedTuple):
    """The content of a program file: the names of the processes, and the sends of each process."""

    processes: tuple[str, ...]
    program: Program


def read_program(path: str) -> ProgramFile:
    """Read a program: a scenario file that has only ``processes`` and ``send M FROM -> TO[,TO…] [after K]`` lines."""
    # Bytes that are not text are an error of their line.
    text = read_bytes(path, limits.scenario_bytes_max).decode("utf-8", "replace")
    names: tuple[str, ...] = ()
    sends: Mapping[str, list[ProgramSend]] = {}
    used: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if words[0] == "processes" and not names:
            names = tuple(words[1:])
            most = limits.explorer_processes_max
            if not 1 <= len(set(names)) == len(names) <= most or not all(map(_word.fullmatch, names)):
                raise ScenarioError(
                    path, number, f"expected 1 to {most} different process names, each only with letters, digits, _ . -"
                )
            sends = {name: [] for name in names}
            continue
        source, send = _read_send(path, number, words, names)
        if send.name in used:
            raise ScenarioError(path, number, f"{send.name} is sent twice: expected a different name in each send line")
        used.add(send.name)
        sends[source].append(send)
    if not used:
        raise ScenarioError(path, 0, "the file has no sends: expected a processes line, then send lines")
    return ProgramFile(names, tuple(tuple(sends[name]) for name in names))


def _read_send(path: str, line: int, words: Sequence[str], names: Sequence[str]) -> tuple[str, ProgramSend]:
    timed = len(words) == 7 and words[5] == "after" and re.fullmatch(r"[0-9]{1,4}", words[6]) is not None
    if words[0] != "send" or not (len(words) == 5 or timed) or words[3] != "->":
        raise ScenarioError(
            path, line, "expected first the line 'processes P…', then only lines 'send M FROM -> TO[,TO…] [after K]'"
        )
    targets = words[4].split(",")
    if not _word.fullmatch(words[1]):
        raise ScenarioError(path, line, f"{words[1]!r} is not a name for a message: use only letters, digits, _ . -")
    for name in (words[2], *targets):
        if name not in names:
            raise ScenarioError(path, line, f"unknown process {name}: expected a name from the processes line")
    to = mask_of(names.index(target) for target in targets)
    return words[2], ProgramSend(to, int(words[6]) if timed else 0, words[1])


Factory = Callable[[int, int], Order]
"""A function that creates the order of one member. Its arguments are the index of this member (from 0), and the
number of members."""

SHARED: Final = "a step of a clone changes the order that was cloned: load must copy the lists that dump returns"

Flights = tuple[int, ...]
"""The numbers of packets. The number of a packet is its index in ``Machine.packets``."""


_clones_checked_max: Final = 1_000
"""The number of steps that are checked at the beginning of an exploration. Each step runs on a clone of an order, and
must not change the original order. If clones share data with the original, these first steps usually show this
error."""


class Step(NamedTuple):
    """The result of one input to the order of a member."""

    state: int
    events: tuple[tuple[bool, int], ...]
    """The events in sequence. Each event is a pair. The first part is True for a send event, and False for a delivery.
    The second part is the position of the message in bit masks of messages."""
    emitted: Flights
    """The packets that the order hands to the network, in sequence."""
    failure: str
    """A description of how the order broke its contract; empty if the order did not break it."""


class Machine:
    """The table of an order: all states of all members that have occurred so far, and the steps between these
    states."""

    def __init__(self, create: Factory, scope: Scope) -> None:
        self._scope = scope
        self._orders: list[Order] = []
        self.idle: list[bool] = []
        """For each state, by number: whether nothing waits in the order. If True, the order holds no message that has
        arrived, and it has handed all copies of its application's messages to the network."""
        self._states: dict[tuple[bytes, Flights], int] = {}
        self.packets: list[Packet] = []
        self._packet_numbers: dict[Packet, int] = {}
        self._received: dict[tuple[int, int], Step] = {}
        self._sent: dict[tuple[int, int, int], Step] = {}
        self._clones_checked = 0
        self.initial = [self._number_state(create(me, scope.processes)) for me in range(scope.processes)]

    def __len__(self) -> int:
        return len(self._orders)

    def receive(self, state: int, packet: int) -> Step:
        """Return the step in which the packet with the number ``packet`` arrives."""
        step = self._received.get((state, packet))
        if step is None:
            arrived = self.packets[packet]
            step = self._received[state, packet] = self._run(state, lambda order: order.receive(arrived)[1])
        return step

    def send(self, state: int, number: int, to: int) -> Step:
        """Return the step in which the application sends its message with the number ``number`` to the destinations
        ``to``. The first message of each application has the number 0."""
        step = self._sent.get((state, number, to))
        if step is None:
            message = self._scope.message(self._orders[state].me, number, to)
            step = self._sent[state, number, to] = self._run(state, lambda order: order.send(message))
        return step

    def _run(self, state: int, feed: Callable[[Order], Effects]) -> Step:
        original = self._orders[state]
        try:
            order = original.clone()
            before = original.snapshot() if self._clones_checked < _clones_checked_max else b""
            effects = feed(order)
            if before:
                self._check_clone(original, before)
            after = self._number_state(order)
        except OrderError:
            # The scope needs something that this order does not support: this is a usage error, not a finding.
            raise
        except Exception as error:
            # A broken order may fail in any way; the failure is the finding.
            return Step(state, (), (), f"{type(error).__name__}: {error}".rstrip(": "))
        return self._summary(order, after, effects)

    def _check_clone(self, original: Order, before: bytes) -> None:
        """Raise an error if the step of a clone changed the original order. With such an order, the explorer would play
        impossible runs."""
        self._clones_checked += 1
        if original.snapshot() != before:
            raise OrderError(f"order {original.name!r}: {SHARED}")

    def _summary(self, order: Order, after: int, effects: Effects) -> Step:
        events: list[tuple[bool, int]] = []
        emitted: list[int] = []
        failure = ""
        for effect in effects:
            if isinstance(effect, Send):
                emitted.append(self._number_packet(effect.packet, order))
            elif isinstance(effect, Sent):
                events.append((True, self._scope.bit_of(effect.message.id)))
            elif isinstance(effect, Deliver):
                if not effect.message.to >> order.me & 1:
                    failure = "it delivers a message that is not addressed to it"
                events.append((False, self._scope.bit_of(effect.message.id)))
        return Step(after, tuple(events), tuple(emitted), failure)

    def _number_state(self, order: Order) -> int:
        held = order.held_packets()
        snapshot = order.snapshot()
        if not isinstance(snapshot, bytes):
            raise OrderError(f"order {order.name!r}: a snapshot must be bytes, not {type(snapshot).__name__}")
        key = (snapshot, tuple([self._number_packet(packet, order) for packet in held]))
        number = self._states.setdefault(key, len(self._orders))
        if number == len(self._orders):
            self._orders.append(order)
            self.idle.append(not (held or order.held() or order.unposted()))
        return number

    def _number_packet(self, packet: Packet, order: Order) -> int:
        try:
            number = self._packet_numbers.setdefault(packet, len(self.packets))
        except TypeError as error:
            raise OrderError(
                f"order {order.name!r}: the stamp of a {packet.kind} must be hashable to be explored "
                f"(a tuple, bytes or a frozen struct): {error}"
            ) from None
        if number == len(self.packets):
            self.packets.append(packet)
        return number


# The state of one process: the state of its order, and everything that is needed to judge its next delivery.
#
# Happened-before is computed with bit masks, one event at a time, as in :mod:`antecede.trace.oracle`. ``past`` is the
# set of messages that were sent before the present state of the process, in the sense of happened-before. Each message
# carries a set: the ``past`` that its sender had at the send event. The sender keeps these sets in ``befores``.
# ``covered`` contains the messages that the process has not delivered, although it has delivered a message that was
# sent after them. It is the union of the sets of all delivered messages, without the delivered messages themselves. A
# delivery is *late* if and only if its message is in ``covered``.
#
# If only FIFO order is checked, the set that a message carries contains only messages of the same sender. Data that no
# checked guarantee needs is not kept, because it would only increase the number of states.


UNSENT = -1


class Local(NamedTuple):
    """The whole state of one process."""

    state: int
    """The number of the state of the process's order."""
    accepted: tuple[int, ...]
    """For each message that the application has handed to the order, in sequence: the mask of its destinations."""
    befores: tuple[int, ...]
    """For each message in ``accepted``: the messages that were sent before it, as a bit mask. This is the value that
    ``past`` had at the send event of the message. Until the send event has taken place, the entry is ``UNSENT``."""
    past: int
    covered: int
    delivered: int
    history: tuple[int, ...]
    """The events of the process, in sequence. A delivery is stored as the bit number of its message (the position of
    the message in bit masks). A send event is stored as the bitwise complement of this number. Events that no check
    needs are left out."""


class Finding(NamedTuple):
    """A guarantee or another condition that a run breaks."""

    kind: str
    """``fifo``, ``causal``, ``total``, ``synchronous``, ``undelivered`` or ``contract``."""
    process: int
    bit: int
    """The message that the finding is about, given as the number of its bit in a bit mask of messages. The value is −1
    if the finding is not about one message."""
    text: str
    """The description, with placeholders for names: ``{process}`` for the process, ``{message}`` for the message,
    ``{overtaker}`` for the message that was delivered too early, before ``{message}``, and ``[bit]`` for the message
    with this bit number (for example ``[3]``)."""


class Judgement:
    """Computes the next state of a process after an input, and checks that the deliveries of this step break no
    guarantee."""

    def __init__(self, machine: Machine, scope: Scope, guarantees: frozenset[str], histories: bool) -> None:
        self._machine = machine
        self._scope = scope
        self._causal = "causal" in guarantees
        self._carries = bool(guarantees & {"fifo", "causal"})
        self._histories = histories
        self._sends_in_histories = "synchronous" in guarantees

    def initial(self, process: int) -> Local:
        return Local(self._machine.initial[process], (), (), 0, 0, 0, ())

    def send(self, process: int, local: Local, to: int) -> tuple[Local | Finding, Step]:
        """Let the application of a process send its next message. Return a pair: first the new state of the process, or
        a finding if the step breaks a guarantee or the order's contract; second the step."""
        step = self._machine.send(local.state, len(local.accepted), to)
        grown = local._replace(accepted=(*local.accepted, to), befores=(*local.befores, UNSENT))
        return self._apply(process, grown, step, {}), step

    def receive(
        self, process: int, local: Local, packet: int, incoming: Mapping[int, int]
    ) -> tuple[Local | Finding, Step]:
        """Let a packet arrive at a process. Return the same kind of pair as ``send``. ``incoming``: the messages from
        other processes to this process that this process has not delivered yet. A key is the position of a message
        in bit masks. Its value is a bit mask of the messages that were sent before this message."""
        step = self._machine.receive(local.state, packet)
        return self._apply(process, local, step, incoming), step

    def _apply(self, me: int, local: Local, step: Step, incoming: Mapping[int, int]) -> Local | Finding:
        state, events, _, failure = step
        if failure:
            return Finding("contract", me, -1, f"the order of {{process}} fails: {failure}")
        if not events:
            return local._replace(state=state)
        _, accepted, befores, past, covered, delivered, history = local
        first = self._scope.bit(me, 0)
        for is_send, bit in events:
            if is_send:
                number = bit - first
                if befores[number] != UNSENT:
                    return Finding("contract", me, bit, "{message} is sent twice")
                befores = (*befores[:number], past, *befores[number + 1 :])
                if self._carries:
                    past |= 1 << bit
                if self._sends_in_histories:
                    history = (*history, ~bit)
                continue
            own = 0 <= bit - first < len(befores)
            before = befores[bit - first] if own else incoming.get(bit, UNSENT)
            if delivered >> bit & 1:
                return Finding("contract", me, bit, "{process} delivers {message} twice")
            if before == UNSENT:
                return Finding("contract", me, bit, "{process} delivers {message}, which was not sent")
            if covered >> bit & 1:
                return self._late(me, bit)
            delivered |= 1 << bit
            if self._carries:
                covered = (covered | before) & ~delivered
                if self._causal:
                    past |= before | 1 << bit
            if self._histories:
                history = (*history, bit)
        return Local(state, accepted, befores, past, covered, delivered, history)

    def _late(self, me: int, bit: int) -> Finding:
        if self._causal:
            causally = "{process} delivers {message} after {overtaker}, which was sent causally after {message}"
            return Finding("causal", me, bit, causally)
        later = "{process} delivers {message} after {overtaker}, which the same process sent after {message}"
        return Finding("fifo", me, bit, later)

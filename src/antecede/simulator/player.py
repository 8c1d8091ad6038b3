"""Play a scenario, line by line: carry out its actions, and check its expectations.

``play`` returns a :class:`Played`: the world in which the scenario was played, and the expectations that failed (line,
expected, actual). If the scenario cannot be played under the given order, ``play`` raises
:class:`antecede.errors.ScenarioError`.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from heapq import heappop, heappush
from math import inf

import msgspec

from antecede import limits
from antecede.channel import Letter
from antecede.diagram import Diagram
from antecede.diagram import Event as Mark
from antecede.errors import AntecedeError, OrderError, ScenarioError, UsageError
from antecede.messages import COPY, Message, Packet, Send, Sent, Verdict, mask_of
from antecede.orders import OrderSpec, parse
from antecede.orders.contract import Order
from antecede.simulator.machine import (
    FLAT,
    Asked,
    Delivered,
    FlatChannel,
    InTransit,
    Machine,
    Received,
    RoutedChannel,
    Step,
    letter_of,
    send_by,
)
from antecede.simulator.observers import Recorder
from antecede.simulator.scenario import (
    ArriveLine,
    CrashLine,
    DrainLine,
    Expectation,
    ExpectDelivered,
    ExpectHolds,
    ExpectNotSent,
    ExpectRefused,
    ExpectStuck,
    LoseLine,
    Parcel,
    ReceiveLine,
    RestartLine,
    Scenario,
    SendLine,
    Statement,
    WaitLine,
)
from antecede.topology import Domain, Topology
from antecede.trace import ARRIVE, DELIVER, SEND, Event, judge
from antecede.trace import Verdict as Judged

# The history of a played scenario: as a trace, as a drawing, and as sentences.
#
# Events are kept in the sequence in which they were played. A copy of a message may pass through a process that is not
# its destination, for example a coordinator or a router. The application of that process does not see the copy. The
# drawing shows only a point there. If the process is a router, the trace also has a ``hop`` row.


_judged_messages_max = 5_000


class Record:
    """The history of one play of a scenario: its trace, its deliveries, its drawing, and the sentences that describe it
    in words."""

    def __init__(self, processes: tuple[str, ...]) -> None:
        self.processes = processes
        self.events: list[Event] = []
        """The rows of the trace, in the sequence in which the events were played."""
        self.delivered: dict[str, list[str]] = {process: [] for process in processes}
        """The messages that each application received, in sequence."""
        self.story: list[tuple[int, str]] = []
        """The history, as pairs: the number of a line in the scenario file, and a sentence about an event that this
        line caused."""
        self.line = 0
        # Rows name destinations in the sequence of these names.
        self._rows = Recorder(sorted(processes), self.events.append)
        self._numbers = {name: number for number, name in enumerate(self._rows.names)}
        self._marks: list[Mark] = []
        self._messages = 0

    def add_sentence(self, sentence: str) -> None:
        """Add a sentence to ``story``, with the number of the current line of the scenario file."""
        self.story.append((self.line, sentence))

    def sent(self, process: str, message: str, to: tuple[str, ...], sizes: list[int]) -> None:
        self._messages += 1
        self._rows.sent(self._numbers[process], self._message(message, to), sizes, None)
        self._marks.append(Mark(process, SEND, message, to))
        self.add_sentence(f"{process} sends {message} to {', '.join(to)}")

    def _message(self, message: str, to: tuple[str, ...] = ()) -> Message:
        return Message(message, 0, mask_of(map(self._numbers.__getitem__, to)))

    def arrived(self, process: str, message: str, stamp_bytes: int) -> None:
        self._rows.arrived(self._numbers[process], self._message(message), stamp_bytes, None)
        self._marks.append(Mark(process, ARRIVE, message))
        self.add_sentence(f"{message} arrives at {process}")

    def dropped(self, process: str, message: str) -> None:
        """Record a duplicate: the link or the order dropped the copy that has just arrived."""
        if self._marks and self._marks[-1] == Mark(process, ARRIVE, message):
            self._marks[-1] = Mark(process, "drop", message)

    def passed(self, process: str, message: str) -> None:
        """Record that a copy passes through a process that is not its destination."""
        self._marks.append(Mark(process, "local", label=f"({message})"))
        self.add_sentence(f"{message} passes through {process}")

    def hopped(self, server: str, message: str, domain: str, hop: int, sizes: list[int]) -> None:
        """Record that a router has forwarded a message into its next domain."""
        self._rows.hopped(self._numbers[server], self._message(message), domain, hop, sizes, None)
        self.add_sentence(f"{server} forwards {message} in domain {domain}")

    def deliver(self, process: str, message: str) -> None:
        self._rows.delivered(self._numbers[process], self._message(message), None)
        self._marks.append(Mark(process, DELIVER, message))
        self.delivered[process].append(message)
        self.add_sentence(f"{process} delivers {message}")

    def note(self, process: str, word: str) -> None:
        """Record a crash or a restart."""
        self._marks.append(Mark(process, "local", label=word))
        self.add_sentence(f"{process}: {word}")

    def judge(self) -> Judged | None:
        """Return a verdict about the trace: which orders (FIFO, causal order and others) it keeps. Return None if there
        are too many messages to judge."""
        if self._messages > _judged_messages_max:
            return None
        # An order that does not detect duplicates may deliver one; only the first delivery is judged.
        seen: set[tuple[str, str | None]] = set()
        rows = []
        for event in self.events:
            if event.kind == DELIVER and (event.process, event.message) in seen:
                event = msgspec.structs.replace(event, kind="local")
            elif event.kind == DELIVER:
                seen.add((event.process, event.message))
            rows.append(event)
        return judge(rows)

    def diagram(self, title: str = "") -> Diagram:
        """Return a drawing of all events. In the drawing, deliveries that break causal order are marked as late. If
        there are too many messages to judge, no delivery is marked."""
        verdict = self.judge()
        late = {(found.message, found.to) for found in verdict.causal} if verdict else set()
        return Diagram(self.processes, self._marks, late=late, title=title)


# The packets of a played scenario, and the state of each packet: flying, lost or arrived.
#
# A packet is *posted* when a process hands it to the network. It is *flying* until it arrives or is lost. In general, a
# statement of the script decides when a packet arrives or is lost. Only packets that are marked with ``mark_due`` need
# no further statement. A lost packet flies again when its link resends it. A statement may name a packet before the
# packet exists. The statement then waits until the packet is posted.


FLYING = "flying"
LOST = "lost"
ARRIVED = "arrived"


class Flight(msgspec.Struct, eq=False):
    """One packet from one process to another."""

    parcel: Parcel
    source: str
    sent: InTransit
    """The frame, its domain and its destination."""
    packet: Packet
    """The packet as the source's order handed it to the network."""
    state: str = LOST
    age: int = 0
    arrivals: int = 0

    @property
    def at(self) -> str:
        return self.sent.peer

    @property
    def ends(self) -> bool:
        """Whether this packet brings a message to the application of the process ``at``. This is False for a control
        packet, and for a copy that the process only forwards."""
        return self.packet.message is not None and self.at in letter_of(self.packet.message).to


Early = ArriveLine | LoseLine
"""A statement about a packet that is not posted yet."""


class Flights:
    """All packets of a scenario, in any state."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, str, str, int], Flight] = {}
        self._by_name: dict[tuple[Parcel, str], list[Flight]] = {}
        self._flying: dict[int, Flight] = {}
        self._ages = 0
        self._due: list[int] = []
        self.lost: dict[int, Flight] = {}
        self.early: dict[tuple[Parcel, str], deque[Early]] = {}

    def flying(self) -> list[Flight]:
        """Return the packets in transit, oldest first."""
        return list(self._flying.values())

    def __len__(self) -> int:
        return len(self._flying) + len(self.lost)

    def known(self, source: str, sent: InTransit) -> Flight | None:
        """Return the flight of this frame, if the frame has already been posted; otherwise None."""
        return self._all.get((sent.domain, source, sent.peer, sent.content.number))

    def add(self, flight: Flight) -> None:
        """Add a frame that is posted for the first time."""
        sent = flight.sent
        self._all[sent.domain, flight.source, sent.peer, sent.content.number] = flight
        self._by_name.setdefault((flight.parcel, flight.at), []).append(flight)

    def arrived_at(self, process: str) -> list[Flight]:
        """Return the packets that have arrived at a process."""
        return [flight for flight in self._all.values() if flight.at == process and flight.state == ARRIVED]

    def launch(self, flight: Flight) -> None:
        """Let a packet fly, for the first time or again."""
        self.lost.pop(flight.age, None)
        self._ages += 1
        flight.age = self._ages
        flight.state = FLYING
        self._flying[flight.age] = flight

    def land(self, flight: Flight, state: str) -> None:
        """End a flight: the packet has arrived, or is lost."""
        self._flying.pop(flight.age, None)
        self.lost.pop(flight.age, None)
        flight.state = state
        if state == LOST:
            self.lost[flight.age] = flight
        else:
            flight.arrivals += 1

    def mark_due(self, flight: Flight) -> None:
        """Mark a flying packet, so that ``next_due`` returns it. It then needs no further statement of the script."""
        heappush(self._due, flight.age)

    def next_due(self) -> Flight | None:
        """Return the oldest flying packet that ``mark_due`` has marked, and remove its mark. Return None if there is no
        such packet."""
        while self._due:
            flight = self._flying.get(heappop(self._due))
            if flight is not None:
                return flight
        return None

    def oldest(self) -> Flight | None:
        """Return the packet that has been flying for the longest time; None if no packet is flying."""
        return next(iter(self._flying.values()), None)

    def find(self, parcel: Parcel, at: str) -> Flight | None:
        """Return the packet with the name ``parcel`` that is flying to ``at``. If there are several, return the one
        that was posted first. Return None if there is no such packet."""
        return next((flight for flight in self._by_name.get((parcel, at), ()) if flight.state == FLYING), None)

    def landed(self, parcel: Parcel, at: str) -> Flight | None:
        """Return the packet with the name ``parcel`` that has arrived at ``at`` at least once. If there are several,
        return the one that was posted last. Return None if there is no such packet."""
        flights = self._by_name.get((parcel, at), [])
        return next((flight for flight in reversed(flights) if flight.arrivals), None)

    # Statements about packets that are not posted yet.

    def add_early(self, line: Early) -> None:
        """Keep a statement until its packet is posted."""
        self.early.setdefault((line.parcel, line.at), deque()).append(line)

    def awaited(self, at: str, before: float = inf) -> list[str]:
        """Return the names of the messages that are not posted yet, although an ``arrive`` statement already waits for
        them. ``at``: the process of the ``arrive`` statements. ``before``: only statements in lines with smaller
        numbers count."""
        return [
            parcel.message
            for (parcel, place), waiting in self.early.items()
            if place == at
            and parcel.kind == COPY
            and any(isinstance(line, ArriveLine) and line.line < before for line in waiting)
        ]

    def next_early(self, flight: Flight) -> Early | None:
        """Return the first statement that waits for this packet; None if no statement waits."""
        waiting = self.early.get((flight.parcel, flight.at))
        return waiting[0] if waiting else None

    def done_early(self, flight: Flight) -> None:
        """Remove the first statement that waits for this packet."""
        waiting = self.early[flight.parcel, flight.at]
        waiting.popleft()
        if not waiting:
            del self.early[flight.parcel, flight.at]

    def why_never(self, line: Early) -> str:
        """Return the reason why a statement still waits for its packet at the end of the scenario."""
        earlier = self.landed(line.parcel, line.at)
        name = f"{line.parcel} to {line.at}"
        if earlier is not None and earlier.state == ARRIVED:
            return f"{name} has already arrived, and is not put on the network again"
        if isinstance(line, ArriveLine) and line.again:
            return f"{name} cannot arrive again: it has not arrived before"
        if any(flight.at == line.at and flight.parcel == line.parcel for flight in self.lost.values()):
            return f"{name} was lost and not resent (let time pass with wait or drain)"
        return f"{name} is never put on the network"


# The programs of the processes in a scenario. A program consists of the ``send`` and ``receive`` statements of one
# process.
#
# A process is sequential. A send may come after an ``arrive`` of the same process in the file. If the arriving copy is
# not on the network yet, the send waits until the copy has arrived, because the send may be an answer to it. (For
# example, in Fig. 4 of Mattern and Fünfrocken a process receives a message y and then sends a message z. If a scenario
# file with this figure is played under the buffer protocol, the protocol puts y on the network late, and z waits for y.
# The result is their Fig. 6.)
#
# A process with ``receive`` statements takes messages only through these statements (Mattern and Fünfrocken, §4.1–4.2).
# A ``receive`` may be limited to one sender. Messages that have arrived wait until the process receives them. The order
# determines where they wait:
#
# * **In front of** an order that can judge a packet without accepting it (``selective``): the program gets the first
#   packet that the order would deliver *now*. This depends on the messages that the program has already received. For
#   example, under the matrix protocol a program may take a message while a message that arrived earlier still waits.
#   But if the message depends on another message to this process, the program must receive that other message first.
# * **Behind** any other order, in a queue, in the sequence in which the order delivers them. The program can take only
#   the first message of the queue. The buffer protocol, for example, has no information about dependencies, so it
#   cannot offer a choice. With domains, messages also wait in a queue: a router cannot choose, because processes in the
#   next domain wait for the messages that the router receives.
#
# A ``receive`` that finds no message waits, and all later statements of its program wait too. If nothing more can
# arrive, the program is blocked for ever. For example, a program may demand messages in a sequence that contradicts
# causal order. Then the programs cannot run to their end.


class Programs:
    """The remaining statements of each process, and the messages that have arrived and wait for a ``receive`` statement
    of the process."""

    def __init__(self, processes: Collection[str], receiving: Collection[str], selective: bool) -> None:
        self._waiting: dict[str, deque[SendLine | ReceiveLine]] = {process: deque() for process in processes}
        self._running: set[str] = set()
        self.choices: dict[str, dict[Flight, None]] = {process: {} for process in receiving if selective}
        """For each process: the packets that have arrived but that its order has not accepted yet, in the sequence of
        their arrivals. The program chooses among these packets."""
        self.queues: dict[str, deque[tuple[str, str]]] = {process: deque() for process in receiving if not selective}
        """For each process: the messages that its order has delivered but that its program has not received yet, each
        as (name, sender), in the sequence of the deliveries."""

    def add(self, process: str, line: SendLine | ReceiveLine) -> None:
        """Add the next statement of a process."""
        self._waiting[process].append(line)

    def run(self, process: str, perform: Callable[[SendLine | ReceiveLine], bool]) -> None:
        """Carry out the next statements of a process, until one must wait. ``perform`` tries to carry out one
        statement, and returns whether this was possible."""
        if process in self._running:
            return
        self._running.add(process)
        program = self._waiting[process]
        try:
            while program and perform(program[0]):
                program.popleft()
        finally:
            self._running.discard(process)

    def receiving(self) -> list[str]:
        """Return the processes that still have a ``receive`` statement to carry out."""
        return sorted(
            process
            for process, program in self._waiting.items()
            if any(isinstance(line, ReceiveLine) for line in program)
        )

    def choosing(self, flight: Flight) -> bool:
        """Return whether this packet has arrived and waits until a ``receive`` statement chooses it."""
        return flight in self.choices.get(flight.at, ())

    def choose(self, process: str, order: Order, source: str | None) -> Flight | None:
        """Remove and return the first packet that ``order`` would deliver now. If ``source`` is not None, only packets
        from ``source`` are considered. If there is no such packet, return None."""
        for flight in self.choices[process]:
            if source in (None, flight.source) and order.check(flight.packet) is Verdict.DELIVER:
                del self.choices[process][flight]
                return flight
        return None

    def take(self, process: str, source: str | None) -> str | None:
        """Remove the first message of the queue, and return its name. If ``source`` is not None, do this only if
        ``source`` is the sender of the message. Return None if no message was removed."""
        queue = self.queues[process]
        return queue.popleft()[0] if queue and source in (None, queue[0][1]) else None

    def kept(self, process: str) -> list[str]:
        """Return the names of the messages that wait for a process to receive them."""
        if process in self.choices:
            return [flight.parcel.message for flight in self.choices[process] if flight.packet.message]
        return [message for message, _ in self.queues.get(process, ())]


# The world of a scenario: simulated machines, and the packets between them. The script decides which packets move.
#
# Each process is a :class:`~antecede.simulator.machine.Machine` that runs the channel of real servers. If the file has
# ``domain`` lines, this channel forwards messages between domains. Otherwise all processes form one domain, and its
# order handles all copies, including those from a process to itself. ``--raw`` leaves the links out.
#
# Some packets arrive without a further statement, the oldest first: (1) control packets, unless the file says ``control
# manual``; (2) copies that a process only forwards, unless a later line names the copy and this process; (3) packets
# whose ``arrive`` line came before they were sent. Acknowledgements arrive immediately and are never visible.
#
# A process carries out its statements in sequence. So a send waits for all earlier ``arrive`` and ``receive`` lines of
# its process, except ``arrive`` lines of control packets.


class ScriptedWorld:
    """The machines of a scenario, the packets between them, and the remaining statements of each process."""

    def __init__(self, scenario: Scenario, override: OrderSpec | None = None, *, raw: bool = False) -> None:
        self.scenario = scenario
        self.raw = raw
        self.now = 0.0
        self.flights = Flights()
        self.record = Record(scenario.processes)
        self.sends: dict[str, SendLine] = {}
        self.posted: set[str] = set()
        """Messages of which at least one copy has left its sender or has been delivered."""
        self.refused: set[str] = set()
        self.may_refuse: set[str] = set()
        """Messages that the order may refuse, because the script has a line ``expect MESSAGE refused`` for them."""
        self.stops: dict[tuple[str, str], int] = {}
        """(message, process) → the number of the last ``arrive`` or ``lose`` line for a copy of this message at this
        process. Until the play reaches this line, the copy arrives only if a statement says so."""
        self._local = {
            (line.message, line.source)
            for line in scenario.statements
            if isinstance(line, SendLine) and line.source in line.to and scenario.domains
        }
        """The copies that a server sends to itself, as (message, server); empty without domains. They do not travel."""
        self._steps = 0
        self._subjects: dict[tuple[str, str], str] = {}
        """(domain, id of a message in the order of this domain) → the name of this message in the script."""
        domains = [Domain(domain.name, domain.servers) for domain in scenario.domains]
        self.routed = bool(domains)
        self.topology = Topology(domains or [Domain(FLAT, scenario.processes)], scenario.processes)
        default = override or scenario.order or parse("matrix")
        own = {domain.name: domain for domain in scenario.domains}
        self.specs: dict[str, OrderSpec] = {}
        for name, domain in self.topology.domains.items():
            line = own[name].line if name in own and own[name].order else scenario.order_line
            self.specs[name] = override or (own[name].order if name in own else None) or default
            try:
                self.specs[name].create(0, len(domain.servers))
            except OrderError as error:
                raise scenario.error(line, str(error)) from None
        channel = RoutedChannel if self.routed else FlatChannel
        self.machines = {
            name: Machine(name, self.topology, self.specs, channel, raw=raw) for name in scenario.processes
        }
        receiving = {line.process for line in scenario.statements if isinstance(line, ReceiveLine)}
        selective = not self.routed and default.kind.selective
        self.programs = Programs(scenario.processes, sorted(receiving), selective)

    @property
    def guarantees(self) -> frozenset[str]:
        """The guarantees that hold between all processes: those that the orders of all domains have in common. If there
        are several domains, only FIFO and causal order can be among them."""
        kept = frozenset.intersection(*(spec.guarantees() for spec in self.specs.values()))
        return kept & {"fifo", "causal"} if len(self.specs) > 1 else kept

    def spend(self, steps: int = 1) -> None:
        """Count steps of the play. Raise an error if there are too many, so that every play ends."""
        self._steps += steps
        if self._steps > limits.scenario_steps_max:
            raise self.scenario.error(
                self.record.line, f"too many steps: a play may take at most {limits.scenario_steps_max}"
            )

    # Sending.

    def send(self, line: SendLine) -> None:
        """Let a process send a message: now, or when the process has carried out its earlier statements."""
        if not self.machines[line.source].up:
            raise self.scenario.error(line.line, f"{line.source} is down and cannot send {line.message}")
        self.programs.add(line.source, line)
        self._run(line.source)

    def _send(self, line: SendLine) -> None:
        self.spend()
        self.sends[line.message] = line
        letter = Letter(line.message, line.source, line.to, "", b"")
        try:
            step = self.machines[line.source].step(lambda channel: send_by(channel, self.topology, letter), self.now)
        except UsageError as error:
            raise self.scenario.error(line.line, str(error)) from None
        except OrderError as error:
            self.refused.add(line.message)
            self.record.add_sentence(f"{line.message} is refused: {error}")
            if line.message not in self.may_refuse:
                raise self.scenario.error(line.line, str(error)) from None
            return
        if self.routed:
            # Its copies may leave in several domains, at different moments, but it is sent once.
            self.record.sent(line.source, line.message, line.to, [])
        self._carry_out(line.source, step)

    # Steps.

    def _carry_out(self, process: str, step: Step) -> None:
        posted: dict[tuple[str, int], deque[Packet]] = {}
        for domain, _, what in step.events:
            if isinstance(what, Asked):
                letter = letter_of(what.message)
                self._subjects[domain, what.message.id] = letter.id
                if letter.source != process:
                    hop = len(self.topology.route(letter.source, process)) - 1
                    self.record.hopped(process, letter.id, domain, hop, step.sizes(letter.id, domain))
            elif isinstance(what, Send):
                posted.setdefault((domain, what.packet.target), deque()).append(what.packet)
            elif isinstance(what, Sent) and not self.routed:
                letter = letter_of(what.message)
                self.record.sent(process, letter.id, letter.to, step.sizes(letter.id))
            elif isinstance(what, Delivered):
                self._deliver(process, what.letter)
        for sent in step.frames:
            target = self.topology.domains[sent.domain].servers.index(sent.peer)
            self._launch(process, sent, posted.get((sent.domain, target)))
        for sent in step.acks:
            if self.machines[sent.peer].up:
                self.machines[sent.peer].acknowledged(process, sent, self.now)

    def _deliver(self, process: str, letter: Letter) -> None:
        self.posted.add(letter.id)
        if process in self.programs.queues:
            self.programs.queues[process].append((letter.id, letter.source))
        else:
            self.record.deliver(process, letter.id)

    # Packets.

    def _launch(self, source: str, sent: InTransit, posted: "deque[Packet] | None") -> None:
        """Let a frame leave its source. If the frame is a resend, it travels only if it was lost before."""
        # Each step saves its links, with everything unacknowledged.
        self.spend(1 + self.machines[source].unacknowledged(sent.domain, sent.peer) // 50)
        flight = self.flights.known(source, sent)
        if flight is None:
            assert posted, "a new frame carries a packet of this step"
            packet = posted.popleft()
            name = self._subjects.get((sent.domain, packet.subject), "")
            parcel = Parcel(packet.kind, name, "" if packet.kind == COPY else source)
            flight = Flight(parcel, source, sent, packet)
            self.flights.add(flight)
            if packet.kind == COPY:
                self.posted.add(name)
        elif flight.state == FLYING:
            return
        elif flight.state == ARRIVED:
            self._remind(flight)
            return
        self.flights.launch(flight)
        if len(self.flights) > limits.scenario_packets_max:
            raise self.scenario.error(
                self.record.line,
                f"too many packets in transit or lost: expected at most {limits.scenario_packets_max} at a time",
            )
        if self._named_early(flight) or self._unattended(flight):
            self.flights.mark_due(flight)

    def _order(self, flight: Flight) -> Order:
        return self.machines[flight.at].channel.consumers[flight.sent.domain].order

    def _named_early(self, flight: Flight) -> ArriveLine | LoseLine | None:
        """Return the first statement that waits for a packet; None if there is none, or it is ``arrive … again``."""
        line = self.flights.next_early(flight)
        return None if isinstance(line, ArriveLine) and line.again else line

    def _remind(self, flight: Flight) -> None:
        """Let the receiver of a frame acknowledge the frame again, because the sender does not know that the frame has
        arrived. Do nothing if the receiver is down, or has not accepted the frame yet."""
        if self.machines[flight.at].up and not self.programs.choosing(flight):
            self._carry_out(flight.at, self._received(flight))

    def _received(self, flight: Flight) -> Step:
        return self.machines[flight.at].receive(flight.source, flight.sent, self.now)

    def _unattended(self, flight: Flight) -> bool:
        """Return whether a packet arrives without a statement of the script."""
        if flight.parcel.kind != COPY:
            return not self.scenario.manual
        stopped = self.stops.get((flight.parcel.message, flight.at), 0) > self.record.line
        return not stopped and not flight.ends

    def settle(self) -> None:
        """Process the packets that need no further statement, the oldest first. They arrive, or they are lost."""
        while flight := self.flights.next_due():
            self._proceed(flight)

    def _proceed(self, flight: Flight) -> None:
        """Let a packet arrive, unless an earlier line says that it is lost."""
        line = self._named_early(flight)
        if line is not None:
            self.flights.done_early(flight)
        if isinstance(line, LoseLine):
            self._lose(flight)
        else:
            self._arrive(flight)

    def arrive(self, line: ArriveLine) -> None:
        """Let a packet arrive now, or as soon as it is posted."""
        if (line.parcel.message, line.at) in self._local:
            return
        find = self.flights.landed if line.again else self.flights.find
        flight = find(line.parcel, line.at)
        if flight is None:
            self.flights.add_early(line)
        elif line.again:
            self._repeat(flight)
        else:
            self._arrive(flight)

    def lose(self, line: LoseLine) -> None:
        """Lose a packet now, or as soon as it is posted."""
        flight = self.flights.find(line.parcel, line.at)
        if flight is None:
            self.flights.add_early(line)
        else:
            self._lose(flight)

    def _lose(self, flight: Flight) -> None:
        self.flights.land(flight, LOST)
        self.record.add_sentence(f"{flight.parcel} to {flight.at} is lost")

    def _arrive(self, flight: Flight) -> None:
        self.spend()
        if not self.machines[flight.at].up:
            self._lose(flight)
            return
        self.flights.land(flight, ARRIVED)
        self._note_arrival(flight)
        if flight.at in self.programs.choices and self._order(flight).check(flight.packet) is not Verdict.DUPLICATE:
            self.programs.choices[flight.at][flight] = None
        else:
            self._hand(flight)
        self._run(flight.at)
        while isinstance(line := self.flights.next_early(flight), ArriveLine) and line.again:
            self.flights.done_early(flight)
            self._repeat(flight)
            # The next statement of the process has also waited for this arrival.
            self._run(flight.at)

    def _note_arrival(self, flight: Flight) -> None:
        parcel, at = flight.parcel, flight.at
        if parcel.kind != COPY:
            self.record.add_sentence(f"{parcel} arrives at {at}")
        elif flight.ends:
            self.record.arrived(at, parcel.message, self._order(flight).size(flight.packet))
        else:
            self.record.passed(at, parcel.message)

    def _hand(self, flight: Flight) -> None:
        """Let a machine receive a packet, and record whether the packet is held or dropped."""
        step = self._received(flight)
        verdicts = [event.what.verdict for event in step.events if isinstance(event.what, Received)]
        verdict = verdicts[0] if verdicts else Verdict.DUPLICATE
        if verdict is Verdict.HOLD and flight.parcel.kind == COPY:
            self.record.add_sentence(f"{flight.at} holds {flight.parcel}")
        elif verdict is Verdict.DUPLICATE:
            self.record.add_sentence(f"{flight.at} drops {flight.parcel}, a duplicate")
            self.record.dropped(flight.at, flight.parcel.message)
        self._carry_out(flight.at, step)

    def _repeat(self, flight: Flight) -> None:
        """Let the same frame arrive again."""
        if flight.state == LOST or self.raw:
            self._arrive(flight)
            return
        self.spend()
        if self.machines[flight.at].up:
            self._note_arrival(flight)
            if not self.programs.choosing(flight):
                self._hand(flight)

    def drain(self) -> None:
        """Let packets arrive, the oldest first, until no packet is in transit. Links resend lost packets."""
        while True:
            self.settle()
            while flight := self.flights.oldest():
                self._proceed(flight)
            if self.raw or not self._to_be_resent():
                return
            self._let_time_pass(min(self._deadlines()))

    def _to_be_resent(self) -> bool:
        self.spend(len(self.flights.lost))
        return any(
            self.machines[flight.source].up and self.machines[flight.at].up for flight in self.flights.lost.values()
        )

    # Time and crashes.

    def wait(self, seconds: float) -> None:
        """Let time pass. Links resend frames that were not acknowledged in time."""
        end = self.now + seconds
        while (due := self._deadlines()) and min(due) <= end:
            self._let_time_pass(min(due))
            self.settle()
        self.now = end

    def _deadlines(self) -> list[float]:
        return [due for machine in self._running() if (due := machine.deadline()) is not None]

    def _let_time_pass(self, until: float) -> None:
        self.now = max(self.now, until)
        self.spend(len(self.machines))
        for machine in self._running():
            deadline = machine.deadline()
            if deadline is not None and deadline <= self.now:
                self._carry_out(machine.name, machine.tick(self.now))

    def _running(self) -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.up]

    def crash(self, line: int, process: str) -> None:
        """Crash a process. It loses the packets that are not on its disk: packets that its order holds, and packets
        that have arrived but that its order has not accepted yet."""
        machine = self.machines[process]
        if not machine.up:
            raise self.scenario.error(line, f"{process} is already down")
        self.record.note(process, "crash")
        if process in self.programs.choices:
            self.programs.choices[process].clear()
        for flight in self.flights.arrived_at(process):
            if not self.raw and not machine.has_accepted(flight.source, flight.sent):
                self.flights.land(flight, LOST)
        machine.crash()

    def restart(self, line: int, process: str) -> None:
        """Restart a process with the state on its disk."""
        machine = self.machines[process]
        if machine.up:
            raise self.scenario.error(line, f"{process} is not down")
        self.record.note(process, "restart")
        self._carry_out(process, machine.restart(self.now))
        self._run(process)

    # Programs.

    def receive(self, line: ReceiveLine) -> None:
        """Let a process receive a message, when its earlier statements are done and a suitable message has come."""
        self.programs.add(line.process, line)
        self._run(line.process)

    def _run(self, process: str) -> None:
        if self.machines[process].up:
            self.programs.run(process, self._go_on)

    def _go_on(self, line: SendLine | ReceiveLine) -> bool:
        """Carry out the statement ``line``, unless its process must wait. Return whether ``line`` was carried out."""
        if isinstance(line, SendLine):
            ready = not self.flights.awaited(line.source, before=line.line)
            if ready:
                self._send(line)
            return ready
        self.spend()
        process = line.process
        if process in self.programs.choices:
            (order,) = self.machines[process].orders()
            flight = self.programs.choose(process, order, line.source)
            if flight is not None:
                self._hand(flight)
            return flight is not None
        message = self.programs.take(process, line.source)
        if message is not None:
            self.record.deliver(process, message)
        return message is not None

    # Questions of the player.

    def held(self, process: str) -> list[str]:
        """Return the messages that have arrived at a process, but that its application has not received yet."""
        machine = self.machines[process]
        orders = machine.orders() if machine.up else []
        found = [letter_of(message).id for order in orders for message in order.held()]
        found += self.programs.kept(process)
        self.spend(len(found))
        return found

    def unposted(self) -> list[str]:
        """Return the messages that an application has sent, but of which at least one copy has not left yet."""
        found: dict[str, None] = {}
        running = self._running()
        for machine in running:
            found.update((letter_of(m).id, None) for order in machine.orders() for m, _ in order.unposted())
            found.update((letter.id, None) for _, _, letter in machine.channel.returns.waiting)
        self.spend(len(found) + len(running))
        return list(found)

    def on_its_way(self) -> bool:
        """Return whether anything can still arrive at a process that is up."""
        flying = self.flights.flying()
        self.spend(len(flying))
        return any(self.machines[flight.at].up for flight in flying) or (not self.raw and self._to_be_resent())

    def blocked(self) -> list[str]:
        """Return the processes that wait for ever: they are up and have a ``receive`` to carry out, but nothing can
        arrive any more."""
        if self.on_its_way():
            return []
        return [process for process in self.programs.receiving() if self.machines[process].up]

    def stuck(self) -> bool:
        """Return whether a message (held or not posted) or a ``receive`` waits for ever, because nothing can arrive."""
        if self.on_its_way():
            return False
        holding = any(order.held() for machine in self._running() for order in machine.orders())
        return holding or bool(self.unposted()) or bool(self.blocked())

    def finish(self) -> None:
        """End the play. Raise an error if a statement still waits for its packet."""
        lines = [line for waiting in self.flights.early.values() for line in waiting]
        if lines:
            line = min(lines, key=lambda line: line.line)
            raise self.scenario.error(line.line, self.flights.why_never(line))

    def carry_out(self, statement: Statement) -> None:
        """Carry out one statement that is not an expectation."""
        match statement:
            case SendLine():
                self.send(statement)
            case ArriveLine():
                self.arrive(statement)
            case LoseLine():
                self.lose(statement)
            case ReceiveLine():
                self.receive(statement)
            case DrainLine():
                self.drain()
            case WaitLine():
                self.wait(statement.seconds)
            case CrashLine():
                self.crash(statement.line, statement.process)
            case RestartLine():
                self.restart(statement.line, statement.process)
            case _:
                raise AssertionError(statement)

    def check(self, statement: Expectation) -> "Failure | None":
        """Return why an expectation does not hold, or None if it does."""
        line = statement.line
        match statement:
            case ExpectDelivered(process=process, messages=messages):
                actual = self.record.delivered[process]
                self.spend(1 + len(messages))
                if list(messages) != actual:
                    return Failure(
                        line, f"{process} delivered {_list(messages)}", f"{process} delivered {_list(actual)}"
                    )
            case ExpectHolds(process=process, messages=messages):
                held = self.held(process) + self.flights.awaited(process)
                missing = [message for message in messages if message not in held]
                if missing:
                    already = [message for message in missing if message in self.record.delivered[process]]
                    why = f"; it has delivered {_list(already)}" if already else ""
                    return Failure(line, f"{process} holds {_list(messages)}", f"{process} holds {_list(held)}{why}")
            case ExpectNotSent(message=message):
                if message in self.posted:
                    source = self.sends[message].source
                    return Failure(line, f"{message} not sent", f"{message} has left {source}")
            case ExpectRefused(message=message):
                if message not in self.refused:
                    return Failure(line, f"{message} refused", f"{message} was not refused")
            case ExpectStuck():
                if not self.stuck():
                    return Failure(line, "stuck", self._why_not_stuck())
        return None

    def _why_not_stuck(self) -> str:
        flying = [f"{flight.parcel} to {flight.at}" for flight in self.flights.flying()]
        if flying:
            return f"in transit: {', '.join(flying[:_shown_names_max])}"
        return (
            "packets are still to be resent"
            if self.on_its_way()
            else "nothing is held or unposted, and no program waits"
        )


_shown_names_max = 40


class Failure(msgspec.Struct, frozen=True):
    """An expectation that does not hold."""

    line: int
    expected: str
    actual: str


class Played(msgspec.Struct):
    """One play of a scenario under one order."""

    world: ScriptedWorld
    checked: int
    """The number of expectations that applied and were checked."""
    skipped: int
    """The number of expectations that were skipped, because they apply only to other orders."""
    failures: list[Failure]

    @property
    def holds(self) -> bool:
        return not self.failures

    @property
    def order(self) -> str:
        """The name and options of the order of this play. Several orders are joined with ``+``."""
        return " + ".join(dict.fromkeys(map(str, self.world.specs.values())))


def play(scenario: Scenario, order: OrderSpec | None = None, *, raw: bool = False) -> Played:
    """Play a scenario under ``order``, or under the scenario's own order if ``order`` is None. If ``raw`` is true,
    there are no links: duplicates reach the order, and lost packets are not resent."""
    world = ScriptedWorld(scenario, order, raw=raw)
    result = Played(world, 0, 0, [])
    specs, kept = list(world.specs.values()), world.guarantees
    for statement in scenario.statements:
        if isinstance(statement, ArriveLine | LoseLine) and not statement.parcel.source:
            world.stops[statement.parcel.message, statement.at] = statement.line
        elif isinstance(statement, ExpectRefused) and statement.under.counts(specs, kept):
            world.may_refuse.add(statement.message)
    for statement in scenario.statements:
        world.record.line = statement.line
        try:
            if not isinstance(statement, Expectation):
                world.carry_out(statement)
                world.settle()
            elif statement.under.counts(specs, kept):
                result.checked += 1
                failure = world.check(statement)
                if failure is not None:
                    result.failures.append(failure)
            else:
                result.skipped += 1
        except ScenarioError:
            raise
        except AntecedeError as error:
            raise scenario.error(statement.line, str(error)) from None
    world.finish()
    return result


def _list(messages: Sequence[str]) -> str:
    if not messages:
        return "nothing"
    more = f" … ({len(messages)} in all)" if len(messages) > _shown_names_max else ""
    return " ".join(messages[:_shown_names_max]) + more

"""The world of a scenario: simulated machines, and the packets between them. The script decides which packets move.

Each process is a :class:`~antecede.simulator.machine.Machine` that runs the channel of real servers. If the file has
``domain`` lines, this channel forwards messages between domains. Otherwise all processes form one domain, and its order
handles all copies, including those from a process to itself. ``--raw`` leaves the links out.

Some packets arrive without a further statement, the oldest first: (1) control packets, unless the file says ``control
manual``; (2) copies that a process only forwards, unless a later line names the copy and this process; (3) packets
whose ``arrive`` line came before they were sent. Acknowledgements arrive immediately and are never visible.

A process carries out its statements in sequence. So a send waits for all earlier ``arrive`` and ``receive`` lines of
its process, except ``arrive`` lines of control packets (:mod:`antecede.simulator.programs`).
"""

from collections import deque

from antecede import limits
from antecede.channel import Letter
from antecede.errors import OrderError, UsageError
from antecede.messages import COPY, Packet, Send, Sent, Verdict
from antecede.orders import OrderSpec, parse
from antecede.orders.contract import Order
from antecede.simulator.flights import ARRIVED, FLYING, LOST, Flight, Flights
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
from antecede.simulator.programs import Programs
from antecede.simulator.record import Record
from antecede.simulator.statements import ArriveLine, LoseLine, Parcel, ReceiveLine, Scenario, SendLine
from antecede.topology import Domain, Topology


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

"""The world of a scenario: processes on a stage on which nothing moves unless the script says so.

Each server has one :class:`~antecede.simulator.node.Node` in each of its domains; a file without ``domain`` lines is
one domain of all processes. A message is sent in the source's domains; whenever a node delivers one that has further
to go, it is sent on in the next domains **in the same step**: a router forwards in the order of its deliveries.

Three kinds of packets arrive without a statement of their own, oldest first: control packets (unless the file says
``control manual``), copies on a detour at whom no later line stops them, and packets about which the script has spoken
before they were posted. Acknowledgements of links are below all this: they arrive at once and are never seen.

A process is sequential: its sends wait behind an arrival that the script has named and that is not there yet, and
behind a ``receive`` that finds nothing (:mod:`antecede.simulator.programs`).
"""

import msgspec

from antecede import limits
from antecede.errors import OrderError, TopologyError
from antecede.link import Frame
from antecede.messages import COPY, Deliver, Message, Sent, Verdict, mask_of
from antecede.orders import OrderSpec, parse
from antecede.simulator.air import AIR, ARRIVED, LOST, Air, Flight
from antecede.simulator.bare import BareNode
from antecede.simulator.mailbox import blocked
from antecede.simulator.node import Node, Step, ToPeer
from antecede.simulator.programs import Programs
from antecede.simulator.record import Record
from antecede.simulator.statements import ArriveLine, LoseLine, ReceiveLine, Scenario, SendLine
from antecede.topology import Domain, Hop, Topology


class Journey(msgspec.Struct):
    """A message on its way through the domains."""

    source: str
    to: tuple[str, ...]
    hops: dict[str, list[Hop]]
    sent: bool = False
    posted: bool = False


class Stage:
    """Nodes, what is in the air between them, and what each process has still to do."""

    def __init__(self, scenario: Scenario, override: OrderSpec | None = None, *, raw: bool = False) -> None:
        self.scenario = scenario
        self.raw = raw
        self.now = 0.0
        self.air = Air()
        self.record = Record(scenario.processes)
        self.journeys: dict[str, Journey] = {}
        self.refused: set[str] = set()
        self.may_refuse: set[str] = set()
        """Messages of which the script expects that the order refuses them."""
        self.stops: dict[tuple[str, str], int] = {}
        """The last line that names a copy at a process: until then it can be stopped there."""
        self._steps = 0
        domains = [Domain(domain.name, domain.servers) for domain in scenario.domains]
        self.routed = bool(domains)
        self.topology = Topology(domains or [Domain("", scenario.processes)], scenario.processes)
        default = override or scenario.order or parse("matrix")
        own = {domain.name: domain for domain in scenario.domains}
        self.specs: dict[str, OrderSpec] = {}
        self.nodes: dict[tuple[str, str], Node] = {}
        for name, domain in self.topology.domains.items():
            line = own[name].line if name in own and own[name].order else scenario.order_line
            spec = override or (own[name].order if name in own else None) or default
            self.specs[name] = spec
            try:
                for me, server in enumerate(domain.servers):
                    members = len(domain.servers)
                    self.nodes[server, name] = BareNode(spec, me, members) if raw else Node(spec, me, members)
            except OrderError as error:
                raise scenario.error(line, str(error)) from None
        receiving = {line.process for line in scenario.statements if isinstance(line, ReceiveLine)}
        selective = not self.routed and default.kind.selective
        self.programs = Programs(scenario.processes, sorted(receiving), selective)

    @property
    def guarantees(self) -> frozenset[str]:
        """What this world keeps end to end: the weakest of its orders, and across domains neither total nor more."""
        kept = frozenset.intersection(*(spec.guarantees() for spec in self.specs.values()))
        return kept & {"fifo", "causal"} if len(self.specs) > 1 else kept

    def spend(self, steps: int = 1) -> None:
        """Count work, so that no file can make a play endless."""
        self._steps += steps
        if self._steps > limits.scenario_steps_max:
            raise self.scenario.error(
                self.record.line, f"too much happens: a play takes at most {limits.scenario_steps_max} steps"
            )

    # Sending.

    def send(self, line: SendLine) -> None:
        """The application sends, or will once its program gets there."""
        if not self._up(line.source):
            raise self.scenario.error(line.line, f"{line.source} is down and cannot send {line.message}")
        self.programs.add(line.source, line)
        self._run(line.source)

    def _send(self, line: SendLine) -> None:
        self.spend()
        try:
            hops = self.topology.hops(line.source, line.to)
            self.journeys[line.message] = Journey(line.source, line.to, hops, sent=self.routed)
            if self.routed:
                # Its copies may leave in several domains, each at its order's own moment; it is sent once.
                self.record.sent(line.source, line.message, line.to, None)
            for hop in hops.get(line.source, []):
                self._post(line.source, hop, line.message)
        except TopologyError as error:
            raise self.scenario.error(line.line, str(error)) from None
        except OrderError as error:
            self.refused.add(line.message)
            self.record.tell(f"{line.message} is refused: {error}")
            if line.message not in self.may_refuse:
                raise self.scenario.error(line.line, str(error)) from None

    def _post(self, server: str, hop: Hop, message: str) -> None:
        """Send a message in one domain, towards its next servers there."""
        servers = self.topology.domains[hop.domain].servers
        node = self.nodes[server, hop.domain]
        to = mask_of(servers.index(target) for target in hop.targets)
        step = node.send(Message(message, node.me, to), self.now)
        journey = self.journeys[message]
        if server != journey.source:
            number = len(self.topology.route(journey.source, server)) - 1
            self.record.hopped(server, message, hop.domain, number, self._stamp_bytes(node, step, message))
        self._carry_out(server, hop.domain, step)

    # Effects.

    def _carry_out(self, server: str, domain: str, step: Step) -> None:
        servers = self.topology.domains[domain].servers
        node = self.nodes[server, domain]
        for output in [*step.leaked, *step.outputs]:
            if isinstance(output, ToPeer):
                target = servers[output.peer]
                if isinstance(output.content, Frame):
                    self._launch(server, domain, node.me, target, output.content)
                elif (peer := self.nodes[target, domain]).up:
                    peer.acknowledged(node.me, output.content, self.now)
            elif isinstance(output, Sent):
                journey = self.journeys[output.message.id]
                if server == journey.source and not journey.sent:
                    journey.sent = True
                    size = self._stamp_bytes(node, step, output.message.id)
                    self.record.sent(server, output.message.id, journey.to, size)
            else:
                assert isinstance(output, Deliver)
                self._deliver(server, output.message)

    def _stamp_bytes(self, node: Node, step: Step, message: str) -> int | None:
        """The mean size of the stamps of a message's copies, if some leave in this step."""
        frames = [o.content for o in step.outputs if isinstance(o, ToPeer) and isinstance(o.content, Frame)]
        sizes = [node.order.size(f.body) for f in frames if f.body.kind == COPY and f.body.subject == message]
        return round(sum(sizes) / len(sizes)) if sizes else None

    def _deliver(self, server: str, message: Message) -> None:
        """A node delivers: send it on, and give it to the application if it is meant for this server."""
        journey = self.journeys[message.id]
        if server != journey.source:
            for hop in journey.hops.get(server, []):
                self._post(server, hop, message.id)
        if server not in journey.to:
            return
        if self.programs.queues(server):
            self.programs.keep_message(server, message, journey.source)
        else:
            self.record.deliver(server, message.id)

    # The air.

    def _launch(self, server: str, domain: str, peer: int, target: str, frame: Frame) -> None:
        """A frame leaves; one that is known is a resend, and matters only if the first is lost."""
        # Each step of a node saves its links, with all that is not acknowledged.
        links = self.nodes[server, domain].links
        self.spend(1 + links[self.topology.domains[domain].servers.index(target)].unacknowledged // 50)
        flight = self.air.known(domain, server, target, frame.number)
        if flight is None:
            flight = self.air.add(domain, server, peer, target, frame)
            if flight.parcel.kind == COPY:
                self.journeys[flight.parcel.message].posted = True
        elif flight.state == AIR:
            return
        elif flight.state == ARRIVED:
            self._remind(flight)
            return
        self.air.launch(flight)
        if len(self.air) + len(self.air.lost) > limits.scenario_air_packets_max:
            raise self.scenario.error(
                self.record.line, f"more than {limits.scenario_air_packets_max} packets are on their way or lost"
            )
        if self._spoken_of(flight) or self._unattended(flight):
            self.air.hurry(flight)

    def _spoken_of(self, flight: Flight) -> ArriveLine | LoseLine | None:
        """What the script has already said of a packet that it has not seen arrive."""
        promise = self.air.promised(flight)
        return None if isinstance(promise, ArriveLine) and promise.again else promise

    def _remind(self, flight: Flight) -> None:
        """The sender does not know that this has arrived; the link there tells it, if it may."""
        node = self.nodes[flight.at, flight.domain]
        if node.up and not self.programs.keeps(flight.at, flight.packet):
            self._carry_out(flight.at, flight.domain, node.receive(flight.peer, flight.frame, self.now))

    def _unattended(self, flight: Flight) -> bool:
        """Does it arrive without a statement of the script?"""
        if flight.parcel.kind != COPY:
            return not self.scenario.manual
        stopped = self.stops.get((flight.parcel.message, flight.at), 0) > self.record.line
        return flight.at not in self.journeys[flight.parcel.message].to and not stopped

    def settle(self) -> None:
        """Let everything arrive that needs no statement, oldest first."""
        while flight := self.air.next_due():
            self._proceed(flight)

    def _proceed(self, flight: Flight) -> None:
        """It arrives, unless the script said before it was posted that it is lost."""
        promise = self._spoken_of(flight)
        if promise is not None:
            self.air.keep(flight)
        if isinstance(promise, LoseLine):
            self._lose(flight)
        else:
            self._arrive(flight)

    def arrive(self, line: ArriveLine) -> None:
        """A packet arrives now, or as soon as it is posted."""
        flight = self.air.landed(line.parcel, line.at) if line.again else self.air.find(line.parcel, line.at)
        if flight is None:
            self.air.promise(line)
        elif line.again:
            self._repeat(flight)
        else:
            self._arrive(flight)

    def lose(self, line: LoseLine) -> None:
        """A packet is lost now, or as soon as it is posted."""
        flight = self.air.find(line.parcel, line.at)
        if flight is None:
            self.air.promise(line)
        else:
            self._lose(flight)

    def _lose(self, flight: Flight) -> None:
        self.air.land(flight, LOST)
        self.record.tell(f"{flight.parcel} to {flight.at} is lost")

    def _arrive(self, flight: Flight) -> None:
        self.spend()
        node = self.nodes[flight.at, flight.domain]
        if not node.up:
            self._lose(flight)
            return
        self.air.land(flight, ARRIVED)
        self._note_arrival(flight, node)
        if self.programs.chooses(flight.at) and node.order.check(flight.packet) is not Verdict.DUPLICATE:
            self.programs.keep_packet(flight.at, flight)
        else:
            self._hand(flight)
        self._run(flight.at)
        while isinstance(promise := self.air.promised(flight), ArriveLine) and promise.again:
            self.air.keep(flight)
            self._repeat(flight)
            # What the process does next has waited for this arrival, too.
            self._run(flight.at)

    def _note_arrival(self, flight: Flight, node: Node) -> None:
        parcel, at = flight.parcel, flight.at
        if parcel.kind != COPY:
            self.record.tell(f"{parcel} arrives at {at}")
        elif at in self.journeys[parcel.message].to:
            self.record.arrived(at, parcel.message, node.order.size(flight.packet))
        else:
            self.record.passed(at, parcel.message)

    def _hand(self, flight: Flight) -> None:
        """Hand a packet to its node: through the link to the order."""
        step = self.nodes[flight.at, flight.domain].receive(flight.peer, flight.frame, self.now)
        if step.verdict is Verdict.HOLD and flight.parcel.kind == COPY:
            self.record.tell(f"{flight.at} holds {flight.parcel}")
        elif step.verdict is Verdict.DUPLICATE:
            self.record.tell(f"{flight.at} drops {flight.parcel}, a duplicate")
        self._carry_out(flight.at, flight.domain, step)

    def _repeat(self, flight: Flight) -> None:
        """The very same frame arrives once more."""
        if flight.state == LOST or self.raw:
            self._arrive(flight)
            return
        self.spend()
        node = self.nodes[flight.at, flight.domain]
        if node.up:
            self._note_arrival(flight, node)
            if not self.programs.keeps(flight.at, flight.packet):
                self._hand(flight)

    def drain(self) -> None:
        """Everything arrives, oldest first, until quiet; links resend what was lost."""
        while True:
            self.settle()
            while flight := self.air.oldest():
                self._proceed(flight)
            if self.raw or not self._to_be_resent():
                return
            due = [deadline for node in self._ups() if (deadline := node.deadline()) is not None]
            self._let_time_pass(min(due))

    def _to_be_resent(self) -> bool:
        self.spend(len(self.air.lost))
        return any(
            self.nodes[flight.source, flight.domain].up and self.nodes[flight.at, flight.domain].up
            for flight in self.air.lost.values()
        )

    # Time and crashes.

    def wait(self, seconds: float) -> None:
        """Time passes; links resend what is overdue."""
        end = self.now + seconds
        while True:
            due = [deadline for node in self._ups() if (deadline := node.deadline()) is not None]
            if not due or min(due) > end:
                break
            self._let_time_pass(min(due))
            self.settle()
        self.now = end

    def _let_time_pass(self, until: float) -> None:
        self.now = max(self.now, until)
        self.spend(len(self.nodes))
        for (server, domain), node in self.nodes.items():
            deadline = node.deadline()
            if node.up and deadline is not None and deadline <= self.now:
                self._carry_out(server, domain, node.tick(self.now))

    def _ups(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.up]

    def _up(self, server: str) -> bool:
        return all(node.up for _, node in self._of(server))

    def _of(self, server: str) -> list[tuple[str, Node]]:
        return [(domain, self.nodes[server, domain]) for domain in self.topology.domains_of(server)]

    def crash(self, line: int, process: str) -> None:
        """Lose what is not on disk: held packets, and what waits to be received."""
        if not self._up(process):
            raise self.scenario.error(line, f"{process} is down already")
        self.record.fate(process, "crash")
        gone = self.programs.forget(process)
        for _, node in self._of(process):
            for packet in [*gone, *node.order.held_packets()]:
                self.air.land(self.air.carrying(packet), LOST)
            gone = []
            node.crash()

    def restart(self, line: int, process: str) -> None:
        """Come back from disk."""
        if self._up(process):
            raise self.scenario.error(line, f"{process} is not down")
        self.record.fate(process, "restart")
        for domain, node in self._of(process):
            self._carry_out(process, domain, node.restart(self.now))
        self._run(process)

    # Programs.

    def receive(self, line: ReceiveLine) -> None:
        """The application receives, or will once its program gets there and something suitable has come."""
        self.programs.add(line.process, line)
        self._run(line.process)

    def _run(self, process: str) -> None:
        if self._up(process):
            self.programs.run(process, self._go_on)

    def _go_on(self, line: SendLine | ReceiveLine) -> bool:
        """Carry out the next statement of a program, if it need not wait."""
        if isinstance(line, SendLine):
            ready = not self.air.awaited(line.source, before=line.line)
            if ready:
                self._send(line)
            return ready
        self.spend()
        process = line.process
        if self.programs.chooses(process):
            ((domain, node),) = self._of(process)
            servers = self.topology.domains[domain].servers
            flight = self.programs.choose(process, node.order, servers.index(line.source) if line.source else None)
            if flight is not None:
                self._hand(flight)
            return flight is not None
        message = self.programs.next_message(process, line.source)
        if message is not None:
            self.record.deliver(process, message.id)
        return message is not None

    # What can be seen from the seats.

    def held(self, process: str) -> list[str]:
        """Messages that have arrived at a process and wait there."""
        found = [message.id for _, node in self._of(process) if node.up for message in node.order.held()]
        found += [message.id for message in self.programs.kept(process)]
        self.spend(len(found))
        return found

    def unposted(self) -> list[str]:
        """Messages that are sent and of which a copy has not left."""
        nodes = self._ups()
        found = dict.fromkeys(message.id for node in nodes for message, _ in node.order.unposted())
        self.spend(len(found) + len(nodes))
        return list(found)

    def on_its_way(self) -> bool:
        """Can anything still arrive at a process that is up?"""
        flying = self.air.flying()
        self.spend(len(flying))
        return any(self.nodes[flight.at, flight.domain].up for flight in flying) or (
            not self.raw and self._to_be_resent()
        )

    def blocked(self) -> list[str]:
        """Processes whose program waits in a receive that nothing will ever end."""
        waiting = [process for process in self.programs.waiting() if self._up(process)]
        return blocked(waiting, self.on_its_way())

    def stuck(self) -> bool:
        """Nothing can arrive any more, and something is held, not posted, or waited for."""
        if self.on_its_way():
            return False
        holding = any(node.order.held() for node in self._ups())
        return holding or bool(self.unposted()) or bool(self.blocked())

    def finish(self) -> None:
        """The end of the file: every packet that it speaks of must have been there."""
        lines = [line for waiting in self.air.promises.values() for line in waiting]
        if lines:
            line = min(lines, key=lambda line: line.line)
            raise self.scenario.error(line.line, self.air.why_never(line))

"""The agent server: one state machine, ``step(inputs) → record and effects`` (Laumay et al. §3 and §5).

An arriving message passes through these parts: link → order (one per domain) → hop → mailbox → engine.
A step processes inputs, one after the other, then stamps all messages that it sends. It returns **one record** of the
accepted inputs. The caller appends this record to the log. The effects (messages and replies) are sent when this and
all earlier records are durable: *persist, then send, then acknowledge*. But a handler may get a letter before the
letter's record is durable. This is safe: the results of the handler are in the same record or in a later one.

After a crash, a new state machine loads the newest snapshot and replays the later records. ``replay(record)`` leads to
the same state, with the same stamps on the same frames. Frames that were not acknowledged are then resent.

**Exactly once.** One record stores that a frame was accepted, and that its packet was delivered or forwarded. Also, one
record has all results of a handler: sent messages, the agent's new state, and the letter's removal from the mailbox.
A client numbers its publishes 1, 2, 3 … without gaps. The server answers a repeated publish, but does not send its
message again. After a refusal, the server ignores the client's later publishes. The client sends these again with new
numbers, or reports them as failed.

The machine does no I/O, and uses no clock and no randomness. Its caller passes two times: ``now``, in seconds, for
resends and timers (see :mod:`antecede.server.clock`), and ``clock_ms``, the wall clock in milliseconds.
"""

from collections.abc import Iterable

import msgspec

from antecede.channel import Channel
from antecede.channel.consumer import Taken
from antecede.channel.letters import Letter, body_fault, envelope_fault
from antecede.engine import Engine, Outbound, Question, Timeout, name_of
from antecede.errors import OverloadError, UsageError
from antecede.objects.calls import Calls, deadline_of, is_call, unfit
from antecede.objects.replicas import Row
from antecede.server.arrivals import take_from_peer
from antecede.server.backlog import Backlog, backlog_of
from antecede.server.begun import begun_letters
from antecede.server.clock import Clock, Timers
from antecede.server.inputs import Accepted, Denied, FromPeer, Look, Plan, Refused, Step
from antecede.server.items import (
    LIFE_NUMBERS,
    Applied,
    Began,
    Clocked,
    Done,
    Enacted,
    Expired,
    Fired,
    Forgot,
    Handled,
    Item,
    Organising,
    Published,
    PublishedMany,
    Reacted,
    Resumed,
    Truncated,
    decode_record,
    enacted_items,
    encode_record,
)
from antecede.server.organisation import Organisation, client_address
from antecede.server.rare_items import apply_rare
from antecede.server.requests import REQUESTS, Request, settings_items
from antecede.server.snapshots import encode_state, packed, state_of
from antecede.server.truncations import Truncations
from antecede.topology import Mailboxes

__all__ = ["CATCHING_UP", "Accepted", "AgentServer", "Denied", "FromPeer", "Plan", "Refused", "Step"]
CATCHING_UP = "the server is catching up: try again later"
Input = FromPeer | Published | PublishedMany | Denied | Done | Request | Applied


class AgentServer:
    """The state machine of one server: its whole state, and the steps that change this state."""

    def __init__(self, name: str, plan: Plan, incarnation: int) -> None:
        self.name = name
        self.plan = plan
        self.incarnation = incarnation
        self.epoch = ""
        """The epoch of the topology in force (a hash of the topology); empty if unknown."""
        self.organisation = Organisation()
        self.channel = Channel(name, plan.topology, plan.orders, plan.homes, incarnation, plan.resend_after, plan.moved)
        self.engine = Engine(plan.mailboxes, plan.homes)
        self.calls = Calls(self.channel, f"{name}.{incarnation & 0xFFFFFF:06x}.")
        self.clients: dict[str, int] = {}
        """The clients of this server, and the number of the last accepted publish of each."""
        self.timers = Timers(self.engine.footprint)
        self.stopped: dict[tuple[str, str], str] = {}
        """The stopped links: (domain, peer) → reason (:mod:`antecede.server.arrivals`)."""
        self.kept = True
        """True if records are stored. If not (durability ``memory``), they are not even encoded."""
        self.overloaded, self.overload = False, CATCHING_UP
        """True if publishes are refused, and why: too much data waits, the disk is almost full, or the server stops."""
        self.clock, self.truncations = Clock(), Truncations()
        self._multicasts = 0
        """The number of sends to several destinations in this step. A batch of publishes counts as one send."""
        self.items: list[Item] = []
        self.channel.record_into(self.items)
        self._numbers = 0
        self._prefix = f"{name}.{incarnation & 0xFFFFFF:06x}."
        self._replies: list[Accepted | Refused] = []
        self.faults: list[tuple[str, str, str]] = []
        """The errors that peers made in this step, each as (domain, peer, reason)."""

    def step(self, inputs: list[Input], now: float, clock_ms: int, acknowledge: bool = True) -> Step:
        """Process inputs and end the step. If ``acknowledge`` is false, a later step acknowledges received frames."""
        self.take(inputs, now, clock_ms)
        return self.seal(now, clock_ms, acknowledge)

    def take(self, inputs: list[Input], now: float, clock_ms: int) -> None:
        """Take inputs and fire timers. The step ends when ``seal`` is called. Before that, ``take`` may be called again
        with the results of handlers that have run in this step. These results become part of the same record."""
        engine, site = self.engine, self.calls.site
        for given in inputs:
            self._take(given, now, clock_ms)
        if site is not None or self.timers.alarms:
            self._ring(now, self.clock.at(now, clock_ms))
        if engine.quotas.crowded and not engine.quotas.crowded.isdisjoint(engine.ready):
            self._request(Look(), now, clock_ms)

    def _ring(self, now: float, clock_ms: int) -> None:
        """End the calls whose deadline has passed, and fire the timers whose time has come."""
        if self.calls.site is not None and (self.calls.alarm_ms() or clock_ms + 1) <= clock_ms:
            self._do(Expired(clock_ms), now)
        if self.timers.alarms and (due_timers := self.timers.due(clock_ms)):
            self._do(Fired(due_timers), now)

    def seal(self, now: float, clock_ms: int, acknowledge: bool = True) -> Step:
        """End the step: stamp the messages that it sends, and return its record and effects."""
        items, channel = self.items, self.channel
        channel.flush(now)
        if self.calls.site is not None:
            self.calls.settle(now)
            self.collect()
            items += enacted_items(*self.calls.record(), self.clock.at(now, clock_ms))
        elif channel.arrived or channel.lost or channel.faults:
            self.collect()
        # A step owns its lists, even the empty ones: the next step must not add to lists that were handed out.
        replies, faults, self._replies, self.faults = self._replies, self.faults, [], []
        record = None
        if items:
            if self.kept:
                server_ms = self.clock.at(now, clock_ms)
                if self.clock.differs(server_ms, clock_ms):
                    items.insert(0, self.clock.set(Clocked(server_ms, clock_ms)))
                record = encode_record(items, self._multicasts > 1)
            items.clear()
        self._multicasts = 0
        due = self.engine.due() if self.engine.ready else []
        return Step(record, channel.leaving(now, acknowledge), replies, due, faults)

    def begin(self, epoch: str, cuts: Iterable[Truncated] = ()) -> bytes:
        """Make, apply and return the first record of a new log. ``cuts``: incomplete writes that recovery removed."""
        return self.note([Began(self.name, epoch), *settings_items(self, cuts=cuts)])

    def note(self, items: list[Item]) -> bytes:
        """Apply these items, and return them as one record. A server calls this at its start, for its first record."""
        for item in items:
            self._apply(item, 0.0)
        return encode_record(items)

    def organise(self, plan: Plan, kept: list[str]) -> None:
        """Use a new plan from now on. Domains in ``kept`` keep their state; all other domains get a new state."""
        self.plan = plan
        self.channel.organise(plan.topology, plan.orders, plan.homes, plan.moved, kept)
        self.engine.homes = plan.homes
        self.engine.quotas.use(plan.mailboxes)

    def limit(self, mailboxes: Mailboxes) -> None:
        """Use new settings of mailboxes from now on."""
        self.plan = msgspec.structs.replace(self.plan, mailboxes=mailboxes)
        self.engine.quotas.use(mailboxes)

    def replay(self, record: bytes, now: float) -> None:
        """Apply a record of the log again. If messages of this record were not acknowledged, they are resent later."""
        enacted: list[Row] = []
        for item in decode_record(record):
            if isinstance(item, Taken):
                self.channel.take(item, now)
                self.collect()
            elif isinstance(item, Enacted):
                enacted = item.rows
            else:
                self._apply(item, now)
        self.channel.flush(now)
        self.calls.settle(now)
        self.collect()
        self.calls.compare(enacted)
        self.channel.forget_leaving()
        self.items.clear()
        self._replies, self.faults, self._multicasts = [], [], 0

    def begin_life(self, life: int) -> None:
        """Begin a *life* (one run of the server's process). Call this after the replay. From then on, a hello
        (:class:`antecede.link.Hello`) has ``life`` and the number of frames sent before this life."""
        self.channel.begin_life(life)

    def alarm_ms(self) -> int | None:
        """Return the server time of the next timer or call deadline (the earlier one), or None if there is neither."""
        timer = self.timers.alarms[0][0] if self.timers.alarms else None
        call = None if self.calls.site is None else self.calls.alarm_ms()
        return timer if call is None else call if timer is None else min(timer, call)

    # Inputs.

    def _take(self, given: Input, now: float, clock_ms: int) -> None:
        kind = type(given)
        if kind is FromPeer:
            take_from_peer(self, given, now)  # type: ignore[arg-type]
        elif isinstance(given, Done):
            if self.engine.expects(given.agent, given.letters):
                at = given.clock_ms or self.clock.at(now, clock_ms)
                self._do(given if given.clock_ms else msgspec.structs.replace(given, clock_ms=at), now)
        elif kind is Published or kind is PublishedMany:
            self._publish(given, now, clock_ms)  # type: ignore[arg-type]
        elif kind is Denied:
            self._replies += given.replies(self.clients.get(given.client, 0))  # type: ignore[union-attr]
        elif kind in REQUESTS:
            self._request(given, now, clock_ms)
        else:
            if kind is Forgot:
                # Acknowledgements are not in the log, so the record contains what was not acknowledged.
                again = self.channel.consumers[given.domain].unsettled()  # type: ignore[union-attr]
                given = Forgot(given.domain, given.generation, again)  # type: ignore[union-attr]
            self._do(given, now)  # type: ignore[arg-type]

    def _publish(self, given: Published | PublishedMany, now: float, clock_ms: int) -> None:
        last = self.clients.get(given.client, 0)
        bodies = given.bodies if isinstance(given, PublishedMany) else [given.body]
        count = len(bodies)
        if given.number + count - 1 <= last:
            self._replies.append(Accepted(given.client, last))
            return
        if given.number > last + 1:
            return  # An earlier publish was refused: the client is informed, and returns with new numbers.
        if given.number <= last and isinstance(given, PublishedMany):
            given = given.without(last + 1 - given.number)
            bodies = given.bodies
        try:
            to = self._reachable(given.to, given.type, bodies)
        except (OverloadError, UsageError) as refusal:
            how = (str(refusal), len(bodies), isinstance(refusal, OverloadError), refusal.code)
            self._replies.append(Refused(given.client, given.number, *how))
            return
        if to is not given.to:
            given = msgspec.structs.replace(given, to=to)
        if given.begun:
            address = client_address(self, given.client)
            begun = begun_letters(self.engine, address, given.begun, self.clock.at(now, clock_ms))
            given = msgspec.structs.replace(given, begun=begun)
        if self.calls.site is not None and is_call(given.to) and isinstance(given, Published):
            given = msgspec.structs.replace(given, deadline_ms=deadline_of(given.body, self.clock.at(now, clock_ms)))
        self._do(given, now)

    def _do(self, item: Item, now: float) -> None:
        self.items.append(item)
        self._apply(item, now)

    def _request(self, given: Input, now: float, clock_ms: int) -> None:
        for item in REQUESTS[type(given)](self, given, self.clock.at(now, clock_ms)):
            self._do(item, now)

    def _reachable(self, to: tuple[str, ...], kind: str, bodies: list[bytes]) -> tuple[str, ...]:
        """Return the destinations of a publish. Raise an error if the publish is wrong, or cannot be accepted now."""
        if self.overloaded or self.organisation.closed:
            raise OverloadError(self.overload if self.overloaded else self.organisation.closed)
        if fault := body_fault(max(map(len, bodies))) or envelope_fault(to, kind):
            raise UsageError(fault)
        to = self.channel.check(to)
        if self.calls.site is not None and is_call(to):
            self.calls.check(bodies)
        elif self.engine.quotas.settings.refusing:
            self.engine.check_room(self.channel.local(to), bodies)
        return to

    def _apply(self, item: Item, now: float) -> None:
        """Carry out the effect of an item, in a live step or in a replay of the log."""
        if isinstance(item, Handled):
            self.clock.passed(item.clock_ms)
            self.engine.finish_plainly(item.agent, item.letters, item.state, item.clock_ms)
        elif isinstance(item, Reacted):
            self._apply_reaction(item, now)
        elif isinstance(item, Published):
            self.clients[item.client] = item.number
            ask = item.asked or (f"?{item.number}" if item.ask else "")
            source = item.source or client_address(self, item.client)
            call = bool(item.deadline_ms) and is_call(item.to)
            self._note_begun(item)
            if call:
                self._call(source, item, ask, item.deadline_ms, now)
            else:
                self._send(source, item, ask=ask, replays=item.replays)
            self._replies.append(Accepted(item.client, item.number, call and bool(ask)))
        elif isinstance(item, PublishedMany):
            self._apply_many(item)
        elif isinstance(item, Fired):
            for agent, letter in self.timers.fire(item.timers):
                self.engine.deliver(agent, letter)
        elif isinstance(item, Expired):
            self.calls.expire(item.clock_ms, now)
        elif isinstance(item, Organising):
            self.organisation.apply(item, self)
        elif isinstance(item, Resumed):
            self._numbers = item.numbers_after(self._numbers)
            self.engine.tries.resumed()
            self.calls.resumed()
        else:
            apply_rare(self, item, now)
        if self.channel.arrived or self.calls.site is not None:
            self.collect()

    def _note_begun(self, item: Published | PublishedMany) -> None:
        if item.begun:
            self.engine.note_read(client_address(self, item.client), item.begun[-1].letters[-1])
            self.clock.passed(item.begun[-1].clock_ms)

    def _apply_many(self, item: PublishedMany) -> None:
        last = item.number + len(item.bodies) - 1
        self.clients[item.client] = last
        self._note_begun(item)
        source, to = client_address(self, item.client), self.channel.destinations.shared(item.to)
        self._multicasts += len(to) > 1
        self.channel.send_many(to, item.letters(self._prefix, self._numbers + 1, source, to))
        self._numbers += len(item.bodies)
        self._replies.append(Accepted(item.client, last))

    def _apply_reaction(self, item: Reacted, now: float) -> None:
        self.clock.passed(item.clock_ms)
        self.engine.finish(item.agent, item.reactions, item.state, item.clock_ms)
        for reaction in item.reactions:
            if not (reaction.outbound or reaction.alarms or reaction.births):
                continue
            for birth in reaction.births:
                address = f"{birth.name}@{self.name}"
                self.engine.born[address] = birth.kind
                self.engine.states[address] = birth.state
            for outbound in reaction.outbound:
                if is_call(outbound.to):
                    self._called(item, outbound, now)
                    continue
                letter = self._send(item.agent, outbound, ask="." if outbound.reply else "")
                if outbound.reply:
                    self._ask(item, outbound, letter)
            for alarm in reaction.alarms:
                self._set_timer(item.clock_ms + alarm.after_ms, item.agent, alarm.type, alarm.body)

    def _ask(self, item: Reacted, outbound: Outbound, letter: Letter) -> None:
        self.engine.asks[letter.id] = Question(item.agent, outbound.reply)
        body = msgspec.msgpack.encode(Timeout(ask=letter.id))
        self._set_timer(item.clock_ms + outbound.timeout_ms, item.agent, name_of(Timeout), body, letter.id)

    def _called(self, item: Reacted, outbound: Outbound, now: float) -> None:
        """Send an agent's call to an object. A call is like a question, but the call's body contains a time limit."""
        ask = f"{self._prefix}{self._numbers + 1}" if outbound.reply else ""
        if not unfit(outbound.body):
            if ask:
                self.engine.asks[ask] = Question(item.agent, outbound.reply)
            self._call(item.agent, outbound, ask, deadline_of(outbound.body, item.clock_ms), now)
        else:
            # Only a server that forwards calls which it does not understand can send this; nothing is called.
            self._numbers += 1
        self._numbers += bool(ask)

    def _call(self, source: str, outbound: Outbound | Published, ask: str, deadline_ms: int, now: float) -> None:
        self._numbers += 1
        id_ = f"{self._prefix}{self._numbers}"
        self.calls.call(source, id_, outbound.to[0], outbound.type, outbound.body, ask, (deadline_ms, now))

    def _set_timer(self, when_ms: int, agent: str, kind: str, body: bytes, answers: str = "") -> None:
        """Set a timer that delivers a letter later. The "t" in its id shows that no message order applies to it."""
        self._numbers += 1
        letter = Letter(f"{self._prefix}t{self._numbers}", agent, (agent,), kind, body, answers=answers)
        self.timers.set(self._numbers, when_ms, agent, letter)

    def _send(self, source: str, sent: Outbound | Published, *, ask: str = "", replays: str = "") -> Letter:
        """Send a letter. ``ask``: the id that an answer must quote, "." for the letter's own id, or "" if the letter is
        not a question. ``replays``: the id of the dead letter that this letter sends again, or empty."""
        self._numbers += 1
        id_ = self._prefix + str(self._numbers)
        ask, to = id_ if ask == "." else ask, sent.to
        if len(to) > 1:
            self._multicasts += 1
            to = self.channel.destinations.shared(to)
        letter = Letter(id_, source, to, sent.type, sent.body, ask, sent.answers, replays, sent.context)
        self.channel.send(letter)
        return letter

    def collect(self) -> None:
        """Put arrived letters and answers to calls into the mailboxes. Letters without a route become dead letters."""
        channel = self.channel
        if channel.arrived:
            self.engine.deliver_all(channel.arrived)
            channel.arrived.clear()
        if self.calls.site is not None:
            for letter in self.calls.answers(self._numbers // LIFE_NUMBERS):
                self.engine.deliver(letter.to[0], letter)
        while channel.lost:
            letter, reason = channel.lost.pop(0)
            self.engine.set_aside(self.name, letter, reason)
        if channel.faults:
            self.faults += channel.faults
            channel.faults.clear()

    # State.

    def backlog(self, exact: bool = True) -> Backlog:
        """Return the amount of data that waits. If ``exact`` is false, do not count the bytes of letters that arrived
        since the last count."""
        return backlog_of(self.channel, self.engine, self.timers, exact)

    def snapshot(self) -> bytes:
        """Return the whole durable state as bytes."""
        parts = (self.channel.dump(), self.engine.dump(), self.timers.waiting)
        head = {"server": self.name, "incarnation": self.incarnation, "epoch": self.epoch, "numbers": self._numbers}
        stopped = [(*place, reason) for place, reason in self.stopped.items()]
        cuts = {"truncations": self.truncations.open, "newest_cut": self.truncations.newest}
        log = {"times": self.clock.times, **cuts}
        rest = {"clients": self.clients, "stopped": stopped, "organisation": self.organisation.dump(self.channel)}
        return encode_state(packed(*parts, **head, **log, **rest))

    def restore(self, snapshot: bytes, now: float, epoch: str | None = None) -> None:
        """Load a snapshot into a new server. If the snapshot contains the text of a topology, the server uses this
        topology. Otherwise raise an error if ``epoch`` is given and the snapshot has a different epoch."""
        state, channel, engine, timers = state_of(snapshot, self.name, self.incarnation, epoch)
        self.organisation.load(state.organisation, self)
        self.epoch, self._numbers, self.clients = state.epoch, state.numbers, state.clients
        self.channel.load(channel, now)
        self.engine.load(engine)
        self.channel.hold_for(self.engine.following.agents, self.engine.following.pasts)
        self.timers.load(timers)
        self.clock.times = state.times
        self.truncations.open, self.truncations.newest = state.truncations, state.newest_cut
        self.stopped = {(domain, peer): reason for domain, peer, reason in state.stopped}

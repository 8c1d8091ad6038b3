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

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec

from antecede import limits
from antecede.channel import Channel, Pausing
from antecede.channel.consumer import Taken
from antecede.channel.letters import Letter, body_fault, envelope_fault, plain_bytes
from antecede.engine import Belongings, Engine, Outbound, Question, Reaction, Timeout, died, name_of
from antecede.engine.dead import Dead
from antecede.engine.quotas import Excess
from antecede.errors import LinkError, OverloadError, StampError, UsageError, WireError
from antecede.link import Ack, Frame, Hello
from antecede.objects.calls import Calls, deadline_of, is_call, unfit
from antecede.objects.replicas import Row
from antecede.server.clock import Clock, Timers
from antecede.server.inputs import (
    OPERATOR,
    Accepted,
    Denied,
    Drop,
    FromPeer,
    Look,
    OnBehalf,
    Plan,
    Refused,
    Replay,
    ReplayMany,
    Step,
)
from antecede.server.items import (
    LIFE_NUMBERS,
    Abandoned,
    Acknowledged,
    Applied,
    Began,
    Begun,
    Buried,
    BuriedMany,
    Clocked,
    Committed,
    Done,
    Enacted,
    Epoch,
    Expired,
    Fired,
    Forgot,
    Handled,
    Holding,
    Item,
    Learned,
    Left,
    Met,
    Organised,
    Organising,
    Paused,
    Published,
    PublishedMany,
    Reacted,
    Received,
    Related,
    Resumed,
    Seen,
    Staged,
    Tried,
    Truncated,
    decode_record,
    enacted_items,
    encode_record,
    sent_again,
)
from antecede.server.organisation import SavedOrganisation, plan_for, topology_in, weakest_guarantee
from antecede.server.progress import ENDED_WELL, Interrupted
from antecede.server.snapshots import encode_state, packed, state_of
from antecede.topology import Mailboxes, TopologyFile

# Truncations of a server's log. A *torn write* is a write that a crash interrupted. A truncation is the removal
# of a torn write during recovery.
#
# A torn write is normal after a power cut, and nothing in it was ever confirmed. But a durable group of records may be
# damaged later. If no later group proves that this group was durable, the damage looks like a torn write, and recovery
# removes confirmed data. So the log contains an item for every truncation. ``status`` shows each truncation until an
# operator has checked the disk and acknowledges the truncation.


CutItem = Truncated | Acknowledged
"""Log items that are about truncations."""


def truncated(cuts: Iterable[msgspec.Struct], wall_ms: int) -> list[Truncated]:
    """Return the items for the torn writes that the store removed. Each of the ``cuts`` is an
    :class:`antecede.store.recovery.Cut`. Its fields are copied to a :class:`Truncated`, together with ``wall_ms``: the
    time of the wall clock, in milliseconds."""
    return [Truncated(**msgspec.structs.asdict(cut), wall_ms=wall_ms) for cut in cuts]


class Truncations:
    """The truncations that no operator has acknowledged."""

    def __init__(self) -> None:
        self.open: list[Truncated] = []
        self.newest = 0
        """The largest group number of any truncation in the log, even if the truncation was acknowledged. It is 0 if
        the log contains no truncation."""

    def unknown(self, cuts: list[Truncated]) -> list[Truncated]:
        """Return those of the ``cuts`` that the log does not contain yet. After a crash, the store may report a
        truncation that is already in the log."""
        return [cut for cut in cuts if cut.group > self.newest]

    def apply(self, item: CutItem) -> None:
        """Apply an item of the log: a truncation, or an acknowledgement of all truncations up to a group."""
        if isinstance(item, Truncated):
            self.open.append(item)
            self.newest = max(self.newest, item.group)
        else:
            self.open = [cut for cut in self.open if cut.group > item.upto]

    def status(self) -> list[dict[str, Any]]:
        """Return the truncations that ``status`` shows to an operator."""
        return [msgspec.structs.asdict(cut) for cut in self.open]


class Backlog(msgspec.Struct, frozen=True):
    """The amount of data that waits at a server for agents, clients, operators or other servers."""

    letters: int
    """The number of letters that wait. They wait in mailboxes, or they are held because they depend on a dead letter,
    or they wait for the end of a change of the topology. A letter in several mailboxes is counted once per mailbox."""
    dead: int
    """The number of dead letters. A separate limit applies to them."""
    letter_bytes: int
    """The memory of mailboxes with their letters, of held letters and of timers, in bytes."""
    frames: int
    """The number of frames that their receivers have not acknowledged."""
    frame_bytes: int
    """The memory of the frames that are not acknowledged, in bytes."""


_mailbox_bytes = 1_000
"""The memory of a mailbox without letters: a deque with its first block, the agent's address, entries in
dictionaries."""
_timer_bytes = 350
"""The memory of a timer without its letter: two tuples, three numbers, entries in a dictionary and a heap."""


Request = Replay | ReplayMany | Drop | Look | OnBehalf | Acknowledged


OUTSIDE = "the server is not part of the system yet: try again when antecede topology apply has added it"
LEAVING = "the server is being removed from the topology: try again later"
CATCHING_UP = "the server is catching up: try again later"
Input = FromPeer | Published | PublishedMany | Denied | Done | Request | Applied


class Organisation(SavedOrganisation):
    """The topology in force at one server, and the change that is staged."""

    outside: bool = False
    """Whether this server still waits to be added: the change that adds it was not made yet, so the other servers do
    not know it."""
    learned: int = -1
    """The number of the last change that this server has learned from another server since this server's start, or −1
    if it has learned none."""
    applied: int = 0
    """The number of items that were applied since this server was started. A driver compares this number with an
    earlier value to notice new items."""

    # Items.

    def apply(self, item: Organising, machine: "AgentServer") -> None:
        """Apply a log item about the topology. The item may change ``machine``, too."""
        self.applied += 1
        if isinstance(item, Organised):
            self._note(item, machine)
        elif isinstance(item, Paused):
            self._end_pause(machine)
            self.paused, self.attempt = item.change, item.attempt
            machine.channel.pause(item.domains, item.agents)
            self._freeze(machine, item.agents, item.whole)
            for client in item.clients:
                machine.clients.setdefault(client, 0)
        elif isinstance(item, Staged):
            self._stage(item, machine)
        elif isinstance(item, Learned):
            self._learn(item, machine)
        elif isinstance(item, Abandoned):
            self._abandon(item, machine)
        elif self.staged is None or self.staged.change != item.change:
            # The same decision came twice.
            return
        elif isinstance(item, Received):
            known = {one.address for one in item.belongings}
            self.came = [one for one in self.came if one.address not in known] + item.belongings
        elif item.attempt in ("", self.staged.attempt):
            self._commit(item, self.staged, machine)

    def _note(self, item: Organised, machine: "AgentServer") -> None:
        self.topology = item.topology
        self.use(machine)
        file = topology_in(self.topology)
        self.history = [Epoch(self.change, machine.epoch, 0, guarantee=weakest_guarantee(file))]

    def use(self, machine: "AgentServer") -> None:
        """Let ``machine`` use the topology in force. ``machine`` is a new server object, which has processed nothing
        yet."""
        file = topology_in(self.topology)
        if machine.plan.file is None or machine.plan.file.epoch != file.epoch:
            plan = plan_for(file, machine.plan)
            orders = machine.plan.orders
            machine.organise(plan, [name for name, order in plan.orders.items() if order is orders.get(name)])
        machine.epoch = file.epoch

    def _stage(self, item: Staged, machine: "AgentServer") -> None:
        if self.staged is not None:
            self._put_back(machine)
        self.staged, self.attempt = item, item.attempt
        self.left = [machine.take_out(address) for address in item.leaving]
        file = topology_in(item.topology)
        homes = {agent.name: agent.server for agent in file.agents}
        begun = [name for name, since in item.since.items() if since == item.change]
        machine.channel.learn(file.organisation, homes, file.moved, begun)

    def _commit(self, item: Committed, staged: Staged, machine: "AgentServer") -> None:
        file = topology_in(staged.topology)
        begun = {name for name, since in staged.since.items() if since == staged.change}
        self.removed = machine.name not in file.servers
        if not self.removed:
            before, plan = machine.plan.homes, plan_for(file, machine.plan)
            machine.organise(plan, [name for name in machine.channel.consumers if name not in begun])
            for agent, home in plan.homes.items():
                if home == machine.name and before.get(agent) != home:
                    # Letters that came early were handed out to a client of that name, which does not exist.
                    machine.engine.abandon(agent)
            machine.stopped = {place: why for place, why in machine.stopped.items() if place[0] not in begun}
            machine.engine.following.keep(set(machine.channel.consumers) - begun)
        machine.epoch, self.outside = file.epoch, False
        for one in self.came:
            machine.put_in(one)
            if one.client:
                self.adopted[one.client] = one.address
        self.system, self.change, self.since = staged.system, staged.change, dict(staged.since)
        self.topology = staged.topology
        made = Epoch(self.change, machine.epoch, item.clock_ms, staged.attempt, weakest_guarantee(file))
        self.history = [*(staged.history or self.history), made][-limits.changes_kept_max :]
        self.staged, self.left, self.came = None, [], []
        self._end_pause(machine)

    def _learn(self, item: Learned, machine: "AgentServer") -> None:
        if item.change <= self.change:
            return
        file = topology_in(item.topology)
        machine.organise(plan_for(file, machine.plan), list(machine.channel.consumers))
        machine.epoch, self.outside = file.epoch, False
        self.system, self.change, self.topology, self.since = item.system, item.change, item.topology, dict(item.since)
        self.history, self.learned = list(item.history)[-limits.changes_kept_max :], self.change

    def _abandon(self, item: Abandoned, machine: "AgentServer") -> None:
        if item.attempt not in ("", self.attempt):
            return
        if self.staged is not None and self.staged.change == item.change:
            self._put_back(machine)
        if self.paused == item.change:
            self._end_pause(machine)

    def _put_back(self, machine: "AgentServer") -> None:
        for one in self.left:
            machine.put_in(one)
        self.staged, self.left, self.came = None, [], []
        # Forget what was learned about the new topology.
        machine.organise(machine.plan, list(machine.channel.consumers))
        if not self.paused:
            self._end_pause(machine)

    def _freeze(self, machine: "AgentServer", agents: list[str], whole: bool) -> None:
        self.whole = whole
        if agents or whole:
            machine.engine.freeze([] if whole else agents)

    def _end_pause(self, machine: "AgentServer") -> None:
        self.paused, self.whole, self.attempt = 0, False, ""
        machine.engine.freeze(None)
        if not self.removed:
            machine.channel.resume()

    # Questions.

    @property
    def closed(self) -> str:
        """The reason why clients must not publish now, or an empty string if they may publish."""
        return OUTSIDE if self.outside else LEAVING if self.whole or self.removed else ""

    def is_new(self, channel: Channel) -> bool:
        """Return whether this server has never been part of a system: it knows of no change, and has never met a
        peer."""
        return not (self.change or self.system) and not any(link.peer for _, _, link in channel.links.ends)

    def is_apart(self, server: str) -> bool:
        """Return whether ``server`` does not take part in the change that is staged here. Letters must not be forwarded
        to such a server. The letters may come from servers that have already made the change, and ``server`` may not
        know the senders."""
        return self.staged is not None and server in self.staged.absent

    def made_by(self, change: int) -> str | None:
        """Return the name of the attempt that made a change. Return an empty string if the name is not known, and None
        if the change has not come into force here."""
        if change > self.change:
            return None
        return next((one.attempt for one in self.history if one.change == change), "")

    def digest(self, domain: str, plan: Plan) -> str:
        """Return a digest of the name, the members and the order of a domain, and of the last change that gave the
        domain a new state. Two servers that share the domain may connect only if they have the same digest."""
        members, order = plan.topology.domains[domain].servers, str(plan.orders[domain])
        content = json.dumps([domain, list(members), order, self.since.get(domain, 0)], separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def state(self, waiting: int = 0) -> dict[str, Any]:
        """Return the topology in force and the change in progress, for operators. ``waiting``: the number of letters
        that wait for the end of the change."""
        staged = self.staged
        progress: dict[str, Any] | None = None
        if staged is not None:
            epoch = topology_in(staged.topology).epoch
            progress = {"change": staged.change, "epoch": epoch, "coordinator": staged.coordinator, "state": "staged"}
            progress["waiting"] = waiting
        elif self.paused:
            progress = {"change": self.paused, "epoch": None, "coordinator": None, "state": "paused"}
            progress["waiting"] = waiting
        return {"system": self.system, "change": self.change, "in_progress": progress}

    # State.

    def dump(self, channel: Channel) -> SavedOrganisation:
        """Return the durable state. It includes the letters that wait for the end of a change."""
        pausing = channel.pausing or Pausing()
        saved = SavedOrganisation(*(getattr(self, name) for name in SavedOrganisation.__struct_fields__))
        saved.domains, saved.agents = sorted(pausing.domains), sorted(pausing.agents)
        saved.waiting = list(pausing.waiting)
        return saved

    def load(self, saved: SavedOrganisation, machine: "AgentServer") -> None:
        """Load the durable state, and let ``machine`` use the topology in force. ``machine`` is a new server object."""
        for name in saved.__struct_fields__:
            setattr(self, name, getattr(saved, name))
        self.domains, self.agents, self.waiting = [], [], []
        if not self.topology or self.removed:
            return
        self.use(machine)
        if self.staged is not None:
            file = topology_in(self.staged.topology)
            homes = {agent.name: agent.server for agent in file.agents}
            machine.channel.learn(file.organisation, homes, file.moved, ())
        if self.paused or saved.waiting or saved.domains:
            machine.channel.pausing = Pausing(saved.domains, saved.agents, saved.waiting)
        if self.paused:
            self._freeze(machine, saved.agents, saved.whole)


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
        """The stopped links: (domain, peer) → reason (see ``_take_from_peer``)."""
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
        return self.note([Began(self.name, epoch), *self.settings(cuts=cuts)])

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
            self._take_from_peer(given, now)  # type: ignore[arg-type]
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
            address = self.client_address(given.client)
            begun = self._begun_letters(address, given.begun, self.clock.at(now, clock_ms))
            given = msgspec.structs.replace(given, begun=begun)
        if self.calls.site is not None and is_call(given.to) and isinstance(given, Published):
            given = msgspec.structs.replace(given, deadline_ms=deadline_of(given.body, self.clock.at(now, clock_ms)))
        self._do(given, now)

    # A handler's publishes reach the server before the client's report that the handler has returned. So each publish
    # names the last letter that its client had begun to handle, and the record of the publish contains this letter and
    # the letters before it. In the trace, the deliveries of these letters come before the publish.

    def _begun_letters(self, address: str, claims: tuple[Begun, ...], clock_ms: int) -> tuple[Begun, ...]:
        """Return the letters to record: each letter that the client names, and the letters before it in the mailbox.
        Letters that are already recorded are left out. ``claims``: one entry for each publish that names a letter. The
        entry contains this letter, and the position of the publish in its batch."""
        engine = self.engine
        last = engine.read.get(address)
        named = {claim.letters[0]: claim.at for claim in claims if claim.letters[0] != last}
        found: list[Begun] = []
        letters: list[str] = []
        for letter in islice(engine.mailboxes.get(address, ()), limits.reactions_together_max) if named else ():
            letters.append(letter.id)
            if letter.id == last:
                # All letters so far are recorded.
                found, letters = [], []
            elif letter.id in named:
                found.append(Begun(named[letter.id], tuple(letters), clock_ms))
                letters = []
        return tuple(found)

    def _do(self, item: Item, now: float) -> None:
        self.items.append(item)
        self._apply(item, now)

    def _request(self, given: Input, now: float, clock_ms: int) -> None:
        for item in REQUESTS[type(given)](self, given, self.clock.at(now, clock_ms)):
            self._do(item, now)

    # From peers. A link stops if the peer sends something that contradicts what was sent before, for example because
    # one of the two servers has lost data. A stopped link exchanges nothing until its domain starts with a new state.
    # The log does not record that a link stopped; only snapshots do. Other errors only close the connection.

    def _take_from_peer(self, given: FromPeer, now: float) -> None:
        """Process a frame, an acknowledgement or a hello from a peer. Ignore it if the link has stopped or was
        removed."""
        domain, peer, content = given.domain, given.peer, given.content
        if self.stopped and (domain, peer) in self.stopped:
            return
        consumer = self.channel.consumers.get(domain)
        if consumer is None or peer not in consumer.links:
            # It was queued before a change of the topology removed the link.
            return
        try:
            if type(content) is Frame:
                consumer.receive(peer, content, now)
                self.collect()
            elif type(content) is Ack:
                consumer.links[peer].on_ack(content, now)
                self.channel.links.changed()
            elif isinstance(content, Hello):
                link = consumer.links[peer]
                known = (link.peer, link.peer_life)
                link.on_hello(content, now)
                self.channel.links.changed()
                if (link.peer, link.peer_life) != known:
                    self.items.append(Met(domain, peer, link.peer, link.peer_life))
        except LinkError as error:
            self.stopped[domain, peer] = str(error)
            self.faults.append((domain, peer, str(error)))
        except (WireError, StampError) as error:
            self.faults.append((domain, peer, str(error)))

    # Publishes.

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
            source = item.source or self.client_address(item.client)
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
            self._apply_rare(item, now)
        if self.channel.arrived or self.calls.site is not None:
            self.collect()

    def _apply_rare(self, item: Item, now: float) -> None:
        """Carry out the effect of a rare item, in a step of the running server or in a replay of the log."""
        if isinstance(item, Related):
            self.calls.recorded(item.conflicts)
        elif isinstance(item, Forgot):
            self.channel.begin_again(item.domain, item.generation, item.again)
            self.stopped = {place: reason for place, reason in self.stopped.items() if place[0] != item.domain}
        elif isinstance(item, Buried | BuriedMany):
            self.engine.bury_all(item.keys)
        elif isinstance(item, Seen):
            self.clock.passed(item.clock_ms)
            self.engine.seen(item.agents, item.clock_ms)
        elif isinstance(item, Holding):
            self.channel.hold_for(*self.engine.hold_for(item.agents))
        elif isinstance(item, Clocked):
            self.clock.set(item)
        elif isinstance(item, CutItem):
            self.truncations.apply(item)
        elif isinstance(item, Left):
            self.clients.pop(item.client, None)
        elif isinstance(item, Met):
            link = self.channel.consumers[item.domain].links[item.peer]
            link.peer, link.peer_life = item.incarnation, item.life
        elif isinstance(item, Began):
            self.epoch = item.epoch
        elif isinstance(item, Tried):
            self.engine.tries.ended(item.life, item.calls)

    def _note_begun(self, item: Published | PublishedMany) -> None:
        if item.begun:
            self.engine.note_read(self.client_address(item.client), item.begun[-1].letters[-1])
            self.clock.passed(item.begun[-1].clock_ms)

    def _apply_many(self, item: PublishedMany) -> None:
        last = item.number + len(item.bodies) - 1
        self.clients[item.client] = last
        self._note_begun(item)
        source, to = self.client_address(item.client), self.channel.destinations.shared(item.to)
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

    # Requests: from operators, from the regular check of quotas, and from changes of the topology. Each method yields
    # items one after the other. ``_request`` applies an item before it asks for the next one, so the method sees the
    # effects of the earlier items. A replay of the log applies the same items, and does not call these methods.

    def _replay_dead(self, given: Replay, clock_ms: int) -> Iterator[Item]:
        dead = self.engine.dead.get(given.key)
        if dead is not None and self._may_send_again(dead):
            # Otherwise another operator has already removed the letter.
            yield sent_again(dead.letter, given.client, self.clients.get(given.client, 0) + 1, given.to)
            yield Buried(given.key)

    def _replay_many_dead(self, given: ReplayMany, clock_ms: int) -> Iterator[Item]:
        sent: list[str] = []
        for one in given.letters:
            dead = self.engine.dead.get(one.key)
            if dead is not None and self._may_send_again(dead):
                yield sent_again(dead.letter, one.client, self.clients.get(one.client, 0) + 1, one.to)
                sent.append(one.key)
        if sent:
            yield BuriedMany(sent)

    def _may_send_again(self, dead: Dead) -> bool:
        """Return whether a dead letter may be sent again now. It must not be sent in two cases. (1) This server is
        being removed. Then the letter would wait forever. (2) The letter's agent is moving to another server. Then the
        letter would wait here until the move is finished, and this server would send it to the other server. There the
        letter would look forged, because its sender does not belong to this server."""
        return not self.organisation.closed and not self.engine.is_frozen(dead.agent)

    def _drop_letters(self, given: Drop, clock_ms: int) -> Iterator[Item]:
        mailbox = self.engine.mailboxes.get(given.address, ())
        letters = [letter.id for letter in islice(mailbox, given.letters)]
        if letters:
            yield Reacted(
                given.address, tuple([Reaction(letter, dead=given.reason) for letter in letters]), None, clock_ms
            )
            yield BuriedMany([f"{letter} {given.address}" for letter in letters])

    def _send_for(self, given: OnBehalf, clock_ms: int) -> Iterator[Item]:
        number = self.clients.get(given.client, 0) + 1
        if not self.organisation.closed:
            yield Published(given.client, number, given.to, given.type, given.body, source=given.source)

    def _come_into_force(self, given: Committed | Learned, clock_ms: int) -> Iterator[Item]:
        """Let a change of the topology come into force. From now on, the settings ``dead_follow = "hold"`` of the new
        topology are used. If a letter to an agent with this setting becomes a dead letter, the agent's letters that
        depend on the dead letter are held."""
        yield given
        holding = self.plan.holding(self.name)
        if holding != sorted(self.engine.following.agents) and not self.organisation.removed:
            yield Holding(holding)

    def _look(self, given: Look, clock_ms: int) -> Iterator[Item]:
        """Let letters expire, and drop the oldest dead letters if there are too many."""
        engine = self.engine
        quotas, mailboxes = engine.quotas, engine.mailboxes
        held, since = engine.following.held, engine.following.since
        unseen = quotas.unseen(mailboxes, clock_ms) + (quotas.unseen_held(held, since) if held else [])
        if unseen:
            yield Seen(list(dict.fromkeys(unseen)), clock_ms)
        numbers = engine.following.numbers
        crowds = quotas.look_held(held, mailboxes, numbers, since, engine.is_reacting, clock_ms) if held else ()
        for excess, letters in list(crowds):
            if not engine.is_frozen(excess.agent):
                yield self._expire(excess, letters, clock_ms)
        for excess in list(quotas.look(mailboxes, engine.is_reacting, clock_ms, engine.footprint.bytes)):
            # An asker is notified of the end of its question. Sent by an agent that moves, this notice would wait on
            # the server that the agent leaves, and letters that it sends from its new server would overtake it.
            if not engine.is_frozen(excess.agent):
                yield self._expire(excess, mailboxes[excess.agent], clock_ms)
        oldest = self._excess_of_dead()
        if oldest:
            engine.forgotten += len(oldest)
            yield BuriedMany(oldest)

    def _expire(self, excess: Excess, letters: Iterable[Letter], clock_ms: int) -> Item:
        agent, expired = excess.agent, self.engine.quotas.expired
        check = self.channel.check
        dead = [died(letter, excess.reason, check, expired=True) for letter in islice(letters, excess.letters)]
        expired[agent] = expired.get(agent, 0) + len(dead)
        return Reacted(agent, tuple(dead), None, clock_ms)

    def _excess_of_dead(self) -> list[str]:
        """Return the keys of the dead letters to drop, oldest first, so that the number and the bytes of the remaining
        dead letters are within their limits. The result has at most ``drop_letters_max`` keys, even if more dead
        letters must be dropped."""
        engine = self.engine
        count = len(engine.dead) - limits.dead_letters_max
        size = engine.dead_footprint.bytes - limits.dead_letter_bytes_max
        keys: list[str] = []
        for key, dead in engine.dead.items():
            if (count <= len(keys) and size <= 0) or len(keys) >= limits.drop_letters_max:
                break
            keys.append(key)
            size -= plain_bytes((dead.letter,)) or len(dead.letter.body)
        return keys

    def settings(self, ended: Interrupted = ENDED_WELL, cuts: Iterable[Truncated] = ()) -> list[Item]:
        """Return items for the server's first record after a start. They contain the settings that have changed, the
        handler calls that were in progress when the server's previous process ended (``ended``), the interrupted writes
        that were removed from the log (``cuts``), and the time."""
        engine = self.engine
        holding = self.plan.holding(self.name)
        items: list[Item] = [Holding(holding)] if holding != sorted(engine.following.agents) else []
        if self.plan.file is not None and not self.organisation.topology:
            items.append(Organised(self.plan.file.text()))
        if ended.calls and ended.life != engine.tries.life:
            items.append(Tried(ended.life, ended.calls))
        return [*items, *cuts, *self.clock.first]

    # Addresses.

    def client_address(self, client: str) -> str:
        """Return the address of a client of a server. A client that came from a removed server keeps its address."""
        return self.organisation.adopted.get(client) or f"{client}@{self.name}"

    def addresses(self) -> list[str]:
        """Return the addresses of all agents and clients for which a server stores anything."""
        found = self.engine.addresses()
        found += [agent for _, agent, _ in self.timers.waiting.values()]
        # The operator's own client sends from every server, and receives nothing.
        found += [self.client_address(client) for client in self.clients if client != OPERATOR]
        return list(dict.fromkeys(found))

    def leaving(self, file: TopologyFile) -> list[str]:
        """Return the agents and clients that leave a server if this topology comes into force."""
        homes = {agent.name: agent.server for agent in file.agents}
        found: list[str] = []
        known = [agent for agent, home in self.plan.homes.items() if home == self.name]
        for address in dict.fromkeys([*known, *self.addresses()]):
            home = homes.get(address) or (file.home_of(address.rpartition("@")[2]) if "@" in address else "")
            if address == self.name:
                # Letters that this server could not forward.
                home = file.home_of(self.name)
            if home != self.name or self.name not in file.servers:
                found.append(address)
        return found

    def take_out(self, address: str) -> Belongings:
        belongings = self.engine.take_out(address)
        # Between servers the wall clock counts: the server time of another one may be different.
        ahead = self.clock.times.ahead_ms
        timers = [(when + ahead, letter) for when, letter in self.timers.take_out(address)]
        client = address.rpartition("@")[0]
        published = self.clients.pop(client, None) if self.client_address(client) == address else None
        return msgspec.structs.replace(belongings, timers=timers, published=published)

    def put_in(self, belongings: Belongings) -> None:
        self.engine.put_in(belongings)
        ahead = self.clock.times.ahead_ms
        self.timers.put_in(belongings.address, [(when - ahead, letter) for when, letter in belongings.timers])
        if belongings.published is not None:
            self.clients[belongings.address.rpartition("@")[0]] = belongings.published

    # State.

    def backlog(self, exact: bool = True) -> Backlog:
        """Return the amount of data that waits. If ``exact`` is false, do not count the bytes of letters that arrived
        since the last count."""
        engine, channel = self.engine, self.channel
        footprint = engine.count() if exact else engine.footprint
        mailboxes = _mailbox_bytes * len(engine.mailboxes)
        links = [link for _, _, link in channel.links.ends]
        return Backlog(
            sum(map(len, engine.mailboxes.values())) + engine.following.count() + channel.letters_waiting,
            len(engine.dead),
            footprint.bytes + mailboxes + _timer_bytes * len(self.timers),
            sum(link.unacknowledged for link in links),
            sum(link.unacknowledged_bytes for link in links),
        )

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


REQUESTS: dict[type, Callable[[Any, Any, int], Iterator[Item]]] = {
    Replay: AgentServer._replay_dead,
    ReplayMany: AgentServer._replay_many_dead,
    Drop: AgentServer._drop_letters,
    Look: AgentServer._look,
    OnBehalf: AgentServer._send_for,
    Committed: AgentServer._come_into_force,
    Learned: AgentServer._come_into_force,
}
"""For each kind of request, the method that returns its items."""

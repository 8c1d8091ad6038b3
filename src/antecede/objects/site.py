"""One object of a group: its order, its locks, and its operation instances. An instance begins when both the order and
the locks allow it (§3.3 and §4.3 of Enokido, Higaki, Takizawa).

A site is used like an order: it has the methods of an order, such as ``receive``, ``tick`` and ``snapshot``. These
methods return the effects of an order, and also the effects that :mod:`antecede.objects.instances` defines. A site
combines these parts. Each part calls only the parts to its right:

    site ──► roots, wounds (bookkeeping)
      └────► execution ──► table (locks), intentions (state), members ──► outbox ──► order ``objects``

**Ready** (§4.3). The order decides when a message may be handed over. The order does not wait until an operation has
ended. A request that was handed over is queued. Its instance begins when no conflicting instance comes before it
(``Table`` in :mod:`antecede.objects.instances`). The request is delivered at this moment, not earlier. A root keeps its
locks until it ends, with one exception: if an instance fails or is aborted before its root ends, the locks of this
instance are released at that moment. So values that such an instance has read may change before its root commits.

**Wound–wait** (:mod:`antecede.objects.roots`) ends the cycles of waiting instances, which the theorem of §3.3 does not
exclude. That module defines the words *root*, *home*, *try*, *wound*, *make way*, *rest* and *heal*.
"""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import msgspec

from antecede.errors import ObjectError, OrderError
from antecede.messages import ABORT, COPY, REQUEST, RESPONSE, Accept, Deliver, Effects, Message, Packet, Send, Verdict
from antecede.objects.execution import Execution, Members, Outbox, Removed
from antecede.objects.instances import QUEUED, Answer, Answered, Instance, Root, Table
from antecede.objects.model import Object, missing_operation, operations_of, relation_of
from antecede.objects.roots import Roots, Wounds
from antecede.orders import OrderSpec
from antecede.orders.contract import Order, Reason
from antecede.orders.encoding import Reader, Writer
from antecede.orders.objects import HEAL, WOUND, Objects
from antecede.orders.objects_rules import PLAIN

TIMEOUT: Answer = (False, "timeout: the call took too long and was aborted")


class Site(Order):
    """One object of a group, with its operation instances. It sends and receives messages as a member of the order
    ``objects``."""

    name: ClassVar[str] = "objects"
    source: ClassVar[str] = Objects.source
    guarantees = Objects.guarantees
    needs: ClassVar[frozenset[str]] = Objects.needs
    controls: ClassVar[tuple[str, ...]] = Objects.controls
    accepts_own: ClassVar[bool] = True
    ordering: ClassVar[type[Objects]] = Objects
    locking: ClassVar[type[Table]] = Table
    executing: ClassVar[type[Execution]] = Execution
    rooting: ClassVar[type[Roots]] = Roots

    def __init__(self, me: int, kind: type[Object], members: Members, conflicts: str, clocks: str) -> None:
        super().__init__(me, len(members.names))
        self.kind = kind
        self.order = self.ordering(me, len(members.names), conflicts=conflicts, clocks=clocks)
        self.order.defer = True
        self.outbox = Outbox(me, members.names[me], self.order)
        self.table = self.locking(relation_of(kind))
        self.execution = self.executing(kind, members, self.table, self.outbox)
        self.roots = self.rooting(self.order.relation, self._called, *self._sharing())
        self.wounds = Wounds()
        self._examined: set[str] = set()
        """The names of queued instances that ``_begin_ready`` has examined and need not examine again. All younger
        instances that block such an instance were asked to make way, and no other instance can block it later."""

    @property
    def state(self) -> dict[str, Any]:
        """The committed state of the object."""
        return self.execution.intentions.state

    # Calls of users.

    def start(
        self, name: str, arguments: Iterable[Any] = (), *, deadline: float | None = None, by: str = ""
    ) -> tuple[str, Effects]:
        """Start a root: an operation of this object. ``by``: the caller's name; the root's name begins with it.
        Return the root's name and the effects. If the root ends before this method returns, the effects contain
        ``Answered``. If it ends later, a later call of a method of this site returns ``Answered``."""
        if name not in operations_of(self.kind):
            raise ObjectError(missing_operation(self.kind, name))
        try:
            encoded = msgspec.msgpack.encode(list(arguments))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ObjectError(f"arguments of {self.kind.__name__}.{name}: expected plain values: {error}") from None
        given = tuple(msgspec.msgpack.decode(encoded))
        self.roots.started += 1
        number = (self.order.clock, self.me, self.roots.started)
        root = Root(f"{by or self.outbox.name}.{self.roots.started}", name, given, number, 1, deadline, len(encoded))
        self.roots.add(root)
        self._admit()
        return root.name, self._finished()

    def _sharing(self) -> tuple[Any, ...]:
        """Return the arguments ``unite`` and ``shareable`` of :class:`Roots`. If requests are never shared, return an
        empty tuple."""
        return ()

    def _called(self, root: Root) -> str:
        """Return the operation of a root. This operation determines which other roots conflict with the root."""
        return root.operation

    def tick(self, now: float) -> Effects:
        """Abort the roots whose deadline has passed."""
        late = self.roots.late(now)
        for root in late:
            if root.attempt in self.roots.running:
                self.execution.abort(self.table.instances[root.attempt])
                self._follow()
            self._expired(root, now)
        return self._finished() if late else []

    def deadline(self) -> float | None:
        """Return the earliest deadline of all roots, or None if no root has one."""
        return self.roots.deadline()

    # Arrivals.

    def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
        if packet.kind in (WOUND, HEAL):
            return self._wounded(packet.subject, packet.kind == WOUND)
        verdict, effects = self.order.receive(packet)
        if verdict is Verdict.DUPLICATE:
            return verdict, effects
        for effect in effects:
            if type(effect) is Deliver:
                self._handed_over(effect.message)
                self._follow()
            else:
                self.outbox.add(effect)
        effects = self._finished()
        if packet.kind == COPY and verdict is Verdict.DELIVER:
            here = packet.subject
            for effect in effects:
                if isinstance(effect, Deliver) and effect.message.id == here:
                    return verdict, effects
            # The message is queued here and is part of the durable state.
            return Verdict.HOLD, [*effects, Accept(packet)]
        return verdict, effects

    def _handed_over(self, message: Message) -> None:
        """Handle a message that the order hands over."""
        label = message.label
        if label is None:
            self.outbox.deliver(message)
            return
        execution = self.execution
        if label.type == REQUEST:
            if label.instance in self.roots.running:
                # A root must not get a caller, because a caller could end it.
                execution.ignore(message)
            else:
                execution.requested(message, label)
            return
        one = self.table.instances.get(label.instance)
        if one is not None and label.type != RESPONSE and message.source not in one.sources():
            # Only its callers may decide how an instance ends; for a root, no other object may.
            one = None
        if one is None or one.state == QUEUED:
            if one is not None and label.type == ABORT:
                execution.aborted_by(one, message.source)
            execution.ignore(message)
            return
        self.outbox.deliver(message)
        if label.type == RESPONSE:
            execution.responded(one, message, label)
        elif label.type == ABORT:
            execution.aborted_by(one, message.source)
        else:
            execution.commit(one)

    def _wounded(self, attempt: str, wounded: bool) -> tuple[Verdict, Effects]:
        """Handle a packet from another object about a root that was started here. ``wounded``: whether the root must
        make way (abort its try and wait); if False, it may continue."""
        if attempt not in self.roots.running and attempt not in self.roots.resting:
            return Verdict.DUPLICATE, []
        if not wounded:
            self._queue(self.roots.heal(attempt))
        elif attempt in self.roots.running:
            self._rest(attempt)
        return Verdict.DELIVER, self._finished()

    # Roots.

    def _admit(self) -> None:
        for root in self.roots.admitted():
            self._queue(root)

    def _queue(self, root: Root | None) -> None:
        """Queue the present try (execution) of a root; do nothing if ``root`` is None."""
        if root is not None:
            attempt = root.attempt
            self.table.queue(Instance(attempt, root.operation, root.arguments, attempt, root.number, "", 0))

    def _rest(self, attempt: str) -> None:
        """Let a root that was started here make way for an older root: abort its present try (execution). The next try
        begins when the older instance has ended."""
        self.execution.abort(self.table.instances[attempt])
        self._follow()
        self._queue(self.roots.rest(attempt))

    def _end(self, root: Root, answer: Answer, late: bool = False) -> None:
        """Handle the end of a root. Roots that waited for it may begin. ``late``: whether the root was aborted because
        its deadline had passed."""
        self.roots.end(root)
        self.outbox.add(Answered(root.name, *answer, root.tries, late))
        self._admit()

    def _expired(self, root: Root, now: float) -> None:
        """Handle the end of a root whose deadline has passed."""
        self._end(root, TIMEOUT, late=True)

    def _follow(self) -> None:
        """Handle the reports on instances. If the present try of a root has finished, the root ends, and commits if
        the try succeeded. If an instance was removed, the roots that made way for it may continue."""
        reports = self.execution.reports
        while reports:
            report = reports.pop(0)
            one = report.instance
            if isinstance(report, Removed):
                self._examined.discard(one.id)
                last = not self.table.holds(one.root)
                for home, attempt in self.wounds.healed(one, last):
                    if home == self.me:
                        self._queue(self.roots.heal(attempt))
                    else:
                        self.outbox.add(Send(self.control(HEAL, home, attempt)))
            elif (root := self.roots.running.get(one.id)) is not None:
                self.execution.commit(one)
                self._follow()
                self._end(root, report.answer)

    # Waiting.

    def _begin_ready(self) -> None:
        """Begin each queued instance that no other instance blocks. If an instance of a younger root blocks an older
        instance, ask the younger root to make way (to abort its try and begin again later)."""
        while self.table.changed:
            self.table.changed = False
            for one in self.table.queued():
                if not self.table.blocked(one):
                    self._examined.discard(one.id)
                    self.execution.begin(one)
                    self._follow()
                    break
                if one.id not in self._examined:
                    if self._wound(one, [other for other in self.table.rivals(one) if other.number > one.number]):
                        break
                    self._examined.add(one.id)

    def _wound(self, one: Instance, younger: list[Instance]) -> bool:
        """Ask the roots of these younger instances, one after the other, to make way (abort and wait) for the older
        instance ``one``. If a root that was started here makes way, stop and return True. Otherwise return False."""
        for other in younger:
            if other.root in self.wounds:
                continue
            if other.home != self.me:
                self.outbox.add(Send(self.control(WOUND, other.home, other.root)))
            elif other.root not in self.roots.running:
                continue
            self.wounds.add(one, other)
            if other.home == self.me:
                self._rest(other.root)
                return True
        return False

    def _finished(self) -> Effects:
        """Begin all queued instances that are not blocked, then return the effects of the step."""
        self._begin_ready()
        return self.outbox.drain()

    def send(self, message: Message) -> Effects:
        raise OrderError("an object sends messages only while it runs operations: use start(), not send()")

    # Questions of observers.

    def held(self) -> list[Message]:
        queued = [message for one in self.table.queued() for message in one.pending]
        return [*self.order.held(), *queued]

    def explain_held(self) -> Iterator[tuple[Message, list[Reason]]]:
        yield from self.order.explain_held()
        for one in self.table.queued():
            rivals = [(other.home, f"{other.operation} of its {other.root}") for other in self.table.rivals(one)]
            for message in one.pending:
                yield message, rivals

    def unended(self) -> list[str]:
        """Return a text for each thing that still exists here, but must not exist at the end of a run: each instance,
        root, held message, and vector of an instance."""
        vectors = [f"the vector of {instance}" for instance in self.order.vectors if instance != PLAIN.instance]
        return [
            *self.table.instances,
            *[root.name for root in self.roots],
            *[message.id for message in self.held()],
            *vectors,
        ]

    # Stamps are the order's.

    def write_stamp(self, packet: Packet, out: Writer) -> None:
        self.order.write_stamp(packet, out)

    def read_stamp(self, kind: str, source: int, data: Reader) -> Any:
        return self.order.read_stamp(kind, source, data)

    # State.

    def dump(self) -> Any:
        running, waiting, resting, healed = self.roots.dump()
        asked, asked_by = self.wounds.dump()
        return (
            self.order.dump(),
            self.state,
            self.table.dump(),
            running,
            waiting,
            resting,
            (self.roots.started, self.outbox.posted, self.roots.wounds),
            (asked, healed, asked_by),
            list(self.execution.undone.items()),
        )

    def load(self, state: Any) -> None:
        order, committed, table, running, waiting, resting, counts, (asked, healed, asked_by), undone = state
        self.order.load(order)
        self.execution.intentions.restore(committed)
        self.execution.undone = dict(undone)
        self.table.load(table)
        self.roots.load(running, waiting, resting, healed)
        self.roots.started, self.outbox.posted, self.roots.wounds = counts
        self.wounds.load(asked, asked_by)


# A group of named objects: the class of each object, and the conflicts between their operations.


class SiteSpec(OrderSpec, frozen=True):
    """The specification of a group of objects. It is used like the specification of an order: ``create`` returns the
    :class:`Site` of one object of the group."""

    kinds: tuple[type[Object], ...] = ()
    """The class of each object."""
    names: tuple[str, ...] = ()
    site: type[Site] = Site

    def create(self, me: int, members: int) -> Site:
        if not members == len(self.kinds) == len(self.names):
            raise OrderError(
                f"{members} members, {len(self.kinds)} objects, {len(self.names)} names: expected equal numbers"
            )
        clocks = str(self.options.get("clocks", "eager"))
        return self.site(me, self.kinds[me], Members(self.names), self.conflicts(), clocks)

    def conflicts(self) -> str:
        """Return the conflicts of the whole group as a text: pairs such as ``audit~deposit``, joined by ``+``, or
        ``none``. Two names conflict if operations with these names conflict in at least one class."""
        pairs = sorted({pair for kind in self.kinds for pair in relation_of(kind).pairs()})
        return "+".join(f"{one}~{other}" for one, other in pairs) or "none"

    def sample(self) -> Order:
        return self.create(0, len(self.kinds))


def group(objects: dict[str, type[Object]], *, clocks: str = "eager", site: type[Site] = Site) -> SiteSpec:
    """Return the specification of a group of objects. ``objects``: the class of each object, by the object's name."""
    for name in objects:
        if not name or "/" in name or "~" in name:
            raise ObjectError(f"object {name!r}: expected a name that is not empty and has no / and no ~")
    return SiteSpec(Objects, {"clocks": clocks}, tuple(objects.values()), tuple(objects), site)

"""One object of a group: it computes operation instances, as the order ``objects`` hands their messages over.

The order says when a message may be handed over, and never waits for a computation. What a *site* adds:

**Ready** (§4.3). A request that was handed over is queued. Its instance begins, and the request counts as delivered,
when no instance that conflicts with it is before it: none of another root that has begun and whose root has not ended,
and none at all that was queued earlier. So conflicting instances begin in the order in which they were handed over,
which is the same at all common destinations. Instances of one root never wait for each other once they have begun: a
root is one activity, which waits for its own calls (an instance so never conflicts with its ancestors); what orders its
messages is the order below.

**Closed nesting.** What an instance does is an intention (:mod:`antecede.objects.replay`) that the objects keep until
the root's home decides. Commit and abort travel down the tree of calls. An instance that fails aborts its own calls and
tells its callers; whoever called it may go on. Locks stay with the root until it ends, but for those of what failed or
was aborted within it: what such an instance saw may have changed by the time that its root commits.

**Wound–wait.** The theorem of §3.3 is about messages; instances can still wait for each other in a circle (op1@i calls
op2@j while op3@j calls op4@i, with op1 ~ op4 and op2 ~ op3). So whoever is queued behind an instance of a *younger*
root asks that root's home to abort it (``wound``); the home does, unless it has decided to commit. The root is tried
again, with its old number, once what wounded it has ended (``heal``); tried at once it would be in the way again. All
waiting is then of younger roots for older ones, and the oldest is never wounded. An object lets only so many of its
roots begin at a time, the oldest first: more would only wound each other.

**Abort** never restores a state: two compatible increments interleave, and undoing one must not undo the other.

Like an order a site has ``receive``, ``tick`` and ``snapshot``, and answers with effects; besides the order's there are
:class:`~antecede.objects.instances.Local` and :class:`~antecede.objects.instances.Answered`.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from antecede import limits
from antecede.errors import ObjectError, OrderError
from antecede.messages import (
    ABORT,
    COPY,
    PERSIST,
    REQUEST,
    RESPONSE,
    Accept,
    Deliver,
    Effects,
    Label,
    Message,
    Packet,
    Send,
    Verdict,
)
from antecede.objects.computing import REQUESTS, Computing, caller_of, read_payload
from antecede.objects.instances import (
    DONE,
    QUEUED,
    Answer,
    Instance,
    Root,
)
from antecede.objects.model import lacking, operations_of
from antecede.objects.replay import kept
from antecede.orders.contract import Reason
from antecede.orders.objects import HEAL, WOUND

TIMEOUT = "timeout: the call took too long and was aborted"

_elsewhere = (False, "aborted by another caller")


class Site(Computing):
    """One object, its instances, and its member of the order ``objects``."""

    # What a user may do.

    def start(
        self, name: str, arguments: Iterable[Any] = (), *, deadline: float | None = None, by: str = ""
    ) -> tuple[str, Effects]:
        """Start a root: an operation of this object, by itself or by somebody whose name then begins the root's. The
        root's name, and what follows; its end will be ``Answered``."""
        if name not in operations_of(self.kind):
            raise ObjectError(lacking(self.kind, name))
        try:
            given = tuple(kept(list(arguments)))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ObjectError(f"arguments of {self.kind.__name__}.{name}: no plain values: {error}") from None
        self.started += 1
        number = (self.order.clock, self.me, self.started)
        root = Root(f"{by or self.names[self.me]}.{self.started}", name, given, number, 1, deadline)
        self.waiting.append(root)
        self._let_begin()
        return root.name, self._finished()

    def tick(self, now: float) -> Effects:
        """Abort the roots whose time is up."""
        late = [root for root in self._unended() if root.deadline is not None and root.deadline <= now]
        # All at once: thousands may have waited for one object that is down, and their time be up together.
        self.waiting = [root for root in self.waiting if root.deadline is None or root.deadline > now]
        for root in late:
            self._give_up(root, (False, TIMEOUT))
        return self._finished() if late else []

    def deadline(self) -> float | None:
        """When ``tick`` is wanted next."""
        return min((root.deadline for root in self._unended() if root.deadline is not None), default=None)

    def _unended(self) -> list[Root]:
        return [*self.roots.values(), *self.resting.values(), *self.waiting]

    # What arrives.

    def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
        if packet.kind in (WOUND, HEAL):
            return self._told_of(packet.subject, packet.kind == WOUND)
        verdict, effects = self.order.receive(packet)
        if verdict is Verdict.DUPLICATE:
            return verdict, effects
        self._take_in(effects)
        effects = self._finished()
        if packet.kind == COPY and verdict is Verdict.DELIVER:
            here = packet.subject
            if not any(isinstance(effect, Deliver) and effect.message.id == here for effect in effects):
                # It is queued here, and part of the durable state.
                return Verdict.HOLD, [*effects, Accept(packet)]
        return verdict, effects

    def _handed_over(self, message: Message) -> None:
        label = message.label
        if label is None:
            self._out.append(Deliver(message))
            return
        if label.type == REQUEST:
            self._requested(message, label)
            return
        one = self.table.instances.get(label.instance)
        if one is not None and label.type != RESPONSE and message.source not in self._callers(one):
            # Nobody but its callers, and for a root nobody at all, may say how an instance ends.
            one = None
        if one is None or one.state == QUEUED:
            if one is not None and label.type == ABORT:
                self._drop(one, message.source)
            self._deliver_to_nobody(message)
            return
        self._out.append(Deliver(message))
        if label.type == RESPONSE:
            self._responded(one, message, label)
        elif label.type == ABORT:
            unanswered = [] if one.state == DONE else one.callers
            self._abort(one, _elsewhere, [caller for caller in unanswered if caller.source != message.source])
        elif one.state == DONE:
            self._commit(one)

    def _callers(self, one: Instance) -> set[int]:
        return {caller.source for caller in one.callers} | {message.source for message in one.pending}

    def _drop(self, one: Instance, source: int) -> None:
        """A queued instance is aborted by one of its callers."""
        requests, one.pending = one.pending, []
        for request in requests:
            self._deliver_to_nobody(request)
        callers = [caller for caller in map(caller_of, requests) if caller.source != source]
        self._abort(one, _elsewhere, callers)

    def _told_of(self, attempt: str, wounded: bool) -> tuple[Verdict, Effects]:
        if attempt not in self.roots and attempt not in self.resting:
            return Verdict.DUPLICATE, []
        if wounded and attempt in self.roots:
            self._rest(self.roots[attempt])
        elif not wounded:
            self._heal(attempt)
        return Verdict.DELIVER, self._finished()

    # Roots and requests.

    def _queue_root(self, root: Root) -> None:
        self.roots[root.attempt] = root
        self.table.queue(Instance(root.attempt, root.operation, root.arguments, root.attempt, root.number, "", 0))

    def _requested(self, message: Message, label: Label) -> None:
        request = read_payload(REQUESTS, message)
        if request is None or not 0 <= request.number[1] < self.members or label.instance in self.roots:
            # Nobody calls a root: whoever could would also be one to end it.
            self._deliver_to_nobody(message)
            return
        one = self.table.instances.get(label.instance)
        if one is None and label.instance in self._ended:
            # A replica of its caller was quicker, and this is over: it is not begun again for the slower one.
            self._deliver_to_nobody(message)
            response = Label(RESPONSE, label.by_operation, label.by_instance, label.operation, label.instance, True)
            self._send(1 << message.source, response, (False, self._ended[label.instance]))
            return
        if one is None:
            number = request.number
            one = Instance(
                label.instance, label.operation, request.arguments, request.root, number, label.by_instance, 0
            )
            self.table.queue(one)
        if one.state == QUEUED:
            one.pending.append(message)
        else:
            self._join(one, message, label)

    def _let_begin(self) -> None:
        while self.waiting and len(self.roots) + len(self.resting) < limits.roots_running_max:
            self._queue_root(self.waiting.pop(0))

    def _give_up(self, root: Root, answer: Answer) -> None:
        if root.attempt in self.roots:
            self._abort(self.table.instances[root.attempt])
        self._ended_root(root, answer)

    def _rest(self, root: Root) -> None:
        """A root is wounded: it is undone, and waits."""
        self.wounds += 1
        attempt = root.attempt
        self._abort(self.table.instances[attempt])
        del self.roots[attempt]
        self.resting[attempt] = root
        if attempt in self._healed:
            self._heal(attempt)

    def _heal(self, attempt: str) -> None:
        root = self.resting.pop(attempt, None)
        if root is None:
            if attempt in self.roots:
                self._healed.add(attempt)
            return
        self._healed.discard(attempt)
        root.tries += 1
        self._queue_root(root)

    # Waiting.

    def _pump(self) -> None:
        """Begin what may begin, and wound what is younger and in the way of something older."""
        while self.table.stirred:
            self.table.stirred = False
            for one in self.table.queued():
                rivals = self.table.rivals(one)
                if not rivals:
                    self._begin(one)
                if not rivals or self._wound(one, [other for other in rivals if other.number > one.number]):
                    break

    def _wound(self, one: Instance, younger: list[Instance]) -> bool:
        """Ask the homes of these to make way for one that is older. Did that change anything here?"""
        for other in younger:
            if other.root in self._wounded:
                continue
            if other.home != self.me:
                self._out.append(Send(Packet(WOUND, self.me, other.home, None, other.root, None)))
            elif other.root not in self.roots:
                continue
            self._wounded.add(other.root)
            self._wounds_by.setdefault(one.id, []).append((other.home, other.root))
            if other.home == self.me:
                self._rest(self.roots[other.root])
                return True
        return False

    # Words to others.

    def _finished(self) -> Effects:
        """All that a step has brought about."""
        self._pump()
        effects, self._out = [PERSIST, *self._out], []
        return effects

    def send(self, message: Message) -> Effects:
        raise OrderError("an object sends nothing but what its operations call: start one")

    def held(self) -> list[Message]:
        queued = [message for one in self.table.queued() for message in one.pending]
        return [*self.order.held(), *queued]

    def explain_held(self) -> Iterator[tuple[Message, list[Reason]]]:
        yield from self.order.explain_held()
        for one in self.table.queued():
            rivals = [(other.home, f"{other.operation} of its {other.root}") for other in self.table.rivals(one)]
            for message in one.pending:
                yield message, rivals

    # State.

    def dump(self) -> Any:
        return (
            self.order.dump(),
            self.state,
            self.table.dump(),
            [msgspec.to_builtins(root) for _, root in sorted(self.roots.items())],
            [msgspec.to_builtins(root) for root in self.waiting],
            [(attempt, msgspec.to_builtins(root)) for attempt, root in sorted(self.resting.items())],
            (self.started, self.posted, self.wounds),
            (sorted(self._wounded), sorted(self._healed), sorted(self._wounds_by.items())),
            list(self._ended.items()),
        )

    def load(self, state: Any) -> None:
        order, self.state, table, roots, waiting, resting, counts, wounds, ended = state
        self.order.load(order)
        self.table.load(table)
        self.roots = {root.attempt: root for root in msgspec.convert(roots, list[Root])}
        self.waiting = msgspec.convert(waiting, list[Root])
        self.resting = {attempt: msgspec.convert(root, Root) for attempt, root in resting}
        self.started, self.posted, self.wounds = counts
        wounded, healed, wounds_by = wounds
        self._wounded, self._healed = set(wounded), set(healed)
        self._wounds_by = {id_: [(home, attempt) for home, attempt in asked] for id_, asked in wounds_by}
        self._ended = dict(ended)

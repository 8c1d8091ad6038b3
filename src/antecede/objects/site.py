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
tells its callers; whoever called it may go on. Locks stay with the root until it ends.

**Wound–wait.** The theorem of §3.3 is about messages; instances can still wait for each other in a circle (op1@i calls
op2@j while op3@j calls op4@i, with op1 ~ op4 and op2 ~ op3). So whoever is queued behind an instance of a *younger*
root asks that root's home to abort it (``wound``); the home does, unless it has decided to commit. The root is tried
again, with its old number. All waiting is then of younger roots for older ones, and the oldest is never wounded.

**Abort** never restores a state: two compatible increments interleave, and undoing one must not undo the other.

Like an order a site has ``receive``, ``tick`` and ``snapshot``, and answers with effects; besides the order's there are
:class:`~antecede.objects.instances.Local` and :class:`~antecede.objects.instances.Answered`.
"""

from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from antecede import limits
from antecede.errors import ObjectError, OrderError, StampError
from antecede.messages import (
    ABORT,
    COMMIT,
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
    Persist,
    Send,
    Verdict,
)
from antecede.objects.instances import (
    DONE,
    QUEUED,
    RUNNING,
    Answer,
    Answered,
    Caller,
    Instance,
    Local,
    Made,
    Request,
    Root,
)
from antecede.objects.model import Call, Object, initial, operations_of, relation_of
from antecede.objects.replay import fold
from antecede.objects.table import Table
from antecede.orders.contract import Order
from antecede.orders.encoding import Reader, Writer
from antecede.orders.objects import WOUND, Objects

_elsewhere = (False, "aborted by another caller")

_requests = msgspec.msgpack.Decoder(Request)
_answers = msgspec.msgpack.Decoder(Answer)


class Site(Order):
    """One object, its instances, and its member of the order ``objects``."""

    name: ClassVar[str] = "objects"
    source: ClassVar[str] = Objects.source
    guarantees = Objects.guarantees
    needs: ClassVar[frozenset[str]] = Objects.needs
    controls: ClassVar[tuple[str, ...]] = Objects.controls
    ordering: ClassVar[type[Objects]] = Objects

    def __init__(self, me: int, kind: type[Object], names: tuple[str, ...], conflicts: str, clocks: str) -> None:
        super().__init__(me, len(names))
        self.kind = kind
        self.names = names
        self.relation = relation_of(kind)
        self.order = self.ordering(me, len(names), conflicts=conflicts, clocks=clocks)
        self.order.defer = True
        self.state: dict[str, Any] = initial(kind)
        """What has been committed."""
        self.table = Table(self.relation)
        self.roots: dict[str, Root] = {}
        """Roots that were started here and have not ended, by the name of their present try."""
        self.started = 0
        self.posted = 0
        self.wounds = 0
        """How many roots of this home were wounded so far."""
        self._wounded: set[str] = set()
        """Tries of which we have asked their home to abort them."""
        self._ended: dict[str, str] = {}
        """Instances that failed or were aborted here, the latest of them, and why."""
        self._out: list[Any] = []

    # What a user may do.

    def start(self, name: str, arguments: Iterable[Any] = (), *, deadline: float | None = None) -> tuple[str, Effects]:
        """Start a root: an operation of this object. Its name, and what follows; its end will be ``Answered``."""
        if name not in operations_of(self.kind):
            raise ObjectError(f"{self.kind.__name__} has no operation {name!r}")
        self.started += 1
        number = (self.order.clock, self.me, self.started)
        root = Root(f"{self.names[self.me]}.{self.started}", name, tuple(arguments), number, 1, deadline)
        self._queue_root(root)
        return root.name, self._finished()

    def tick(self, now: float) -> Effects:
        """Abort the roots whose time is up."""
        late = [root for root in self.roots.values() if root.deadline is not None and root.deadline <= now]
        for root in late:
            self._end_root(root, (False, "timeout: the call took too long and was aborted"))
        return self._finished() if late else []

    def deadline(self) -> float | None:
        """When ``tick`` is wanted next."""
        return min((root.deadline for root in self.roots.values() if root.deadline is not None), default=None)

    # What arrives.

    def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
        if packet.kind == WOUND:
            return self._asked_to_abort(packet.subject)
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

    def _take_in(self, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Deliver):
                self._handed_over(effect.message)
            elif not isinstance(effect, Persist):
                self._out.append(effect)

    def _handed_over(self, message: Message) -> None:
        label = message.label
        if label is None:
            self._out.append(Deliver(message))
            return
        if label.type == REQUEST:
            self._requested(message, label)
            return
        one = self.table.instances.get(label.instance)
        if one is None or one.state == QUEUED:
            if one is not None:
                self._drop(one, message.source)
            self._deliver_to_nobody(message)
            return
        self._out.append(Deliver(message))
        if label.type == RESPONSE:
            self._responded(one, message, label)
        elif label.type == COMMIT:
            self._commit(one)
        else:
            unanswered = [] if one.state == DONE else one.callers
            self._abort(one, _elsewhere, [caller for caller in unanswered if caller.source != message.source])

    def _deliver_to_nobody(self, message: Message) -> None:
        """The instance that a message is for has ended here, or never begins, or does not need it: it is delivered,
        and no instance receives it."""
        label = message.label
        assert label is not None
        if label.type == REQUEST:
            self.order.begin(message)
        if label.instance not in self.table.instances:
            self.order.forget(label.instance)
        self._out.append(Deliver(msgspec.structs.replace(message, label=Label(label.type, ""))))

    def _drop(self, one: Instance, source: int) -> None:
        """A queued instance is aborted by one of its callers."""
        requests, one.pending = one.pending, []
        for request in requests:
            self._deliver_to_nobody(request)
        callers = [caller for caller in map(_caller, requests) if caller.source != source]
        self._abort(one, _elsewhere, callers)

    def _asked_to_abort(self, attempt: str) -> tuple[Verdict, Effects]:
        root = self.roots.get(attempt)
        if root is None:
            return Verdict.DUPLICATE, []
        self._try_again(root)
        return Verdict.DELIVER, self._finished()

    # Instances.

    def _queue_root(self, root: Root) -> None:
        self.roots[root.attempt] = root
        self.table.queue(Instance(root.attempt, root.operation, root.arguments, root.attempt, root.number, "", 0))

    def _requested(self, message: Message, label: Label) -> None:
        request = _read(_requests, message)
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

    def _join(self, one: Instance, message: Message, label: Label) -> None:
        """A request reaches an instance that has begun, or begins now. If a replica of its caller was first, the
        request only asks for the answer: the instance does not begin with it, and so does not receive it."""
        if one.callers:
            self._deliver_to_nobody(message)
        else:
            self.order.begin(message)
            self._out.append(Deliver(message))
        caller = _caller(message)
        request = _read(_requests, message)
        if (label.operation, request.arguments) != (one.operation, one.arguments):
            answer: Answer = (False, f"replicas disagree on what {one.id} calls")
            self._respond(one, caller, answer)
            return
        one.callers.append(caller)
        if one.answer is not None:
            self._respond(one, caller, one.answer)

    def _begin(self, one: Instance) -> None:
        self.table.begin(one)
        requests, one.pending = one.pending, []
        for message in requests:
            assert message.label is not None
            self._join(one, message, message.label)
        self._out.append(Local("begin", one.id, one.operation, one.parent))
        self._go_on(one)

    def _go_on(self, one: Instance) -> None:
        """Compute an instance as far as it gets."""
        _, outcomes = fold(self.kind, self.state, self.table.begun(one.root))
        outcome = outcomes[one.id]
        if outcome.answer is not None:
            if outcome.answer[0]:
                self._done(one, outcome.answer)
            else:
                self._fail(one, outcome.answer)
            return
        if len(outcome.calls) != len(one.calls) + 1:
            self._fail(one, (False, "computed again, it called something else: operations must be deterministic"))
            return
        refusal = self._call(one, outcome.calls[-1])
        if refusal:
            one.calls.append(Made("", 0, True))
            one.answers.append((False, refusal))
            self._go_on(one)

    def _call(self, one: Instance, call: Call) -> str:
        """Send a nested call, or say why that cannot be."""
        unknown = [name for name in call.targets if name not in self.names]
        if unknown or not call.targets:
            return f"no object {unknown[0]!r}" if unknown else "a call to nobody"
        child = f"{one.id}/{len(one.calls) + 1}"
        if child.count("/") > limits.nesting_depth_max or len(child) > limits.label_chars_max:
            return f"calls nested deeper than {limits.nesting_depth_max}"
        to = sum(1 << self.names.index(name) for name in set(call.targets))
        one.calls.append(Made(call.operation, to))
        one.replies = {}
        request = Request(one.root, one.number, call.arguments)
        self._send(to, Label(REQUEST, call.operation, child, one.operation, one.id), request)
        return ""

    def _responded(self, one: Instance, message: Message, label: Label) -> None:
        number = len(one.calls)
        if one.state != RUNNING or label.by_instance != f"{one.id}/{number}" or len(one.answers) == number:
            return
        made = one.calls[-1]
        if not made.to >> message.source & 1:
            return
        one.replies[message.source] = _read(_answers, message)
        if len(one.replies) < made.to.bit_count():
            return
        replies, one.replies = one.replies, {}
        failed = [value for went_well, value in replies.values() if not went_well]
        if failed:
            self._undo(one, made, number)
            one.answers.append((False, failed[0]))
        elif len(replies) == 1:
            one.answers.append(next(iter(replies.values())))
        else:
            one.answers.append((True, {self.names[member]: replies[member][1] for member in sorted(replies)}))
        self._go_on(one)

    def _respond(self, one: Instance, caller: Caller, answer: Answer) -> None:
        # What a failure follows from may be an abort that is on its way to the caller as well.
        several = caller.several or not answer[0]
        label = Label(RESPONSE, caller.operation, caller.instance, one.operation, one.id, several)
        self._send(1 << caller.source, label, answer)

    # Ends.

    def _done(self, one: Instance, answer: Answer) -> None:
        one.state = DONE
        one.answer = answer
        for caller in one.callers:
            self._respond(one, caller, answer)
        root = self.roots.get(one.id)
        if root is not None:
            self._commit(one)
            del self.roots[one.id]
            self._out.append(Answered(root.name, True, answer[1], root.tries))

    def _fail(self, one: Instance, answer: Answer) -> None:
        self._abort(one, answer, one.callers)
        root = self.roots.pop(one.id, None)
        if root is not None:
            self._out.append(Answered(root.name, False, answer[1], root.tries))

    def _commit(self, one: Instance) -> None:
        """The root has decided that this instance is to last."""
        if one.decided:
            return
        one.decided = True
        for number, made in enumerate(one.calls, 1):
            if not made.undone:
                self._send(made.to, Label(COMMIT, made.operation, f"{one.id}/{number}", one.operation, one.id))
        self._settle(one.root)

    def _settle(self, root: str) -> None:
        """Apply what a root did here, once it is known of each of its instances whether it lasts: one that is still to
        be aborted may lie between two that last."""
        begun = self.table.begun(root)
        if begun and all(one.decided for one in begun):
            self.state, _ = fold(self.kind, self.state, begun)
            for one in begun:
                self._close(one, COMMIT)

    def _abort(self, one: Instance, answer: Answer | None = None, callers: Iterable[Caller] = ()) -> None:
        """Undo an instance and its calls, and tell these callers why. It stays undone: replicas of its callers that
        are slower must not find it computed anew, perhaps with another outcome."""
        for number, made in enumerate(one.calls, 1):
            if not made.undone:
                self._undo(one, made, number)
        if answer is not None:
            self._ended[one.id] = str(answer[1])
            for ended in list(self._ended)[: -limits.ended_instances_max]:
                del self._ended[ended]
            for caller in callers:
                self._respond(one, caller, answer)
        if one.state == QUEUED:
            # What has not begun leaves no trace.
            del self.table.instances[one.id]
        else:
            self._close(one, ABORT)
        self._settle(one.root)

    def _undo(self, one: Instance, made: Made, number: int) -> None:
        made.undone = True
        self._send(made.to, Label(ABORT, made.operation, f"{one.id}/{number}", one.operation, one.id))

    def _close(self, one: Instance, how: str) -> None:
        self._out.append(Local(how, one.id, one.operation, one.parent))
        del self.table.instances[one.id]
        self.order.forget(one.id)
        if not any(other.root == one.root for other in self.table.instances.values()):
            self._wounded.discard(one.root)

    def _end_root(self, root: Root, answer: Answer) -> None:
        self._abort(self.table.instances[root.attempt])
        del self.roots[root.attempt]
        self._out.append(Answered(root.name, answer[0], answer[1], root.tries))

    def _try_again(self, root: Root) -> None:
        self.wounds += 1
        self._abort(self.table.instances[root.attempt])
        del self.roots[root.attempt]
        root.tries += 1
        self._queue_root(root)

    # Waiting.

    def _pump(self) -> None:
        """Begin what may begin, and wound what is younger and in the way of something older."""
        changed = True
        while changed:
            changed = False
            for one in self.table.queued():
                rivals = self.table.rivals(one)
                if not rivals:
                    self._begin(one)
                changed = not rivals or self._wound([other for other in rivals if other.number > one.number])
                if changed:
                    break

    def _wound(self, younger: list[Instance]) -> bool:
        """Ask the homes of these to abort them. Did that change anything here?"""
        for other in younger:
            if other.root in self._wounded:
                continue
            if other.home != self.me:
                self._wounded.add(other.root)
                self._out.append(Send(Packet(WOUND, self.me, other.home, None, other.root, None)))
            elif other.root in self.roots:
                self._try_again(self.roots[other.root])
                return True
        return False

    # Words to others.

    def _send(self, to: int, label: Label, content: Any = None) -> None:
        self.posted += 1
        payload = b"" if content is None else msgspec.msgpack.encode(content)
        message = Message(f"{self.names[self.me]}-{self.posted}", self.me, to, payload, label)
        self._take_in(self.order.send(message))

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

    # Stamps are the order's.

    def write_stamp(self, packet: Packet, out: Writer) -> None:
        self.order.write_stamp(packet, out)

    def read_stamp(self, kind: str, source: int, data: Reader) -> Any:
        return self.order.read_stamp(kind, source, data)

    # State.

    def dump(self) -> Any:
        return (
            self.order.dump(),
            self.state,
            self.table.dump(),
            [msgspec.to_builtins(root) for _, root in sorted(self.roots.items())],
            (self.started, self.posted, self.wounds),
            sorted(self._wounded),
            list(self._ended.items()),
        )

    def load(self, state: Any) -> None:
        order, self.state, table, roots, counts, wounded, ended = state
        self.order.load(order)
        self.table.load(table)
        self.roots = {root.attempt: root for root in msgspec.convert(roots, list[Root])}
        self.started, self.posted, self.wounds = counts
        self._wounded = set(wounded)
        self._ended = dict(ended)


def _caller(message: Message) -> Caller:
    """Who waits for the answer to a request."""
    label = message.label
    assert label is not None
    return Caller(message.source, label.by_instance, label.by_operation, message.to & (message.to - 1) != 0)


def _read(decoder: Any, message: Message) -> Any:
    """The content of a message from another object."""
    try:
        return decoder.decode(message.payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StampError(f"message {message.id} of member {message.source} cannot be read: {error}") from None

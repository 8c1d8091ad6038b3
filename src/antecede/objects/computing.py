"""How an operation instance begins, goes on and ends at one object.

**Closed nesting.** What an instance does is an intention (:mod:`antecede.objects.replay`) that the objects keep until
the root's home decides. Commit and abort travel down the tree of calls. An instance that fails aborts its own calls and
tells its callers; whoever called it may go on. Locks stay with the root until it ends, but for those of what failed.

**Replicas** that each repeat a nested call call one instance, which is computed once and answered to each. One that
failed or was aborted stays so, for a slower replica must not find it computed anew, perhaps with another outcome.

What commits here is applied once it is known of each instance of the root whether it lasts.
"""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from antecede import limits
from antecede.messages import (
    ABORT,
    COMMIT,
    REQUEST,
    RESPONSE,
    Deliver,
    Effects,
    Label,
    Message,
    Packet,
    Persist,
    Send,
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
from antecede.objects.model import Call, Object, initial, relation_of
from antecede.objects.replay import fold, kept
from antecede.objects.table import Table
from antecede.orders.contract import Order
from antecede.orders.encoding import Reader, Writer
from antecede.orders.objects import HEAL, Objects

REQUESTS = msgspec.msgpack.Decoder(Request)
ANSWERS = msgspec.msgpack.Decoder(Answer)


class Computing(Order):
    """The instances of one object."""

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
        self.state: dict[str, Any] = kept(initial(kind))
        """What has been committed."""
        self.table = Table(self.relation)
        self.roots: dict[str, Root] = {}
        """Roots that were started here and have not ended, by the name of their present try."""
        self.started = 0
        self.posted = 0
        self.wounds = 0
        """How many roots of this home were wounded so far."""
        self.waiting: list[Root] = []
        """Roots that have not been let begin: enough others are under way."""
        self.resting: dict[str, Root] = {}
        """Roots of this home that were wounded, by the name of that try: they wait for what wounded them to end."""
        self._healed: set[str] = set()
        """Tries that may go on at once when they are wounded: word that they may came first."""
        self._wounded: set[str] = set()
        """Tries of which we have asked their home to abort them."""
        self._wounds_by: dict[str, list[tuple[int, str]]] = {}
        """For each instance here those that were asked to make way for it: home and try."""
        self._ended: dict[str, str] = {}
        """Instances that failed or were aborted here, the latest of them, and why."""
        self._out: list[Any] = []

    # Beginning and going on.

    def _join(self, one: Instance, message: Message, label: Label) -> None:
        """A request reaches an instance that has begun, or begins now. If a replica of its caller was first, the
        request only asks for the answer: the instance does not begin with it, and so does not receive it."""
        if one.callers:
            self._deliver_to_nobody(message)
        else:
            self.order.begin(message)
            self._out.append(Deliver(message))
        caller = caller_of(message)
        request = read_payload(REQUESTS, message)
        if request is None or (label.operation, request.arguments) != (one.operation, one.arguments):
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
        if not _is_plain(outcome.answer, outcome.state, [call.arguments for call in outcome.calls]):
            self._fail(one, (False, "its state, its answer or an argument is no plain value"))
            return
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
        to, operation = self._destination(call)
        if not to:
            return operation
        child = f"{one.id}/{len(one.calls) + 1}"
        if child.count("/") > limits.nesting_depth_max or len(child) > limits.label_chars_max:
            return f"calls nested deeper than {limits.nesting_depth_max}"
        if not _can_travel(operation):
            # A request that no member can read would stop all that come after it.
            return f"the name of an operation has more than {limits.label_chars_max} characters, or is no text"
        one.calls.append(Made(operation, to))
        one.replies = {}
        request = Request(one.root, one.number, call.arguments)
        self._send(to, Label(REQUEST, operation, child, one.operation, one.id), request)
        return ""

    def _destination(self, call: Call) -> tuple[int, str]:
        """The members that a call is for, and what it is called there; nobody, and why not."""
        unknown = [name for name in call.targets if name not in self.names]
        if unknown or not call.targets:
            return 0, f"no object {unknown[0]!r}" if unknown else "a call to nobody"
        return sum(1 << self.names.index(name) for name in set(call.targets)), call.operation

    def _responded(self, one: Instance, message: Message, label: Label) -> None:
        number = len(one.calls)
        if one.state != RUNNING or label.by_instance != f"{one.id}/{number}" or len(one.answers) == number:
            return
        made = one.calls[-1]
        if not made.to >> message.source & 1:
            return
        one.replies[message.source] = read_payload(ANSWERS, message) or (False, "an answer that cannot be read")
        if len(one.replies) < made.to.bit_count():
            return
        replies, one.replies = one.replies, {}
        answer = self._united(made, replies)
        if not answer[0]:
            self._undo(one, made, number)
        one.answers.append(answer)
        self._go_on(one)

    def _united(self, made: Made, replies: dict[int, Answer]) -> Answer:
        """What a call is answered, given the answers of all who were called."""
        failed = next((answer for answer in replies.values() if not answer[0]), None)
        if failed is not None or len(replies) == 1:
            return failed or next(iter(replies.values()))
        return True, {self.names[member]: replies[member][1] for member in sorted(replies)}

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
            self._ended_root(root, answer)

    def _fail(self, one: Instance, answer: Answer) -> None:
        self._abort(one, answer, one.callers)
        if one.id in self.roots:
            self._ended_root(self.roots[one.id], answer)

    def _ended_root(self, root: Root, answer: Answer) -> None:
        """Tell how a root ended; the next one may begin."""
        self.roots.pop(root.attempt, None)
        self.resting.pop(root.attempt, None)
        self._healed.discard(root.attempt)
        self._out.append(Answered(root.name, *answer, root.tries))
        self._let_begin()

    @abstractmethod
    def _let_begin(self) -> None:
        """Begin roots that wait, as long as not too many are under way."""

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
            state, _ = fold(self.kind, self.state, begun)
            self.state = kept(state)
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
            self._remove(one)
        else:
            self._close(one, ABORT)
        self._settle(one.root)

    def _undo(self, one: Instance, made: Made, number: int) -> None:
        made.undone = True
        self._send(made.to, Label(ABORT, made.operation, f"{one.id}/{number}", one.operation, one.id))

    def _close(self, one: Instance, how: str) -> None:
        self._out.append(Local(how, one.id, one.operation, one.parent))
        self.order.forget(one.id)
        self._remove(one)

    def _remove(self, one: Instance) -> None:
        self.table.remove(one)
        for home, attempt in self._wounds_by.pop(one.id, ()):
            if home == self.me:
                self._heal(attempt)
            else:
                self._out.append(Send(Packet(HEAL, self.me, home, None, attempt, None)))
        if not any(other.root == one.root for other in self.table.instances.values()):
            self._wounded.discard(one.root)

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

    # Words to others.

    def _take_in(self, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Deliver):
                self._handed_over(effect.message)
            elif not isinstance(effect, Persist):
                self._out.append(effect)

    def _send(self, to: int, label: Label, content: Any = None) -> None:
        self.posted += 1
        payload = b"" if content is None else msgspec.msgpack.encode(content)
        message = Message(f"{self.names[self.me]}-{self.posted}", self.me, to, payload, label)
        self._take_in(self.order.send(message))

    @abstractmethod
    def _heal(self, attempt: str) -> None:
        """What a try of this home was wounded for has ended."""

    @abstractmethod
    def _handed_over(self, message: Message) -> None:
        """The order hands a message over."""

    # Stamps are the order's.

    def write_stamp(self, packet: Packet, out: Writer) -> None:
        self.order.write_stamp(packet, out)

    def read_stamp(self, kind: str, source: int, data: Reader) -> Any:
        return self.order.read_stamp(kind, source, data)


def caller_of(message: Message) -> Caller:
    """Who waits for the answer to a request."""
    label = message.label
    assert label is not None
    return Caller(message.source, label.by_instance, label.by_operation, message.to & (message.to - 1) != 0)


def read_payload(decoder: Any, message: Message) -> Any:
    """The content of a message from another object; nothing if it cannot be read."""
    try:
        return decoder.decode(message.payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _can_travel(name: str) -> bool:
    """Can this be a name in a label?"""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return len(name) <= limits.label_chars_max


def _is_plain(*values: Any) -> bool:
    """Can these travel and be kept?"""
    try:
        msgspec.msgpack.encode(values)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False
    return True

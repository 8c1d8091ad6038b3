"""The computation of operation instances at one object: from the request to commit or abort (§2 of Enokido, Higaki,
Takizawa).

**Closed nesting.** A *root* is an operation that a user started, and its *home* is the object where it was started. The
home decides whether the root commits or aborts. Until then, the effects of each instance of the root are only an
*intention*: changes that are computed, but not yet applied to the state (:mod:`antecede.objects.replay`). A commit or
an abort is sent from each caller to the objects that it called. An instance that fails aborts its own calls, and
answers its callers with the reason. The callers may continue. An abort never restores an earlier state, because this
would also undo compatible operations that other roots have committed meanwhile. A root may have several instances at
one object. The object waits until each of these instances has got the commit or has been aborted. Then it applies the
effects of the committed instances together.

**Replicas.** If several replicas make the same nested call, they all call one instance. This instance is computed once,
and each replica gets the answer. An instance that failed or was aborted is not computed again for a slower replica,
because the outcome might be different.

**Blind operations** conflict with nothing, call nothing and return nothing. Their order does not matter, no conflict
can undo them, and their answer is the same everywhere. The option ``confirm=False`` of an operation makes use of this:
if the home has a replica, the home can compute, commit and answer the call in one step. The request is then marked as
``final``: each replica applies the call immediately, without a response or a commit.

A nested call of a blind operation cannot be committed in this way, because it must commit or abort with its root. But
if the calling object and the called object have replicas on the same servers, each replica of the calling object calls
only the replica on its own server (``Members.near``).

An object has several parts. This module uses only its state, its table of instances, its members and its outbox. The
site (:mod:`antecede.objects.site`) manages roots and locks. From ``reports``, it learns which instances have ended.
"""

from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from antecede import limits
from antecede.errors import ObjectError
from antecede.messages import ABORT, COMMIT, PERSIST, REQUEST, RESPONSE, Deliver, Effects, Label, Message, Persist
from antecede.objects.instances import (
    DONE,
    QUEUED,
    RUNNING,
    Answer,
    Caller,
    Failed,
    Instance,
    Local,
    Made,
    Request,
    Stray,
    Table,
)
from antecede.objects.model import Call, Object, SharedCall
from antecede.objects.replay import Intentions, run
from antecede.orders.objects import Objects

# The members of a group: which of them get a call, and how their answers are combined into one (§2 and §3.3 of
# Enokido, Higaki, Takizawa).


class Members:
    """The members of a group in which each member is one object. A call names the objects that it goes to."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def destination(self, call: Call) -> tuple[int, str]:
        """Return two values: a bit mask of the members to which a call goes, and the name of the called operation at
        these members. Raise an error if the call has no target, or an unknown one."""
        unknown = [name for name in call.targets if name not in self.names]
        if unknown or not call.targets:
            raise ObjectError(f"no object {unknown[0]!r}" if unknown else "a call without a target")
        return sum(1 << self.names.index(name) for name in set(call.targets)), call.operation

    def near(self, caller: str, operation: str, to: int) -> int:
        """Return the members to which an instance sends its call. This class returns all called members (``to``). A
        subclass may leave out some of them, if other replicas of the calling object send the call to those members.
        ``caller``: the operation of the calling instance. ``operation``: the called operation."""
        return to

    def united(self, made: Made, replies: dict[int, Answer]) -> Answer:
        """Combine the answers of all called members into one answer. If an answer is a failure, return this failure. If
        there is only one answer, return it. Otherwise return a dictionary with all results, by the names of the
        objects."""
        failed = next((answer for answer in replies.values() if not answer[0]), None)
        if failed is not None or len(replies) == 1:
            return failed or next(iter(replies.values()))
        return True, {self.names[member]: replies[member][1] for member in sorted(replies)}


# The outbox of one object: it sends messages by means of the ordering protocol, and collects the effects of the
# current step.
#
# The outbox is the only part of an object that sends messages. It knows neither instances nor locks, and it calls no
# other part of the object. Sending never delivers a message: even a copy to the object itself first travels as a
# packet.


class Outbox:
    """The part of an object that sends messages and collects the effects of the current step, in sequence."""

    def __init__(self, me: int, name: str, order: Objects) -> None:
        self.me = me
        self.name = name
        """The prefix of all message ids that this object creates."""
        self.order = order
        self.posted = 0
        """The number of messages sent so far."""
        self._effects: list[Any] = []

    def add(self, *effects: Any) -> None:
        """Add effects, but leave out ``Persist``, because ``drain`` adds one ``Persist`` for the whole step."""
        self._effects += [effect for effect in effects if type(effect) is not Persist]

    def send(self, to: int, label: Label, content: Any = None) -> None:
        """Send a message. ``to``: the members that get the message, as a bit mask. ``label``: the label of the message,
        with the names of the sending and the receiving instance."""
        self.posted += 1
        payload = b"" if content is None else msgspec.msgpack.encode(content)
        self.add(*self.order.send(Message(f"{self.name}-{self.posted}", self.me, to, payload, label)))

    def deliver(self, message: Message) -> None:
        """Deliver a message to its instance. If the message is a request or has no label, the order treats it as
        received from now on (§4.1 of Enokido, Higaki, Takizawa)."""
        if message.label is None or message.label.type == REQUEST:
            self.order.begin(message)
        self.add(Deliver(message))

    def deliver_to_nobody(self, message: Message, ended: bool) -> None:
        """Record the delivery of a message that is not given to any instance. ``ended``: whether the receiving instance
        (it is named in the label) has ended here or never began here. If so, remove the vector of this instance."""
        label = message.label
        assert label is not None
        if label.type == REQUEST:
            self.order.begin(message)
        if ended:
            self.order.forget(label.instance)
        self.add(Stray(msgspec.structs.replace(message, label=Label(label.type, "")), label))

    def note(self, type_: str, one: Instance) -> None:
        """Record that an instance begins, commits or aborts."""
        self.add(Local(type_, one.id, one.operation, one.parent))

    def drain(self) -> Effects:
        """Return a ``Persist`` and the effects of the step, and forget these effects."""
        effects, self._effects = [PERSIST, *self._effects], []
        return effects


_requests = msgspec.msgpack.Decoder(Request)
_answers = msgspec.msgpack.Decoder(Answer)
_aborted_elsewhere: Answer = (False, "aborted by another caller")


class Finished(msgspec.Struct, frozen=True):
    """The report that an instance has computed its answer, or has failed."""

    instance: Instance
    answer: Answer


class Removed(msgspec.Struct, frozen=True):
    """The report that an instance is no longer in the table: it committed or was aborted."""

    instance: Instance


class Execution:
    """The part of an object that computes operation instances and holds the object's state."""

    intending: ClassVar[type[Intentions]] = Intentions

    def __init__(self, kind: type[Object], members: Members, table: Table, outbox: Outbox) -> None:
        self.intentions = self.intending(kind)
        self.members = members
        self.table = table
        self.outbox = outbox
        self.reports: list[Finished | Removed] = []
        """The reports on instances, in sequence. Each time a method of this class has returned, the site handles the
        new reports and removes them."""
        self.undone: dict[str, str] = {}
        """The latest instances that failed here or were aborted by a caller, each with the reason."""
        self.unconfirmed: frozenset[str] = frozenset()
        """The operations with ``confirm=False``: a call of such an operation is answered without waiting for all
        replicas. These operations are blind: see the docstring of the module."""

    # Start and continuation.

    def requested(self, message: Message, label: Label) -> None:
        """Handle a request for an instance. Ignore an invalid request. Apply a ``final`` request immediately: its call
        is already committed. For any other request, look for the instance. If it was undone here, answer with the
        reason. If it is in the table, add the request to it. If it is new, queue it."""
        request = _read(_requests, message)
        if request is None or not 0 <= request.number[1] < self.outbox.order.members:
            self.ignore(message)
            return
        if request.final:
            self._conclude(message, label, request)
            return
        one = self.table.instances.get(label.instance)
        if one is None and label.instance in self.undone:
            # Another replica of its caller was faster, and the instance was undone: it does not begin again.
            self.ignore(message)
            response = Label(RESPONSE, label.by_operation, label.by_instance, label.operation, label.instance, True)
            self.outbox.send(1 << message.source, response, (False, self.undone[label.instance]))
            return
        if one is None:
            one = _instance_of(label, request)
            self.table.queue(one)
        if one.state == QUEUED:
            one.pending.append(message)
        else:
            self._join(one, message, label)

    def _conclude(self, message: Message, label: Label, request: Request) -> None:
        """Apply a call that is already committed. The server where the call began has decided the commit."""
        one = _instance_of(label, request)
        if one.operation not in self.unconfirmed or one.id in self.table.instances:
            self.ignore(message)
            return
        self.outbox.deliver(message)
        self.outbox.note("begin", one)
        went_well, reason = self.intentions.conclude(one)
        if not went_well:
            self.outbox.add(Failed(one.id, one.operation, str(reason)))
        self.outbox.note(COMMIT if went_well else ABORT, one)
        self.outbox.order.forget(one.id)

    def begin(self, one: Instance) -> None:
        """Begin a queued instance, and record the delivery of its requests."""
        self.table.begin(one)
        requests, one.pending = one.pending, []
        for message in requests:
            assert message.label is not None
            self._join(one, message, message.label)
        self.outbox.note("begin", one)
        self._go_on(one)

    def _join(self, one: Instance, message: Message, label: Label) -> None:
        """Handle a request for an instance that has begun. Only the first request is delivered to the instance. Later
        requests come from other replicas of the caller: these replicas only get the answer."""
        if one.callers:
            self.ignore(message)
        else:
            self.outbox.deliver(message)
        caller = _caller_of(message, label)
        request = _read(_requests, message)
        if request is None or (label.operation, request.arguments) != (one.operation, one.arguments):
            self._respond(
                one,
                caller,
                (False, f"the caller's replicas call {one.id} with different operations or arguments"),
            )
            return
        one.callers.append(caller)
        if one.answer is not None:
            self._respond(one, caller, one.answer)

    def _go_on(self, one: Instance) -> None:
        """Compute an instance until it waits for an answer or has ended. A call that cannot be sent fails
        immediately."""
        while (call := self._next_call(one)) is not None:
            try:
                to, label = self._addressed(one, call)
            except ObjectError as refusal:
                one.calls.append(Made("", 0, True))
                one.answers.append((False, str(refusal)))
                continue
            request = Request(one.root, one.number, call.arguments, isinstance(call, SharedCall))
            if label.operation in self.unconfirmed and not one.parent:
                answer = self.intentions.predicted(label.instance, label.operation, request)
                if answer is not None:
                    # Nothing will be committed or undone: it is decided here.
                    one.calls.append(Made("", 0, True))
                    one.answers.append(answer)
                    if answer[0]:
                        self.outbox.send(to, label, msgspec.structs.replace(request, final=True))
                    continue
            one.calls.append(Made(label.operation, to))
            one.replies = {}
            self.outbox.send(to, label, request)
            return

    def _next_call(self, one: Instance) -> Call | None:
        """Compute an instance with the answers that it has received so far. Return its next call. If the instance has
        ended, report its end and return None."""
        if one.operation in self.intentions.kind._stateless:
            outcome = run(self.intentions.live, one.operation, one.arguments, one.answers)
        else:
            outcome = self.intentions.computed(self._with_effects(self.table.begun(one.root)))[one.id]
        if not _is_plain(outcome.answer, [call.arguments for call in outcome.calls]):
            self._fail(one, (False, "its answer, or an argument of a call, is not a plain value"))
        elif outcome.answer is not None:
            if outcome.answer[0]:
                self._done(one, outcome.answer)
            else:
                self._fail(one, outcome.answer)
        elif len(outcome.calls) != len(one.calls) + 1:
            self._fail(
                one, (False, "computed again, it made other calls than before: operations must be deterministic")
            )
        else:
            return outcome.calls[-1]
        return None

    def _addressed(self, one: Instance, call: Call) -> tuple[int, Label]:
        """Return the members that get a nested call, and the label of its request. Raise if the call cannot be sent."""
        to, operation = self.members.destination(call)
        if one.parent:
            to = self.members.near(one.operation, operation, to)
        child = f"{one.id}/{len(one.calls) + 1}"
        if child.count("/") > limits.nesting_depth_max or len(child) > limits.label_chars_max:
            raise ObjectError(f"calls nested deeper than {limits.nesting_depth_max}")
        if not _can_travel(operation):
            # A request that no member can read would block all later ones.
            raise ObjectError(
                f"the name of an operation has more than {limits.label_chars_max} characters, or is not a text"
            )
        return to, Label(REQUEST, operation, child, one.operation, one.id)

    def responded(self, one: Instance, message: Message, label: Label) -> None:
        """Handle the response to a call of this instance. The instance continues when all called members have
        responded."""
        number = len(one.calls)
        if one.state != RUNNING or label.by_instance != f"{one.id}/{number}" or len(one.answers) == number:
            return
        made = one.calls[-1]
        if not made.to >> message.source & 1:
            return
        one.replies[message.source] = _read(_answers, message) or (False, "an answer that cannot be read")
        if len(one.replies) < made.to.bit_count():
            return
        replies, one.replies = one.replies, {}
        answer = self.members.united(made, replies)
        if not answer[0]:
            self._undo(one, made, number)
        one.answers.append(answer)
        self._go_on(one)

    def _respond(self, one: Instance, caller: Caller, answer: Answer) -> None:
        # The cause of a failure may be an abort that is also in transit to the caller.
        several = caller.several or not answer[0]
        label = Label(RESPONSE, caller.operation, caller.instance, one.operation, one.id, several)
        self.outbox.send(1 << caller.source, label, answer)

    # Ends.

    def _done(self, one: Instance, answer: Answer) -> None:
        one.state = DONE
        one.answer = answer
        for caller in one.callers:
            self._respond(one, caller, answer)
        self.reports.append(Finished(one, answer))

    def _fail(self, one: Instance, answer: Answer) -> None:
        self.abort(one, answer, one.callers)
        self.reports.append(Finished(one, answer))

    def commit(self, one: Instance) -> None:
        """Handle the commit of an instance. Send the commit to the members that the instance called. If all instances
        of the root at this object have got the commit, apply their effects."""
        if one.decided or one.state != DONE:
            return
        one.decided = True
        for number, made in enumerate(one.calls, 1):
            if not made.undone:
                self.outbox.send(made.to, Label(COMMIT, made.operation, f"{one.id}/{number}", one.operation, one.id))
        self._settle(one.root)

    def _settle(self, root: str) -> None:
        """Apply the effects of a root at this object if the commit has reached all its instances here. Otherwise do
        nothing, because an instance may still be aborted, and the other instances must then be computed again without
        it."""
        begun = self.table.begun(root)
        if begun and all(one.decided for one in begun):
            self.intentions.apply(self._with_effects(begun))
            for one in begun:
                self._close(one, COMMIT)

    def _with_effects(self, begun: list[Instance]) -> list[Instance]:
        """Return those of the given instances that can read or change the state."""
        stateless = self.intentions.kind._stateless
        return [one for one in begun if one.operation not in stateless] if stateless else begun

    def aborted_by(self, one: Instance, source: int) -> None:
        """Handle the abort of an instance by its caller at member ``source``. The other callers that still wait for an
        answer get a failure."""
        requests, one.pending = one.pending, []
        callers = [] if one.state == DONE else list(one.callers)
        for request in requests:
            self.ignore(request)
            assert request.label is not None
            callers.append(_caller_of(request, request.label))
        self.abort(one, _aborted_elsewhere, [caller for caller in callers if caller.source != source])

    def abort(self, one: Instance, answer: Answer | None = None, callers: Iterable[Caller] = ()) -> None:
        """Undo an instance and its calls. If ``answer`` is given, send it to ``callers``, and remember that this
        instance must not begin again."""
        for number, made in enumerate(one.calls, 1):
            if not made.undone:
                self._undo(one, made, number)
        if answer is not None:
            self.undone[one.id] = str(answer[1])
            for ended in list(self.undone)[: -limits.ended_instances_max]:
                del self.undone[ended]
            for caller in callers:
                self._respond(one, caller, answer)
        if one.state == QUEUED:
            # An instance that has not begun has no effects.
            self._remove(one)
        else:
            self._close(one, ABORT)
        self._settle(one.root)

    def _undo(self, one: Instance, made: Made, number: int) -> None:
        made.undone = True
        self.outbox.send(made.to, Label(ABORT, made.operation, f"{one.id}/{number}", one.operation, one.id))

    def _close(self, one: Instance, how: str) -> None:
        self.outbox.note(how, one)
        self.outbox.order.forget(one.id)
        self._remove(one)

    def _remove(self, one: Instance) -> None:
        self.table.remove(one)
        self.reports.append(Removed(one))

    def ignore(self, message: Message) -> None:
        """Record the delivery of a message that has no effect, because no instance here needs it."""
        assert message.label is not None
        self.outbox.deliver_to_nobody(message, message.label.instance not in self.table.instances)


def _instance_of(label: Label, request: Request) -> Instance:
    content = (request.arguments, request.root, request.number, label.by_instance, 0)
    return Instance(label.instance, label.operation, *content, shared=request.shared)


def _caller_of(message: Message, label: Label) -> Caller:
    return Caller(message.source, label.by_instance, label.by_operation, message.to & (message.to - 1) != 0)


def _read(decoder: Any, message: Message) -> Any:
    """Return the content of a message from another object; None if it cannot be read."""
    try:
        return decoder.decode(message.payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _can_travel(name: str) -> bool:
    """Return whether this text can be the name of an operation in the label of a message: it can be encoded as UTF-8,
    and is not too long."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return len(name) <= limits.label_chars_max


def _is_plain(*values: Any) -> bool:
    """Return whether these values can be encoded in MessagePack, the format of the messages between objects."""
    try:
        msgspec.msgpack.encode(values)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False
    return True

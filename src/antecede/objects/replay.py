"""The computation of an operation from a state, the operation's arguments, and the answers to its calls so far.

An instance (one execution of an operation) that waits for an answer is not kept as a running program, because a crash
would lose the program. Only the list of its answers is kept. When the next answer comes, the instance is computed again
from the beginning. The change that the instance would make to the state is its *intention*. An intention is not stored
durably: if necessary, it is computed again. It is applied to the object when the root, the outermost call, commits
(closed nesting). So an abort only drops the intention. Other compatible operations may have committed in the meantime;
their effects remain.

Instances of one root see each other's intentions. Suppose that an instance makes its n-th call, and this call leads to
a second instance at the same object (directly or through other calls). Then the second instance is computed between the
n-th call and its answer.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, ClassVar

import msgspec

from antecede import limits
from antecede.failures import is_ctrl_c, text_of
from antecede.objects.instances import Answer, Instance, Request
from antecede.objects.model import (
    FLAT,
    Call,
    CallFailed,
    Failure,
    Object,
    copied,
    initial,
    missing_operation,
    operations_of,
)
from antecede.objects.state import Change, Live, plain
from antecede.objects.state import State as ObjectState

State = dict[str, Any]


class Outcome(msgspec.Struct):
    """The progress of an instance, computed from the answers that it has so far."""

    calls: list[Call]
    """All calls of the instance so far. If there is one more call than answers, the instance waits for the answer to
    the last call."""
    answer: Answer | None = None
    """The instance's answer; None if it has not ended."""
    state: State = {}
    """The state after the operation; only ``compute`` sets it."""


def perform(
    live: Live,
    state: ObjectState,
    method: Callable[..., Any],
    arguments: Sequence[Any],
    sendable: Callable[[Call], Call],
    answer: Callable[[Any], Any],
) -> Any:
    """Run an operation on the state of its object, and keep its changes. Return the operation's answer. If the
    operation makes calls, return a generator instead, which yields the calls and returns the answer. ``sendable``: a
    function that converts the values in a call to plain values. ``answer``: a function that does the same for the
    operation's answer."""
    view = state.view()
    result = method(view, *arguments)
    if isinstance(result, Generator):
        return _relayed(live, state, view, result, sendable, answer)
    # First the answer: it may contain what ``keep`` puts back.
    result = answer(result)
    live.keep(state, view)
    return result


def _relayed(
    live: Live,
    state: ObjectState,
    view: Object,
    program: Generator[Call, Any, Any],
    sendable: Callable[[Call], Call],
    answer: Callable[[Any], Any],
) -> Generator[Call, Any, Any]:
    """Yield the calls of an operation, and return the operation's answer. During a call, other operations that belong
    to the same root (the outermost call) may change the object. After the call, the operation sees the new state."""
    given: Any = None
    failed: CallFailed | None = None
    try:
        while True:
            call = program.send(given) if failed is None else program.throw(failed)
            if isinstance(call, Call):
                call = sendable(call)
            live.keep(state, view)
            given, failed = None, None
            try:
                given = yield call
            except CallFailed as error:
                failed = error
            state.refresh(view)
    except StopIteration as stop:
        result = answer(stop.value)
        live.keep(state, view)
        return result
    finally:
        program.close()


def run(
    live: Live,
    name: str,
    arguments: Sequence[Any],
    answers: Sequence[Answer] = (),
    between: Callable[[int], None] | None = None,
) -> Outcome:
    """Compute an operation on the state ``live``, and make the operation's changes in this state. If the operation
    fails, its changes are undone. ``between(n)`` computes the other instances that change the object during the n-th
    call of this operation."""
    method = operations_of(live.kind).get(name)
    if method is None:
        return Outcome([], (False, missing_operation(live.kind, name)))
    mark = len(live.journal)
    calls: list[Call] = []
    outer, live.running = live.running, name
    live.runs += 1
    try:
        given = [one if type(one) in FLAT else copied(one) for one in arguments]
        if live.alone is None:
            result = method(live, *given)
        else:
            result = perform(live, live.alone, method, given, _plain_call, plain)
        if isinstance(result, Generator):
            program = result
            finished, result = _drive(program, calls, answers, between)
            if not finished:
                # Its actions when it is closed (``finally``) are not part of its effects so far.
                here = len(live.journal)
                program.close()
                live.discard()
                live.rollback(here)
                return Outcome(calls)
        return Outcome(calls, (True, result))
    except BaseException as error:
        # Any exception of an operation is its answer, the same at all replicas; all its effects are undone. Otherwise
        # an operation that exits would end its server, again at every start, and so would a state that cannot be
        # copied.
        live.discard()
        live.rollback(mark)
        if is_ctrl_c(error):
            raise
        return Outcome(calls, (False, reason_of(error)))
    finally:
        live.running = outer


def run_shared(
    live: Live,
    name: str,
    shared: Sequence[Any],
    answers: Sequence[Answer] = (),
    between: Callable[[int], None] | None = None,
) -> Outcome:
    """Compute an operation for several callers, one after the other. If the computation for one caller fails, the
    others are not affected. The answer is the list of the answers for all callers. Nested calls are made one after the
    other, and ``answers`` has the answers to them in the same sequence. In three cases the result is a failure, all
    changes are undone, and each caller must call separately. (1) A computation fails after it has made nested calls.
    (2) There are nested calls, and more than ``limits.shared_nested_max`` callers. After each nested call, all
    computations so far run again, so this would take too long with many callers. (3) The answers together are too long
    for one message."""
    mark = len(live.journal)
    calls: list[Call] = []
    found: list[Answer] = []
    size = 0
    for arguments in shared:
        first = len(calls)
        inside = None if between is None else _shifted(between, first)
        outcome = run(live, name, arguments, answers[first:], inside)
        calls += outcome.calls
        fits = not outcome.calls or len(shared) <= limits.shared_nested_max
        if outcome.answer is not None:
            size += answer_bytes(outcome.answer)
            found.append(outcome.answer)
            fits = fits and size <= limits.letter_bytes_max and (outcome.answer[0] or not outcome.calls)
        if not fits:
            live.rollback(mark)
            return Outcome([], (False, "calls that cannot share a request"))
        if outcome.answer is None:
            return Outcome(calls)
    return Outcome(calls, (True, found))


def _shifted(between: Callable[[int], None], first: int) -> Callable[[int], None]:
    return lambda number: between(first + number)


def answer_bytes(answer: Answer) -> int:
    """Return the size of an answer in bytes. An answer that cannot be encoded gets a size above the limit."""
    try:
        return len(msgspec.msgpack.encode(answer))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return limits.letter_bytes_max + 1


def _plain_call(call: Call) -> Call:
    return msgspec.structs.replace(call, arguments=plain(call.arguments))


def compute(
    kind: type[Object],
    state: State,
    name: str,
    arguments: Sequence[Any],
    answers: Sequence[Answer] = (),
) -> Outcome:
    """Compute an operation on a copy of a state, and return the outcome. The given state does not change."""
    live = Live.copying(kind)
    live.load(state)
    outcome = run(live, name, arguments, answers)
    failed = outcome.answer is not None and not outcome.answer[0]
    outcome.state = state if failed else live.dump()
    return outcome


def reason_of(error: BaseException) -> str:
    """Return the reason of a failure as a text that can be sent: the name and the text of the exception, or only the
    text if it is a ``Failure``. A long reason is cut off. If reading the text raises another exception, a fixed text is
    used."""
    text = text_of(error)
    reason = text if isinstance(error, Failure) else f"{type(error).__name__}: {text}"
    return reason if len(reason) <= limits.reason_chars_max else reason[: limits.reason_chars_max - 1] + "…"


def _drive(
    program: Generator[Call, Any, Any],
    calls: list[Call],
    answers: Sequence[Answer],
    between: Callable[[int], None] | None,
) -> tuple[bool, Any]:
    try:
        call = next(program)
        while True:
            if not isinstance(call, Call):
                raise TypeError(f"it yields {type(call).__name__}, expected a Call")
            calls.append(call)
            if between is not None:
                between(len(calls))
            if len(calls) > len(answers):
                return False, None
            went_well, value = answers[len(calls) - 1]
            call = program.send(copied(value)) if went_well else program.throw(CallFailed(value))
    except StopIteration as stop:
        return True, stop.value


def _run_instance(live: Live, one: Instance, between: Callable[[int], None] | None = None) -> Outcome:
    compute = run_shared if one.shared else run
    return compute(live, one.operation, one.arguments, one.answers, between)


def fold(live: Live, instances: Sequence[Instance]) -> dict[str, Outcome]:
    """Compute the instances of one root (the outermost call) on the state ``live``. Return the outcome of each
    instance, by id. ``instances`` is sorted by the time at which the instances began. They are computed in this order,
    with one exception: if a call of an instance A led to an instance B, then B is computed during this call of A. It
    can happen that another replica of A has already made this call, but the replica here has not. Then B is computed
    after all others."""
    if len(instances) == 1:
        return {instances[0].id: _run_instance(live, instances[0])}
    outcomes: dict[str, Outcome] = {}

    def inside(prefix: str) -> list[Instance]:
        """Find the instances that a call led to, directly or through other calls. Return only the outermost of them: if
        one of these instances led to another, leave out the other. ``prefix``: the name of the call and a slash. If
        ``prefix`` is empty, find all instances."""
        own = [one for one in instances if one.id.startswith(prefix) or one.id == prefix.rstrip("/")]
        return [one for one in own if not any(one.id.startswith(other.id + "/") for other in own)]

    def apply(one: Instance) -> None:
        def between(number: int) -> None:
            for child in inside(f"{one.id}/{number}/"):
                apply(child)

        outcomes[one.id] = _run_instance(live, one, between)

    for top in inside(""):
        apply(top)
    for one in instances:
        # Another replica of its caller, at another object, has got further than the one here.
        if one.id not in outcomes:
            apply(one)
    return outcomes


class Intentions:
    """The committed state of one object, and the *intentions* of a root: the changes that the instances of the root
    would make to this state.

    To compute an intention, the instances change the committed state itself. These changes are then undone, because the
    root may still abort (closed nesting, §2 of Enokido, Higaki, Takizawa). Usually a root commits before another root
    changes the state. Then the last computed changes are applied again, and the instances are not computed again. If
    another root has changed the state meanwhile, the instances are computed again on the new state, because the changes
    of the other root must not be overwritten.
    """

    live_kind: ClassVar[type[Live]] = Live

    def __init__(self, kind: type[Object]) -> None:
        self.kind = kind
        self.live = self.live_kind(kind)
        self.restore(initial(kind))

    @property
    def state(self) -> State:
        """A copy of the committed state."""
        return self.live.dump()

    def restore(self, state: State) -> None:
        """Set the committed state to ``state``."""
        self.live.load(state)
        self._last: tuple[Any, dict[str, Outcome], list[Change]] | None = None

    def computed(self, begun: Sequence[Instance]) -> dict[str, Outcome]:
        """Return the outcomes of the instances of a root, by id; the state stays as it is."""
        key = _key(begun)
        if self._last is None or self._last[0] != key:
            outcomes = fold(self.live, begun)
            self._last = (key, outcomes, self.live.rollback())
        return self._last[1]

    def predicted(self, name: str, operation: str, request: Request) -> Answer | None:
        """Compute an operation that conflicts with nothing, makes no calls and has no return value (see
        ``blind_operations``). The state does not change. Return the answer: success, or the reason of a failure. Return
        None if this replica alone cannot decide, so that all replicas must be asked."""
        one = Instance(name, operation, request.arguments, "", request.number, "", 0, shared=request.shared)
        outcome = fold(self.live, [one])[name]
        self._last = (name, {name: outcome}, self.live.rollback())
        if outcome.answer is None:
            return None
        went_well, value = outcome.answer
        # A value may depend on the state if a conflict is not declared: then all replicas are asked.
        if not request.shared:
            return None if went_well and value is not None else outcome.answer
        if not went_well or any(one[0] and one[1] is not None for one in value):
            return None
        return True, [list(one) for one in value]

    def conclude(self, one: Instance) -> Answer:
        """Compute the instance of a call, commit it, and return its answer. The server where the call began has already
        decided that the call commits, and has checked the size of the state. The size is not checked again here,
        because it may be different: this replica may have computed other compatible operations before."""
        self.live.lenient = True
        try:
            answer = self._performed(one.id, [one])[one.id].answer
        finally:
            self.live.lenient = False
        if answer is None:
            # It calls something, here but not where it was decided.
            self.live.rollback()
            answer = (False, "it makes a call")
        self.live.commit()
        return answer

    def apply(self, begun: Sequence[Instance]) -> None:
        """Commit the effects of the instances of a root."""
        self._performed(_key(begun), begun)
        self.live.commit()

    def _performed(self, key: Any, begun: Sequence[Instance]) -> dict[str, Outcome]:
        """Make the changes of these instances. If ``key`` is the key of the last computation, repeat the changes of
        that computation; otherwise compute the instances now."""
        if self._last is not None and self._last[0] == key:
            _, outcomes, changes = self._last
            self.live.redo(changes)
        else:
            outcomes = fold(self.live, begun)
            changes = self.live.journal
        if changes:
            # What others have computed may depend on them.
            self._last = None
        return outcomes


def _key(begun: Sequence[Instance]) -> list[tuple[str, int, int]]:
    # The name, the place and the number of answers identify everything that an instance is computed from.
    return [(one.id, one.place, len(one.answers)) for one in begun]

"""Computing an operation: from a state, its arguments and the answers to its calls so far.

An instance that waits for an answer is not kept as a running program: a crash would lose it. It is a list of answers,
and it continues by being computed again with one more answer. Its effect on the state is an *intention*: computed again
each time that it is needed, and applied to the object when the root commits (closed nesting). So an abort only drops
the intention. It does not undo a compatible operation that was committed meanwhile.

Instances of one root see each other's intentions. Suppose that an instance makes its n-th call and thereby, directly or
not, another instance at the same object is called. Then the effects of the second come between that call and its
answer.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any

import msgspec

from antecede import limits
from antecede.interrupts import is_ctrl_c
from antecede.objects.instances import Answer, Instance
from antecede.objects.model import (
    Call,
    CallFailed,
    Failure,
    Object,
    copied,
    initial,
    lacking,
    object_with,
    operations_of,
    state_of,
)
from antecede.whereabouts import text_of

State = dict[str, Any]


class Outcome(msgspec.Struct):
    """The progress of an instance with the answers that it has."""

    state: State
    calls: list[Call]
    """All its calls; if there is one more call than answers, it waits for the last one."""
    answer: Answer | None = None
    """Its answer, if it has ended."""


def compute(
    kind: type[Object],
    state: State,
    name: str,
    arguments: Sequence[Any],
    answers: Sequence[Answer] = (),
    between: Callable[[int, State], State] | None = None,
) -> Outcome:
    """Compute an operation. ``between(n, state)`` returns the state with what other instances did within its n-th
    call."""
    method = operations_of(kind).get(name)
    if method is None:
        return Outcome(state, [], (False, lacking(kind, name)))
    object_ = object_with(kind, copied(state))
    calls: list[Call] = []
    try:
        result = method(object_, *copied(list(arguments)))
        if isinstance(result, Generator):
            program = result
            finished, result = _drive(object_, program, calls, answers, between)
            if not finished:
                # What it does when it is closed (``finally``) is not part of its effects so far.
                outcome = Outcome(state_of(object_), calls)
                program.close()
                return outcome
        return Outcome(state_of(object_), calls, (True, result))
    except BaseException as error:
        # Any exception of an operation is its answer, the same at all replicas; all its effects are undone. Otherwise
        # an operation that exits would end its server, again at every start, and so would a state that cannot be
        # copied.
        if is_ctrl_c(error):
            raise
        return Outcome(state, calls, (False, reason_of(error)))


def reason_of(error: BaseException) -> str:
    """Return the reason of a failure as one line that can travel. The exception's text may be long, or raise itself."""
    text = text_of(error)
    reason = text if isinstance(error, Failure) else f"{type(error).__name__}: {text}"
    return reason if len(reason) <= limits.reason_chars_max else reason[: limits.reason_chars_max - 1] + "…"


def _drive(
    object_: Object,
    program: Generator[Call, Any, Any],
    calls: list[Call],
    answers: Sequence[Answer],
    between: Callable[[int, State], State] | None,
) -> tuple[bool, Any]:
    try:
        call = next(program)
        while True:
            if not isinstance(call, Call):
                raise TypeError(f"it yields {type(call).__name__}, expected a Call")
            calls.append(call)
            if between is not None:
                changed = between(len(calls), state_of(object_))
                object_.__dict__.clear()
                object_.__dict__.update(copied(changed))
            if len(calls) > len(answers):
                return False, None
            went_well, value = answers[len(calls) - 1]
            call = program.send(copied(value)) if went_well else program.throw(CallFailed(value))
    except StopIteration as stop:
        return True, stop.value


def kept(value: Any) -> Any:
    """Return a value as it comes back from a disk or from another object: a tuple becomes a list. Raise if it is not
    plain."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))


def fold(kind: type[Object], state: State, instances: Sequence[Instance]) -> tuple[State, dict[str, Outcome]]:
    """Return the state of an object after the instances of one root, in the order in which they began, and the progress
    of each."""
    outcomes: dict[str, Outcome] = {}

    def inside(prefix: str) -> list[Instance]:
        """Return the instances that a call led to, directly or through others; of these, only those that no other of
        them called."""
        own = [one for one in instances if one.id.startswith(prefix) or one.id == prefix.rstrip("/")]
        return [one for one in own if not any(one.id.startswith(other.id + "/") for other in own)]

    def apply(one: Instance, state: State) -> State:
        def between(number: int, state: State) -> State:
            for child in inside(f"{one.id}/{number}/"):
                state = apply(child, state)
            return state

        outcome = outcomes[one.id] = compute(kind, state, one.operation, one.arguments, one.answers, between)
        return outcome.state

    for top in inside(""):
        state = apply(top, state)
    for one in instances:
        # Another replica of its caller, at another object, has got further than the one here.
        if one.id not in outcomes:
            state = apply(one, state)
    return state, outcomes


class Intentions:
    """The state of one object: the committed state, and the state that the instances of a root would produce.

    Mostly a root commits before anything else changes the state. What was computed last is then applied, not computed
    again.
    """

    def __init__(self, kind: type[Object]) -> None:
        self.kind = kind
        self.restore(kept(initial(kind)))

    def restore(self, state: State) -> None:
        """Make this the committed state."""
        self.state = state
        self._last: tuple[Any, tuple[State, dict[str, Outcome]]] | None = None

    def computed(self, begun: Sequence[Instance]) -> dict[str, Outcome]:
        """Return the progress of each instance of a root; the state does not change."""
        return self._folded(begun)[1]

    def apply(self, begun: Sequence[Instance]) -> None:
        """Commit what the instances of a root did."""
        self.restore(kept(self._folded(begun)[0]))

    def _folded(self, begun: Sequence[Instance]) -> tuple[State, dict[str, Outcome]]:
        # The name, the place and the number of answers identify everything that an instance is computed from.
        key = [(one.id, one.place, len(one.answers)) for one in begun]
        if self._last is None or self._last[0] != key:
            self._last = (key, fold(self.kind, self.state, begun))
        return self._last[1]

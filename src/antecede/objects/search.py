"""Search for an example which shows that two operations conflict. The search does not use the conflicts that their
class declares.

Two operations are compatible if and only if, from every state, the two possible orders of these operations lead to the
same state and give the same answers. No search can prove that two operations are compatible. But one example can prove
that they conflict: a state and the arguments of the two operations, for which the two orders give different results.
The library Hypothesis finds and simplifies such examples. To get a state, the search computes operations on a new
object. So an example has only states that operations can produce. If an operation makes nested calls, the answers to
these calls are generated, and the calls are part of the result that is compared.

Arguments are generated from the operations' annotations. Most are small, and many are equal, because many conflicts
need equal keys. A class may define better arguments: ``arguments = {"transfer": strategy}``, where the strategy
generates tuples of arguments.
"""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from itertools import combinations_with_replacement
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from antecede.errors import ObjectError, UsageError
from antecede.failures import is_ctrl_c, text_of
from antecede.objects.instances import Answer
from antecede.objects.model import Object, initial, operations_of, relation_of
from antecede.objects.replay import Outcome, State, compute

Step = tuple[str, tuple[Any, ...]]
"""An operation and its arguments."""


class Example(msgspec.Struct, frozen=True):
    """An example of a conflict: if the two operations are computed from this state, their order matters."""

    state: State
    first: Step
    second: Step
    forth: dict[str, Any]
    """The result if ``first`` is computed before ``second``: the state, and the answers of ``first`` and ``second``, in
    this sequence."""
    back: dict[str, Any]
    """The result if ``second`` is computed before ``first``, in the same form as ``forth``."""

    def __str__(self) -> str:
        one, other = _shown(self.first), _shown(self.second)
        return (
            f"from {self.state!r}: {one}, then {other} gives {_result(self.forth)}; "
            f"{other}, then {one} gives {_result(self.back)}"
        )


class Pair(msgspec.Struct, frozen=True):
    """The result of the search for one pair of operations: whether the class declares a conflict between them, and
    the example of a conflict, if one was found."""

    operations: tuple[str, str]
    declared: bool
    example: Example | None

    @property
    def finding(self) -> str:
        """The result of the search. ``undeclared``: a conflict was found, but is not declared, which is an error.
        ``needless``: a conflict is declared, but none was found. This only costs time. ``conflict``: a conflict is
        declared and was found. ``compatible``: no conflict is declared, and none was found."""
        if self.example is None:
            return "needless" if self.declared else "compatible"
        return "conflict" if self.declared else "undeclared"


def classes_in(text: str) -> list[type[Object]]:
    """Return the classes of objects for ``text``, which is ``MODULE`` (all classes of the module) or ``MODULE:CLASS``.
    ``MODULE`` is the name of a module, or the path of a file that ends in ``.py``."""
    name, colon, wanted = text.partition(":")
    module = _module(name)
    found = [
        kind
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, Object) and kind is not Object and operations_of(kind)
    ]
    own = [kind for kind in found if kind.__module__ == module.__name__ or colon]
    chosen = [kind for kind in own if not wanted or kind.__name__ == wanted]
    if not chosen:
        what = f"no class {wanted} of objects" if wanted else "no class of objects with operations"
        raise ObjectError(f"{name}: {what}: expected a subclass of antecede.objects.Object with @operation methods")
    return chosen


def _module(name: str) -> Any:
    try:
        if not name.endswith(".py"):
            sys.path.append("")
            return import_module(name)
        spec = spec_from_file_location(Path(name).stem, name)
        if spec is None or spec.loader is None or not Path(name).is_file():
            raise UsageError(f"{name}: no such file")
        module = module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    except (UsageError, ObjectError):
        raise
    except ImportError as error:
        raise UsageError(f"{name}: cannot be imported: {error}") from None
    except (Exception, SystemExit) as error:
        # A module is the application's code and may fail in any way. If it exits, this must not count as success.
        raise UsageError(f"{name}: cannot be imported: {type(error).__name__}: {error}") from None
    return module


def pairs_of(kind: type[Object]) -> list[tuple[str, str]]:
    """Return all pairs of operations of a class. Each operation is also paired with itself."""
    return list(combinations_with_replacement(sorted(operations_of(kind)), 2))


def search(kind: type[Object], examples: int = 300, report_progress: Callable[[], None] = lambda: None) -> list[Pair]:
    """For each pair of operations of a class, search for an example which shows that the two operations conflict.
    Return the result for each pair. ``report_progress`` is called after each pair."""
    relation = relation_of(kind)
    try:
        initial(kind)
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        raise ObjectError(f"{kind.__name__}() cannot be created: {type(error).__name__}: {text_of(error)}") from None
    found = []
    for pair in pairs_of(kind):
        try:
            example = counter_example(kind, *pair, examples)
        except (ObjectError, UsageError):
            raise
        except Exception as error:
            # Strategies, and values that are compared and shown, are the application's code as well.
            raise ObjectError(
                f"{kind.__name__}: {' and '.join(pair)} cannot be compared: {type(error).__name__}: {error}"
            ) from None
        found.append(Pair(pair, relation.conflict(*pair), example))
        report_progress()
    return found


def counter_example(kind: type[Object], one: str, other: str, examples: int = 300) -> Example | None:
    """Return a simple state and arguments for which the order of two operations matters, or None if the search found
    none."""
    try:
        from hypothesis import HealthCheck, Phase, find, settings
        from hypothesis import strategies as st
        from hypothesis.errors import NoSuchExample, Unsatisfiable
    except ModuleNotFoundError:
        raise UsageError("the search for conflicts needs the package hypothesis: install it") from None

    steps = st.one_of([st.tuples(st.just(name), _arguments(kind, name)) for name in operations_of(kind)])
    values = getattr(kind, "answers", None)
    answers = values if values is not None else st.none() | st.integers(0, 3) | st.booleans()
    cases = st.tuples(
        st.lists(steps, max_size=6), _arguments(kind, one), _arguments(kind, other), st.lists(answers, max_size=4)
    )

    def differs(case: tuple[list[Step], tuple[Any, ...], tuple[Any, ...], list[Any]]) -> bool:
        return _tried(kind, (one, other), case) is not None

    chosen = settings(
        max_examples=examples,
        database=None,
        derandomize=True,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    try:
        return _tried(kind, (one, other), find(cases, differs, settings=chosen))
    except (NoSuchExample, Unsatisfiable):
        return None


def _tried(kind: type[Object], names: tuple[str, str], case: tuple[list[Step], Any, Any, list[Any]]) -> Example | None:
    """Compute two operations in both orders. If the results differ, return this case as an example, otherwise None.
    ``names``: the names of the two operations. ``case``: the operations that lead from the initial state to the state
    of the example, the arguments of the first operation, the arguments of the second operation, and the answers to
    nested calls."""
    before, *arguments, values = case
    answers: list[Answer] = [(True, value) for value in values]
    state = initial(kind)
    for name, given in before:
        state = compute(kind, state, name, given, answers).state
    first, second = (names[0], tuple(arguments[0])), (names[1], tuple(arguments[1]))
    one, after_one = _two(kind, state, first, second, answers)
    two, after_two = _two(kind, state, second, first, answers)
    forth = {"state": after_one.state, "answers": [_seen(one), _seen(after_one)]}
    back = {"state": after_two.state, "answers": [_seen(after_two), _seen(two)]}
    return None if _alike(forth, back) else Example(state, first, second, forth, back)


def _two(
    kind: type[Object], state: State, first: Step, second: Step, answers: Sequence[Answer]
) -> tuple[Outcome, Outcome]:
    one = _computed(kind, state, first, answers)
    return one, _computed(kind, one.state, second, answers)


def _computed(kind: type[Object], state: State, step: Step, answers: Sequence[Answer]) -> Outcome:
    """Compute an operation twice, and return the outcome. Raise if the two results differ, because operations must be
    deterministic."""
    one, again = (compute(kind, state, *step, answers) for _ in range(2))
    if not _alike((one.state, _seen(one)), (again.state, _seen(again))):
        raise ObjectError(
            f"{kind.__name__}.{_shown(step)}, computed twice from {state!r}, gives two different results: "
            "operations must be deterministic"
        )
    return one


def _alike(one: Any, other: Any) -> bool:
    # NaN is not equal to itself, but has the same text.
    return bool(one == other) or repr(one) == repr(other)


def _seen(outcome: Outcome) -> Any:
    """Return the part of an outcome that other objects can see: the operation's calls, and its answer or failure."""
    calls = [(list(call.targets), call.operation, list(call.arguments)) for call in outcome.calls]
    answer = "waits" if outcome.answer is None else outcome.answer[1]
    failed = outcome.answer is not None and not outcome.answer[0]
    seen: Any = {"failed": answer} if failed else answer
    return {"calls": calls, "answer": seen} if calls else seen


def _arguments(kind: type[Object], name: str) -> Any:
    """Return a Hypothesis strategy (a generator of test values) for the arguments of an operation."""
    from hypothesis import strategies as st

    strategies = getattr(kind, "arguments", {})
    if not isinstance(strategies, Mapping):
        raise ObjectError(f"{kind.__name__}.arguments: expected a dict from operation to strategy, not {strategies!r}")
    given = strategies.get(name)
    if given is not None:
        if not isinstance(given, st.SearchStrategy):
            raise ObjectError(f"{kind.__name__}.arguments[{name!r}]: expected a strategy of tuples, not {given!r}")
        return given.map(partial(_tuple, f"{kind.__name__}.arguments[{name!r}]"))
    method = operations_of(kind)[name]
    parameters = list(inspect.signature(method).parameters.values())[1:]
    try:
        hints = get_type_hints(method)
    except (NameError, TypeError) as error:
        raise ObjectError(f"{kind.__name__}.{name}: {error}") from None
    drawn = []
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            raise ObjectError(
                f"{kind.__name__}.{name}: parameter {parameter.name} is keyword-only: "
                "make it positional, or give it a default"
            )
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.KEYWORD_ONLY):
            continue
        if parameter.name not in hints:
            raise ObjectError(
                f"{kind.__name__}.{name}: parameter {parameter.name} has no annotation: annotate it, "
                f"or define in the class: arguments = {{{name!r}: a strategy of tuples}}"
            )
        drawn.append(_values(hints[parameter.name]))
    return st.tuples(*drawn)


def _tuple(where: str, drawn: Any) -> tuple[Any, ...]:
    if not isinstance(drawn, tuple | list):
        raise ObjectError(f"{where}: expected a strategy of tuples, but it generates {drawn!r}")
    return tuple(drawn)


def _values(hint: Any) -> Any:
    """Return a Hypothesis strategy (a generator of test values) for a type. Most values are small, so that equal values
    are frequent; a few are large."""
    from hypothesis import strategies as st

    small: dict[Any, Any] = {
        int: st.integers(0, 3) | st.integers(-100, 100),
        float: st.sampled_from([0.0, 1.0, 2.0]) | st.floats(-1e6, 1e6),
        str: st.sampled_from(["", "a", "b"]) | st.text(max_size=3),
        bytes: st.sampled_from([b"", b"a"]) | st.binary(max_size=3),
        bool: st.booleans(),
        NoneType: st.none(),
    }
    if hint in small:
        return small[hint]
    inner = [_values(part) for part in get_args(hint) if part is not Ellipsis]
    if get_origin(hint) is list and inner:
        return st.lists(inner[0], max_size=4)
    if get_origin(hint) is dict and len(inner) == 2:
        return st.dictionaries(inner[0], inner[1], max_size=3)
    return st.from_type(hint)


def _shown(step: Step) -> str:
    return f"{step[0]}({', '.join(map(repr, step[1]))})"


def _result(found: dict[str, Any]) -> str:
    return f"{found['state']!r} and the answers {', '.join(map(repr, found['answers']))}"

"""Classes of objects, the relation of their operations, computing and computing again, and the search for conflicts."""

import asyncio
import json
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from antecede import limits
from antecede.cli import run
from antecede.errors import ObjectError, OrderError
from antecede.objects import (
    Call,
    CallFailed,
    Live,
    Object,
    compute,
    counter_example,
    fold,
    initial,
    operation,
    operations_of,
    relation_of,
)
from antecede.objects.search import search
from antecede.orders import Relation, parse_relation


class Account(Object):
    balance: int = 0

    @operation(conflicts_with=["audit", "withdraw"])
    def deposit(self, amount: int) -> None:
        self.balance += amount

    @operation(conflicts_with=["withdraw", "audit"])
    def withdraw(self, amount: int) -> bool:
        if self.balance < amount:
            raise ValueError("too poor")
        self.balance -= amount
        return True

    @operation
    def audit(self) -> int:
        return self.balance

    def helper(self) -> None:
        """No operation."""


class Bank(Object):
    def __init__(self) -> None:
        self.log: list[str] = []

    @operation
    def pay(self, one: str, other: str, amount: int) -> Generator[Call, Any, str]:
        self.log.append("begun")
        yield Call(one, "withdraw", (amount,))
        try:
            yield Call((other, "ledger"), "deposit", (amount,))
        except CallFailed:
            self.log.append("failed")
            return "refused"
        self.log.append("paid")
        return "paid"


def test_operations_are_the_marked_methods() -> None:
    assert list(operations_of(Account)) == ["audit", "deposit", "withdraw"]
    rivals = ["audit~deposit", "audit~withdraw", "deposit~withdraw", "withdraw~withdraw"]
    assert str(relation_of(Account)) == "+".join(rivals)


def test_the_relation_is_symmetric() -> None:
    relation = relation_of(Account)
    assert relation.conflict("audit", "deposit")
    assert relation.conflict("deposit", "audit")
    assert not relation.conflict("deposit", "deposit")
    assert not relation.conflict("audit", "audit")


def test_a_predicate_instead_of_names() -> None:
    class Register(Object):
        @staticmethod
        def compatible(one: str, other: str) -> bool:
            return one == other == "read"

        @operation
        def read(self) -> None: ...

        @operation
        def write(self) -> None: ...

    assert relation_of(Register).pairs() == [("read", "write"), ("write", "write")]


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(ObjectError, match="no such operation"):

        class Wrong(Object):
            @operation(conflicts_with=["nothing"])
            def something(self) -> None: ...


def test_a_predicate_and_names_together_conflict_where_either_says_so() -> None:
    class Both(Object):
        @operation(conflicts_with=["two"])
        def one(self) -> None: ...

        @operation
        def two(self) -> None: ...

        @operation
        def three(self) -> None: ...

        @staticmethod
        def compatible(one: str, other: str) -> bool:
            # Asked in one direction it says yes, in the other no.
            return (one, other) != ("two", "three")

    assert sorted(relation_of(Both).pairs()) == [("one", "two"), ("three", "two")]


def test_conflicts_that_are_no_names_are_refused() -> None:
    with pytest.raises(ObjectError, match="conflicts_with=5: expected names of operations"):
        operation(conflicts_with=5)  # type: ignore[call-overload]
    with pytest.raises(ObjectError, match="expected names of operations, not 7"):
        operation(conflicts_with=["do", 7])  # type: ignore[list-item]
    with pytest.raises(ObjectError, match=r"operation\('audit'\): expected a method"):
        operation("audit")  # type: ignore[type-var]
    with pytest.raises(ObjectError, match=r"Plain\.compatible\('do', 'do'\) raises TypeError.*static method"):

        class Plain(Object):
            @operation
            def do(self) -> None: ...

            def compatible(self, one: str, other: str) -> bool:
                return True


@pytest.mark.parametrize(
    "given", [("ben", "deposit", 5), ("ben", "deposit", "5"), ("ben", 5), (5, "do"), (("a", 5), "do")]
)
def test_a_call_that_nobody_could_read_is_refused_where_it_is_made(given: Any) -> None:
    with pytest.raises(TypeError, match="of a Call: expected"):
        Call(*given)


class Rough(Object):
    """Operations that fail in ways of their own."""

    n: int = 0

    @operation
    def cancel(self) -> None:
        raise asyncio.CancelledError("gone")

    @operation
    def mute(self) -> None:
        class Mute(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no text")

        raise Mute

    @operation
    def shout(self) -> None:
        raise ValueError("x" * 100_000)

    @operation
    def half(self) -> None:
        raise ValueError("\ud800")

    @operation
    def lock(self) -> None:
        self.n = threading.Lock()  # type: ignore[assignment]

    @operation
    def tidy(self) -> Generator[Call, Any, None]:
        try:
            yield Call("other", "do")
        finally:
            self.n += 1


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cancel", "CancelledError: gone"),
        ("mute", "Mute: its text cannot be read"),
        ("half", "ValueError: \\ud800"),
        ("lock", "TypeError: cannot pickle"),
        ("shout", "ValueError: xxx"),
    ],
)
def test_whatever_an_operation_raises_is_an_answer_that_can_travel(name: str, reason: str) -> None:
    outcome = compute(Rough, {"n": 0}, name, ())
    assert outcome.state == {"n": 0}
    assert outcome.answer is not None
    assert not outcome.answer[0]
    assert outcome.answer[1].startswith(reason)
    assert len(outcome.answer[1].encode()) < 2 * limits.reason_chars_max


def test_what_an_operation_tidies_up_is_not_done_while_it_waits() -> None:
    waiting = compute(Rough, {"n": 0}, "tidy", ())
    assert (waiting.state, waiting.answer) == ({"n": 0}, None)
    assert compute(Rough, {"n": 0}, "tidy", (), [(True, None)]).state == {"n": 1}


def test_relations_as_words() -> None:
    assert str(parse_relation("set~get+set~set")) == "get~set+set~set"
    assert parse_relation("all").conflict("x", "y")
    assert not parse_relation("none")
    assert str(Relation()) == "none"
    for wrong in ("a", "a~", "~b", "a~b~c", "a~b+"):
        with pytest.raises(OrderError):
            parse_relation(wrong)


def test_computing_leaves_the_state_it_was_given_alone() -> None:
    state = initial(Account)
    outcome = compute(Account, state, "deposit", (5,))
    assert (state["balance"], outcome.state["balance"], outcome.answer) == (0, 5, (True, None))


def test_what_fails_changes_nothing() -> None:
    outcome = compute(Account, {"balance": 3}, "withdraw", (5,))
    assert outcome.state == {"balance": 3}
    assert outcome.answer == (False, "ValueError: too poor")
    stolen = compute(Account, {"balance": 3}, "steal", ()).answer
    assert stolen is not None
    assert str(stolen[1]).startswith("Account has no operation 'steal' (it has: ")


def test_an_operation_goes_on_with_the_answers_that_it_has() -> None:
    state = initial(Bank)
    arguments = ("a", "b", 7)
    first = compute(Bank, state, "pay", arguments)
    assert (first.calls, first.answer) == ([Call("a", "withdraw", (7,))], None)
    second = compute(Bank, state, "pay", arguments, [(True, True)])
    assert second.calls[1] == Call(("b", "ledger"), "deposit", (7,))
    assert second.state["log"] == ["begun"]
    paid = compute(Bank, state, "pay", arguments, [(True, True), (True, None)])
    assert (paid.answer, paid.state["log"]) == ((True, "paid"), ["begun", "paid"])
    refused = compute(Bank, state, "pay", arguments, [(True, True), (False, "no")])
    assert (refused.answer, refused.state["log"]) == ((True, "refused"), ["begun", "failed"])
    assert compute(Bank, state, "pay", arguments, [(False, "no")]).answer == (False, "CallFailed: no")


def test_only_calls_may_be_yielded() -> None:
    class Odd(Object):
        @operation
        def strange(self) -> Generator[int, None, None]:
            yield 1

    assert compute(Odd, {}, "strange", ()).answer == (False, "TypeError: it yields int, expected a Call")


class _Row:
    shared = False

    def __init__(self, id_: str, name: str, arguments: tuple[Any, ...], answers: list[Any]) -> None:
        self.id, self.operation, self.arguments, self.answers = id_, name, arguments, answers


def test_what_comes_back_to_its_ancestors_object_comes_between() -> None:
    """It sees what its ancestor did before the call, and its ancestor sees what it did after it."""

    class Counter(Object):
        value: int = 0

        @operation
        def around(self) -> Generator[Call, Any, int]:
            self.value += 1
            yield Call("elsewhere", "back")
            self.value *= 10
            return self.value

        @operation
        def inside(self) -> int:
            self.value += 1
            return self.value

    outer = _Row("r", "around", (), [])
    inner = _Row("r/1/1", "inside", (), [])
    live = Live(Counter)
    live.load({"value": 0})
    assert fold(live, [outer, inner])["r/1/1"].answer == (True, 2)
    live.rollback()
    outer.answers = [(True, None)]
    outcomes = fold(live, [outer, inner])
    assert live.dump() == {"value": 20}
    assert outcomes["r"].answer == (True, 20)


# The search.


def test_a_declared_relation_that_is_right() -> None:
    assert {pair.finding for pair in search(Account, 100)} <= {"conflict", "compatible"}


class Hasty(Object):
    """Two mistakes: put conflicts with itself and with get, which nobody said; two gets do not."""

    def __init__(self) -> None:
        self.items: dict[str, int] = {}

    @operation
    def put(self, key: str, value: int) -> None:
        self.items[key] = value

    @operation(conflicts_with=["get"])
    def get(self, key: str) -> int | None:
        return self.items.get(key)


def test_the_search_finds_both_mistakes() -> None:
    found = {pair.operations: pair.finding for pair in search(Hasty, 300)}
    assert found == {("get", "get"): "needless", ("get", "put"): "undeclared", ("put", "put"): "undeclared"}


def test_the_guides_example_declares_its_conflicts_rightly() -> None:
    guide = Path(__file__).resolve().parents[2] / "docs" / "guide" / "objects.md"
    code = guide.read_text(encoding="utf-8").split('```python title="accounts.py"\n')[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)
    assert {pair.finding for pair in search(names["Account"], 100)} == {"conflict", "compatible"}


def test_an_example_is_small_and_true() -> None:
    example = counter_example(Hasty, "put", "put")
    assert example is not None
    (_, (key, one)), (_, (other_key, other)) = example.first, example.second
    assert key == other_key
    assert one != other
    assert example.state == {"items": {}}
    assert example.forth["state"] != example.back["state"]
    assert "put(" in str(example)


def test_an_answer_alone_can_differ() -> None:
    """Deposits and audits leave the same state in both orders; the paper's definition would call them compatible."""
    example = counter_example(Account, "audit", "deposit")
    assert example is not None
    assert example.forth["state"] == example.back["state"]
    assert example.forth["answers"] != example.back["answers"]


def test_parameters_without_types_are_asked_for() -> None:
    class Untyped(Object):
        @operation
        def do(self, what) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001

    with pytest.raises(ObjectError, match="annotate it"):
        search(Untyped, 10)


SOURCE = """
from antecede.objects import Object, operation

class Good(Object):
    total: int = 0

    @operation
    def add(self, amount: int) -> None:
        self.total += amount

class Bad(Good):
    @operation
    def read(self) -> int:
        return self.total
"""


def test_the_command(tmp_path: Any, capsys: Any, monkeypatch: Any) -> None:
    file = tmp_path / "things.py"
    file.write_text(SOURCE)
    assert run(["objects", "conflicts", f"{file}:Good", "--examples", "50"]) == 0
    assert "compatible: no difference was found" in capsys.readouterr().out
    assert run(["objects", "conflicts", str(file), "--examples", "50", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    bad = {tuple(pair["operations"]): pair["finding"] for pair in document["objects"]["Bad"]}
    assert bad["add", "read"] == "undeclared"
    assert document["objects"]["Bad"][1]["example"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("things", None)
    assert run(["objects", "conflicts", "things:Good", "--examples", "10"]) == 0


@pytest.mark.parametrize("name", ["nowhere.py", "no_such_module_here", "json", "."])
def test_the_command_refuses_in_one_line(name: str, capsys: Any) -> None:
    assert run(["objects", "conflicts", name]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


HEAD = "from antecede.objects import Object, operation\nimport random\nclass Thing(Object):\n    n: float = 0\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise RuntimeError('at import')", "cannot be imported: RuntimeError: at import"),
        ("class Thing(Nothing): ...", "cannot be imported: NameError"),
        (HEAD + "    @operation\n    def do(self, what: 'Nothing'): ...", "Thing.do: name 'Nothing' is not defined"),
        (
            HEAD + "    def __init__(self, n): ...\n    @operation\n    def do(self): ...",
            "Thing() cannot be created: TypeError",
        ),
        (HEAD + "    @operation\n    def do(self, *, what: int): ...", "parameter what is keyword-only"),
        (HEAD + "    @operation\n    def do(self): self.n = random.random()", "operations must be deterministic"),
        (HEAD + "    @operation\n    def do(self): ...\nraise SystemExit(0)", "cannot be imported: SystemExit: 0"),
        (HEAD + "    arguments = 7\n    @operation\n    def do(self, n): ...", "Thing.arguments: expected a dict"),
        (HEAD + "    arguments = {'do': 5}\n    @operation\n    def do(self, n): ...", "expected a strategy of tuples"),
        (
            HEAD + "    from hypothesis.strategies import just\n    arguments = {'do': just(5)}\n"
            "    @operation\n    def do(self, n): ...",
            "Thing.arguments['do']: expected a strategy of tuples, but it generates 5",
        ),
        (
            HEAD + "    @operation\n    def do(self, what: 'Opaque'): ...\n"
            "class Opaque:\n    def __init__(self, inside): ...\n",
            "do and do cannot be compared: ResolutionFailed",
        ),
    ],
)
def test_modules_that_cannot_be_looked_at(text: str, reason: str, tmp_path: Any, capsys: Any) -> None:
    file = tmp_path / "unfit.py"
    file.write_text(text)
    assert run(["objects", "conflicts", str(file), "--examples", "20"]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert len(error.splitlines()) == 1


def test_an_operation_may_raise_exit_or_answer_what_is_no_number(tmp_path: Any, capsys: Any) -> None:
    file = tmp_path / "rough.py"
    body = ("raise KeyError('no')", "raise SystemExit(3)", "return float('nan')")
    file.write_text(HEAD + "".join(f"    @operation\n    def do{n}(self): {line}\n" for n, line in enumerate(body)))
    assert run(["objects", "conflicts", str(file), "--examples", "20"]) == 0
    assert capsys.readouterr().out.count("compatible") == 6

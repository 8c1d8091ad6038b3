"""What the paper leaves open in significant order, decided and written down in docs/design/verdicts.md, one by one.

Sections are those of Enokido, Higaki, Takizawa, *Protocol for a group of objects*.
"""

from typing import Any

from antecede.trace import Event, conflicts_in, judge_significant, match

_table = {"*": [["write", "write"], ["write", "read"]]}


class Rows:
    """A trace, row by row; indices count themselves."""

    def __init__(self) -> None:
        self.rows: list[Event] = []

    def __call__(self, process: str, kind: str, message: str | None = None, **said: Any) -> "Rows":
        index = sum(row.process == process for row in self.rows)
        if "at" in said:
            said["instance"], _, operation = said.pop("at").partition(":")
            said["operation"] = operation or None
        self.rows.append(Event(process, index, kind, message, **said))
        return self

    def late(self) -> list[tuple[str, str, str, str]]:
        found = judge_significant(match(self.rows), conflicts_in(_table, "test"), every_overtaker=True)
        return [(one.message, one.to, one.overtaken_by, one.rule) for one in found.late]


def _overtaken(type_: str, **more: Any) -> Rows:
    """The instance above is sent m1 and the one below m2, and m2 comes first."""
    rows = Rows()
    rows("h", "send", "m0", to=("j",), at="c", type="request")
    rows("i", "send", "m1", to=("j",), at="a", type=type_)
    rows("i", "send", "m2", to=("j",), at="a", type="request")
    if type_ == "response":
        rows("j", "deliver", "m0", at="above:write", type="request")
    rows("j", "deliver", "m2", at="below:write", type="request", **more)
    return rows("j", "deliver", "m1", at="above:write", type=type_)


def test_a_response_does_not_wait_for_what_its_instance_waits_for() -> None:
    assert _overtaken("response").late() == [("m1", "j", "m2", "conflict")]
    rows = _overtaken("response", parent="between")
    rows("elsewhere", "local", at="between:call", parent="above")
    assert rows.late() == []


def test_the_request_of_a_caller_comes_before_that_of_what_it_calls() -> None:
    """§3.3, T2.1: one of them is a request, so the caller must begin first here, too."""
    for more in ({}, {"parent": "above"}):
        assert _overtaken("request", **more).late() == [("m1", "j", "m2", "conflict")]


def test_what_an_instance_did_does_not_precede_what_its_descendant_does() -> None:
    for parent, late in ((None, [("m1", "j", "m2", "conflict")]), ("a", [])):
        rows = Rows()
        rows("i", "send", "m1", to=("j",), at="a:write", type="request")
        rows("i", "send", "m2", to=("j",), at="b:write", type="request", parent=parent)
        rows("j", "deliver", "m2", at="y:write", type="request")
        rows("j", "deliver", "m1", at="x:write", type="request")
        assert rows.late() == late


def _crossing(first: str, second: str, **more: Any) -> Rows:
    rows = Rows()
    rows("h", "send", "m1", to=("i", "j"), at="a", type="request")
    rows("k", "send", "m2", to=("i", "j"), at="b", type="request")
    rows("i", "deliver", "m1", at=f"x:{first}", type="request", **more)
    rows("i", "deliver", "m2", at=f"y:{first}", type="request")
    rows("j", "deliver", "m2", at=f"y:{second}", type="request")
    return rows("j", "deliver", "m1", at=f"x:{second}", type="request", **more)


def test_objects_need_not_agree_on_an_instance_and_its_ancestor() -> None:
    assert _crossing("write", "write").late() == [("m1", "j", "m2", "agreement")]
    assert _crossing("write", "write", parent="y").late() == []


def test_objects_agree_on_requests_that_run_differently_named_operations() -> None:
    rows = Rows()
    rows("h", "send", "m1", to=("i", "j"), at="a", type="request")
    rows("k", "send", "m2", to=("i", "j"), at="b", type="request")
    rows("i", "deliver", "m1", at="x:write", type="request")
    rows("i", "deliver", "m2", at="y:read", type="request")
    rows("j", "deliver", "m2", at="y:write", type="request")
    rows("j", "deliver", "m1", at="x:read", type="request")
    assert rows.late() == [("m1", "j", "m2", "agreement")]


def test_a_request_after_a_response_that_it_precedes_is_late() -> None:
    """T1 of §3.3 makes no exception for requests."""
    rows = Rows()
    rows("i", "send", "m1", to=("j",), at="a", type="request")
    rows("i", "send", "m2", to=("j",), at="a", type="response")
    rows("j", "deliver", "m2", at="x:read", type="response")
    rows("j", "deliver", "m1", at="x:read", type="request")
    assert rows.late() == [("m1", "j", "m2", "instance")]


def test_what_an_instance_receives_after_it_sent_is_no_request_unless_it_says_so() -> None:
    """It began by itself: what comes is an answer, and may come in any order (C2, C3 of §3.3)."""
    for own, late in ((False, [("m1", "j", "m2", "conflict")]), (True, [])):
        rows = Rows()
        rows("i", "send", "m1", to=("j",), at="a")
        rows("i", "send", "m2", to=("j",), at="a")
        if own:
            rows("j", "send", "n", to=(), at="y:write")
        rows("j", "deliver", "m2", at="y:write")
        rows("j", "deliver", "m1", at="x:write")
        assert rows.late() == late


def _late_at_first(related: bool) -> Rows:
    """Object i receives m0, which precedes m2, too late; i and j disagree on m1 and m2."""
    rows = Rows()
    rows("h", "send", "m2", to=("i", "j"), at="a", type="request")
    rows("h", "send", "m0", to=("i",), at="a", type="request")
    if related:
        rows("h", "send", "m1", to=("i", "j"), at="a", type="request")
    else:
        rows("k", "send", "m1", to=("i", "j"), at="b", type="request")
    rows("i", "deliver", "m0", at="z:write", type="request")
    rows("i", "deliver", "m1", at="x:write", type="request")
    rows("i", "deliver", "m2", at="y:write", type="request")
    rows("j", "deliver", "m2", at="y:write", type="request")
    return rows("j", "deliver", "m1", at="x:write", type="request")


def test_agreement_counts_also_where_a_request_was_late_at_the_first_object() -> None:
    assert _late_at_first(related=False).late() == [("m1", "j", "m2", "agreement"), ("m2", "i", "m0", "conflict")]


def test_agreement_is_waived_where_the_order_here_is_that_of_precedence() -> None:
    assert _late_at_first(related=True).late() == [("m2", "i", "m0", "conflict")]


def test_commits_and_aborts_are_never_late_and_make_nothing_late() -> None:
    for type_ in ("commit", "abort"):
        rows = Rows()
        rows("i", "send", "m1", to=("j",), at="a", type="request")
        rows("i", "send", "m2", to=("j",), at="a", type=type_)
        rows("j", "deliver", "m2", at="x:write", type=type_)
        rows("j", "deliver", "m1", at="x:write", type="request")
        assert rows.late() == []
        rows = Rows()
        rows("i", "send", "m1", to=("j",), at="a", type=type_)
        rows("i", "send", "m2", to=("j",), at="a", type="request")
        rows("j", "deliver", "m2", at="x:write", type="request")
        rows("j", "deliver", "m1", at="x:write", type=type_)
        assert rows.late() == []


def test_what_repeats_a_request_precedes_what_its_instance_sends_then() -> None:
    rows = Rows()
    rows("h", "send", "n", to=("k",), at="c", type="request")
    rows("h", "send", "m", to=("i",), at="c", type="request")
    rows("g", "send", "first", to=("i",), at="d", type="request")
    rows("i", "deliver", "first", at="x:write", type="request")
    rows("i", "deliver", "m", at="x:write", type="request")
    rows("i", "send", "o", to=("k",), at="x:write", type="request")
    rows("k", "deliver", "o", at="y:write", type="request")
    rows("k", "deliver", "n", at="z:write", type="request")
    assert rows.late() == [("n", "k", "o", "conflict")]


def test_an_aborted_instance_precedes_nothing_in_others_but_itself() -> None:
    for type_, late in (("commit", [("m1", "j", "m2", "conflict")]), ("abort", [])):
        rows = Rows()
        rows("i", "send", "m1", to=("j",), at="a:write", type="request")
        rows("i", "local", at="a:write", type=type_)
        rows("i", "send", "m2", to=("j",), at="b:write", type="request")
        rows("j", "deliver", "m2", at="y:write", type="request")
        rows("j", "deliver", "m1", at="x:write", type="request")
        assert rows.late() == late
    rows = Rows()
    rows("i", "send", "m1", to=("j",), at="a:write", type="request")
    rows("i", "send", "m2", to=("j",), at="a:write", type="request")
    rows("i", "local", at="a:write", type="abort")
    rows("j", "deliver", "m2", at="y:write", type="request")
    rows("j", "deliver", "m1", at="x:write", type="request")
    assert rows.late() == [("m1", "j", "m2", "conflict")]

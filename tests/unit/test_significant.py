"""``verify --order significant`` as a person meets it, and the paper's own cases, one by one.

Sections are those of Enokido, Higaki, Takizawa, *Protocol for a group of objects*.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antecede.cli import run as antecede
from antecede.errors import UsageError
from antecede.trace import Event, Metadata, conflicts_in, judge_significant, match, read_conflicts, write_trace
from helpers.snapshots import Snapshots

_table = {"*": [["write", "write"], ["write", "read"]]}


class Rows:
    """A trace, row by row; indices count themselves."""

    def __init__(self) -> None:
        self.rows: list[Event] = []

    def __call__(self, process: str, kind: str, message: str | None = None, **said: Any) -> "Rows":
        index = sum(row.process == process for row in self.rows)
        if "at" in said:
            said["instance"], said["operation"] = said.pop("at").split(":")
        self.rows.append(Event(process, index, kind, message, **said))
        return self

    def late(self, table: Any = None) -> list[tuple[str, str, str, str]]:
        found = judge_significant(match(self.rows), conflicts_in(table or _table, "test"), every_overtaker=True)
        return [(one.message, one.to, one.overtaken_by, one.rule) for one in found.late]


def two_requests(first: str, second: str) -> Rows:
    """One instance asks an object twice, and the second request overtakes the first."""
    rows = Rows()
    rows("i", "send", "m1", to=("j",), at="a:call", type="request")
    rows("i", "send", "m2", to=("j",), at="a:call", type="request")
    rows("j", "deliver", "m2", at=f"y:{second}", type="request")
    return rows("j", "deliver", "m1", at=f"x:{first}", type="request")


def test_requests_of_conflicting_operations_keep_their_order() -> None:
    assert two_requests("write", "read").late() == [("m1", "j", "m2", "conflict")]
    assert two_requests("read", "write").late() == [("m1", "j", "m2", "conflict")]


def test_requests_of_compatible_operations_need_none() -> None:
    assert two_requests("read", "read").late() == []
    assert two_requests("read", "unheard-of").late() == []


def test_everything_may_conflict() -> None:
    assert two_requests("read", "look").late("all") == [("m1", "j", "m2", "conflict")]
    assert two_requests("read", "look").late({"*": [], "j": "all"}) == [("m1", "j", "m2", "conflict")]
    assert two_requests("read", "look").late({"*": "all", "j": []}) == []


def one_object_two_instances(interleaved: bool, first: str = "write", second: str = "write") -> Rows:
    """§3.2: i sends m1 by one instance and m2 by another (S2); j receives them the wrong way round."""
    rows = Rows()
    rows("i", "local", at=f"a:{first}", type="begin")
    if interleaved:
        rows("i", "local", at=f"b:{second}", type="begin")
    rows("i", "send", "m1", to=("j",), at=f"a:{first}", type="request")
    rows("i", "local", at=f"a:{first}", type="commit")
    rows("i", "send", "m2", to=("j",), at=f"b:{second}", type="request")
    rows("j", "deliver", "m2", at="y:write", type="request")
    return rows("j", "deliver", "m1", at="x:write", type="request")


def test_s2_1_conflicting_instances_one_after_the_other_order_what_they_send() -> None:
    assert one_object_two_instances(False).late() == [("m1", "j", "m2", "conflict")]
    assert one_object_two_instances(False, "read", "read").late() == []


def test_s2_2_interleaved_instances_order_nothing() -> None:
    assert one_object_two_instances(True).late() == []


def test_an_aborted_instance_orders_nothing_after_it() -> None:
    rows = one_object_two_instances(False)
    rows.rows[2] = Event("i", 2, "local", instance="a", operation="write", type="abort")
    assert rows.late() == []


def received(receiving: str, sending: str, same: bool) -> Rows:
    """§3.2: i sends m2 after it received m1 (R); k, where m1 goes too, receives m2 first."""
    rows = Rows()
    rows("h", "send", "m1", to=("i", "k"), at="r:call", type="request")
    rows("i", "deliver", "m1", at=f"a:{receiving}", type="request")
    rows("i", "send", "m2", to=("k",), at=f"{'a' if same else 'b'}:{sending}", type="request")
    rows("k", "deliver", "m2", at="y:write", type="request")
    return rows("k", "deliver", "m1", at="x:write", type="request")


def test_r_what_an_instance_received_precedes_what_it_or_a_conflicting_one_sends() -> None:
    assert received("read", "read", same=True).late() == [("m1", "k", "m2", "conflict")]
    assert received("read", "write", same=False).late() == [("m1", "k", "m2", "conflict")]
    assert received("read", "read", same=False).late() == []


def test_t1_messages_to_one_instance_keep_their_order() -> None:
    rows = Rows()
    rows("i", "send", "q", to=("j",), at="a:call", type="request")
    rows("j", "deliver", "q", at="x:read", type="request")
    rows("j", "send", "r1", to=("i",), at="x:read", type="response")
    rows("j", "send", "r2", to=("i",), at="x:read", type="response")
    rows("i", "deliver", "r2", at="a:call", type="response")
    rows("i", "deliver", "r1", at="a:call", type="response")
    assert rows.late() == [("r1", "i", "r2", "instance")]


def test_t2_responses_to_different_instances_come_in_any_order() -> None:
    rows = Rows()
    for name in ("a", "b"):
        rows("i", "send", f"q{name}", to=("j",), at=f"{name}:write", type="request")
    for name in ("a", "b"):
        rows("j", "deliver", f"q{name}", at=f"x{name}:write", type="request")
        rows("j", "send", f"r{name}", to=("i",), at=f"x{name}:write", type="response")
    rows("i", "deliver", "rb", at="b:write", type="response")
    rows("i", "deliver", "ra", at="a:write", type="response")
    assert rows.late() == []


def called_back(parent: str | None) -> Rows:
    """a at i asks j twice; the second of the two asks i back, and arrives before the first one's response."""
    rows = Rows()
    rows("i", "send", "q1", to=("j",), at="a:write", type="request")
    rows("j", "deliver", "q1", at="x:write", type="request", parent="a")
    rows("j", "send", "r1", to=("i",), at="x:write", type="response")
    rows("i", "send", "q2", to=("j",), at="a:write", type="request")
    rows("j", "deliver", "q2", at="y:write", type="request", parent="a")
    rows("j", "send", "back", to=("i",), at="y:write", type="request")
    rows("i", "deliver", "back", at="z:read", type="request", parent=parent)
    return rows("i", "deliver", "r1", at="a:write", type="response")


def test_an_instance_does_not_conflict_with_its_ancestors() -> None:
    assert called_back("y").late() == []
    assert called_back(None).late() == [("r1", "i", "back", "conflict")]


def test_a_response_never_waits_for_a_request() -> None:
    rows = Rows()
    rows("i", "send", "q", to=("j",), at="a:write", type="request")
    rows("j", "deliver", "q", at="x:read", type="request")
    rows("j", "send", "other", to=("i",), at="x:read", type="request")
    rows("j", "send", "r", to=("i",), at="x:read", type="response")
    rows("i", "deliver", "r", at="a:write", type="response")
    rows("i", "deliver", "other", at="b:write", type="request")
    assert rows.late() == []


def disagreeing(operation: str) -> Rows:
    """§3.3, C1: unrelated requests to two objects, which receive them in different orders."""
    rows = Rows()
    rows("h", "send", "m1", to=("i", "j"), at="a:call", type="request")
    rows("k", "send", "m2", to=("i", "j"), at="b:call", type="request")
    for process, order in (("i", "12"), ("j", "21")):
        for number in order:
            rows(process, "deliver", f"m{number}", at=f"x{number}:{operation}", type="request")
    return rows


def test_c1_conflicting_requests_come_in_one_order_at_all_common_destinations() -> None:
    assert disagreeing("write").late() == [("m1", "j", "m2", "agreement")]
    assert disagreeing("read").late() == []


def test_c1_asks_for_a_conflict_in_both_objects() -> None:
    assert disagreeing("write").late({"i": [["write", "write"]]}) == []


def figure_8(interleaved: bool) -> Rows:
    """§4.3, the example: two instances run interleaved in k; i receives m4 of the later one before m3."""
    rows = Rows()
    rows("i", "send", "m1", to=("j", "k"), at="op1:call", type="request")
    rows("k", "deliver", "m1", at="op2:write", type="request")
    rows("j", "deliver", "m1", at="op2:write", type="request")
    rows("j", "send", "m2", to=("i", "k"), at="op2:write", type="request")
    if interleaved:
        rows("k", "deliver", "m2", at="op3:write", type="request")
    rows("k", "send", "m3", to=("i",), at="op2:write", type="response")
    if not interleaved:
        rows("k", "deliver", "m2", at="op3:write", type="request")
    rows("k", "send", "m4", to=("i",), at="op3:write", type="response")
    rows("i", "deliver", "m4", at="op1:call", type="response")
    return rows("i", "deliver", "m3", at="op1:call", type="response")


def test_figure_8_m4_is_delivered_without_waiting_for_m3() -> None:
    assert figure_8(interleaved=True).late() == []
    assert figure_8(interleaved=False).late() == [("m3", "i", "m4", "instance")]


def test_a_message_without_a_type_is_a_request_if_it_is_the_first_to_its_instance() -> None:
    rows = two_requests("write", "read")
    for number, row in enumerate(rows.rows):
        rows.rows[number] = Event(
            row.process, row.index, row.kind, row.message, row.to, instance=row.instance, operation=row.operation
        )
    assert rows.late() == [("m1", "j", "m2", "conflict")]


Said = tuple[int, str, str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run a command in a folder of its own: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    write_trace("late.jsonl", two_requests("write", "read").rows, Metadata(conflicts=_table))
    write_trace("good.jsonl", two_requests("read", "read").rows, Metadata(conflicts=_table))
    write_trace("plain.jsonl", two_requests("write", "read").rows)
    bare = [Event("i", 0, "send", "m", ("j",)), Event("j", 0, "deliver", "m")]
    write_trace("bare.jsonl", bare, Metadata(conflicts=_table))
    write_trace("odd.jsonl", bare, Metadata(conflicts={"j": [["write"]]}))
    Path("table.json").write_text(json.dumps(_table))
    Path("torn.json").write_text("{")

    def run(line: str) -> Said:
        capsys.readouterr()
        code = antecede(line.split())
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_the_report_names_the_first_late_delivery_and_its_rule(run: Callable[..., Said], reads: Snapshots) -> None:
    code, out, _ = run("verify late.jsonl --order causal,significant --json")
    assert code == 1
    report = json.loads(out)["orders"]["significant"]
    assert report == {
        "holds": False,
        "late": 1,
        "crossed": 0,
        "first": {
            "message": "m1",
            "from": "i",
            "to": "j",
            "send_index": 0,
            "deliver_index": 1,
            "overtaken_by": "m2",
            "rule": "conflict",
        },
        "unlisted": ["call"],
    }
    code, out, _ = run("verify late.jsonl --order significant")
    reads(out)


def test_causal_order_may_be_broken_where_significant_order_holds(run: Callable[..., Said]) -> None:
    assert run("verify good.jsonl --order significant")[0] == 0
    assert run("verify good.jsonl --order causal")[0] == 1


def test_the_table_can_be_given_apart(run: Callable[..., Said]) -> None:
    assert run("verify plain.jsonl --order significant --conflicts table.json")[0] == 1
    assert run("verify plain.jsonl --order significant --conflicts late.jsonl.meta.json")[0] == 1


def test_late_deliveries_are_written(run: Callable[..., Said]) -> None:
    assert run("verify late.jsonl --order significant --late out")[0] == 1
    assert '"order":"significant","message":"m1"' in Path("out/late.jsonl").read_text()


@pytest.mark.parametrize(
    "line",
    [
        "plain.jsonl",
        "bare.jsonl",
        "odd.jsonl",
        "plain.jsonl --conflicts torn.json",
        "plain.jsonl --conflicts nowhere.json",
    ],
)
def test_what_cannot_be_judged_is_said_in_one_line(run: Callable[..., Said], line: str, reads: Snapshots) -> None:
    code, out, err = run(f"verify --order significant {line}")
    assert (code, out) == (2, "")
    reads(err)
    assert err.count("\n") == 1


@pytest.mark.parametrize("table", [3, {"*": "write"}, {"*": [["a", "b", "c"]]}, {"*": [["a", 1]]}, [["a"]]])
def test_a_malformed_table_is_refused(table: Any, reads: Snapshots) -> None:
    with pytest.raises(UsageError) as caught:
        conflicts_in(table, "here")
    reads(str(caught.value))


def test_a_table_has_its_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: Snapshots) -> None:
    monkeypatch.setattr("antecede.limits.conflict_pairs_max", 2)
    assert conflicts_in([["a", "b"], ["b", "b"]], "here").at("anyone")["b"] == {"a", "b"}
    with pytest.raises(UsageError) as caught:
        conflicts_in([["a", "b"]] * 3, "here")
    reads(str(caught.value))
    file = tmp_path / "table.json"
    file.write_text('[["a", "b"]]')
    monkeypatch.setattr("antecede.limits.conflicts_bytes_max", 12)
    assert read_conflicts(file).operations() == {"a", "b"}
    monkeypatch.setattr("antecede.limits.conflicts_bytes_max", 11)
    with pytest.raises(UsageError) as caught:
        read_conflicts(file)
    reads(str(caught.value))


def passed_on() -> Rows:
    """m1 goes to l slowly; its successors go i → j → k → l, changing instances by conflict at j."""
    rows = Rows()
    rows("i", "send", "m1", to=("l",), at="a:call", type="request")
    rows("i", "send", "m2", to=("j",), at="a:call", type="request")
    rows("j", "deliver", "m2", at="b:write", type="request")
    rows("j", "send", "m3", to=("k",), at="c:read", type="request")
    rows("k", "deliver", "m3", at="d:read", type="request")
    rows("k", "send", "m4", to=("l",), at="d:read", type="request")
    rows("l", "deliver", "m4", at="e:write", type="request")
    return rows("l", "deliver", "m1", at="f:write", type="request")


def test_a_violation_is_explained_step_by_step(run: Callable[..., Said], reads: Snapshots) -> None:
    write_trace("passed.jsonl", passed_on().rows, Metadata(conflicts=_table))
    code, out, _ = run("explain passed.jsonl --order significant --json")
    assert code == 0
    report = json.loads(out)
    assert (report["late"], report["shown"], report["holds"]) == (1, 1, False)
    said = report["explanations"][0]
    assert (said["message"], said["to"], said["rule"], said["length"]) == ("m1", "l", "conflict", 3)
    assert [(link["message"], link["to"], link["after"]["by"]) for link in said["chain"]] == [
        ("m2", "j", "instance"),
        ("m3", "k", "conflict"),
        ("m4", "l", "instance"),
    ]
    code, out, _ = run("explain passed.jsonl --order significant")
    reads(out)


def test_a_disagreement_is_explained_by_the_other_object(run: Callable[..., Said]) -> None:
    write_trace("torn.jsonl", disagreeing("write").rows, Metadata(conflicts=_table))
    code, out, _ = run("explain torn.jsonl --order significant --json --message m1")
    said = json.loads(out)["explanations"][0]
    assert code == 0
    assert (said["rule"], said["to"], said["length"]) == ("agreement", "j", 1)
    assert said["elsewhere"] == {"process": "i", "index": 0, "overtaken_by_index": 1}
    assert run("explain torn.jsonl --order significant --svg torn.svg")[0] == 0
    assert Path("torn.svg").read_text().startswith("<svg")
    assert run("explain plain.jsonl --order significant --conflicts table.json")[0] == 0
    assert run("explain plain.jsonl --order significant")[0] == 2


def test_measure_says_what_significance_spared(run: Callable[..., Said], reads: Snapshots) -> None:
    code, out, _ = run("measure good.jsonl --json")
    assert code == 0
    assert json.loads(out)["significance"] == {"messages": 2, "causal": 1, "significant": 0, "spared": 1}
    assert json.loads(run("measure late.jsonl --json")[1])["significance"]["spared"] == 0
    reads(run("measure good.jsonl")[1])
    assert json.loads(run("measure plain.jsonl --json")[1])["significance"] is None
    assert json.loads(run("measure plain.jsonl --json --conflicts table.json")[1])["significance"]["significant"] == 1
    assert json.loads(run("measure bare.jsonl --json")[1])["significance"] is None

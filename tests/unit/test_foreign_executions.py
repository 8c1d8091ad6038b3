"""Clock logs that hold several executions, that bring their own pattern, or whose clocks contradict each other."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from antecede import cli
from antecede.errors import TraceError, UsageError
from antecede.trace import judge, read_events, sift, verify
from antecede.trace.foreign import convert
from helpers.snapshots import Snapshots

_pattern = r"(?<event>.*)\n(?<host>\S*) (?<clock>{.*})"
_one = """a sends\na {"a":1}\nb receives\nb {"a":1,"b":1}\n"""
_two = """c sends\nc {"c":1}\nb receives\nb {"c":1,"b":1}\nb acts\nb {"c":1,"b":2}\n"""


def _convert(folder: Path, text: str, name: str = "a.log", **more: Any) -> dict[str, Any]:
    (folder / name).write_text(text)
    return convert([folder / name], folder / "t.jsonl", **more)


def _hosts(path: Path) -> set[str]:
    return {row.process for row in read_events([path])[0]}


@pytest.mark.parametrize(
    ("first", "between", "names"),
    [
        ("^=== (?<trace>.*) ===$", "=== run {} ===\n", ["run 1", "run 2"]),
        ("^=+$", "=====\n", ["1", "2"]),
    ],
)
def test_executions_become_traces(tmp_path: Path, first: str, between: str, names: list[str], reads: Snapshots) -> None:
    text = f"{_pattern}\n{first}\n{between.format(1)}{_one}\n{between.format(2)}{_two}"
    report = _convert(tmp_path, text)
    assert report["files"][0]["pattern"] == "in the first line"
    assert [trace["execution"] for trace in report["executions"]] == names
    assert (report["events"], report["messages"], report["unreadable"]) == (5, 2, 0)
    assert sorted(path.name for path in tmp_path.iterdir() if "meta" not in path.name) == [
        "a.log",
        "t-1.jsonl",
        "t-2.jsonl",
    ]
    assert (_hosts(tmp_path / "t-1.jsonl"), _hosts(tmp_path / "t-2.jsonl")) == ({"a", "b"}, {"b", "c"})
    for path in ("t-1.jsonl", "t-2.jsonl"):
        assert verify([tmp_path / path])["clocks"]["disagree"] == 0

    report = convert([tmp_path / "a.log"], tmp_path / "one.jsonl", execution=names[1])
    assert (report["executions"], report["events"]) == (None, 3)
    assert _hosts(tmp_path / "one.jsonl") == {"b", "c"}
    with pytest.raises(UsageError) as caught:
        convert([tmp_path / "a.log"], execution="9")
    reads(str(caught.value))


def test_executions_of_one_name_in_several_files_are_one(tmp_path: Path) -> None:
    header = f"{_pattern}\n^=== (?<trace>.*) ===$\n"
    (tmp_path / "a.log").write_text(f'{header}=== x ===\na sends\na {{"a":1}}\n=== y ===\na acts\na {{"a":1}}\n')
    (tmp_path / "b.log").write_text(f'{header}=== x ===\nb receives\nb {{"a":1,"b":1}}\n')
    report = convert([tmp_path / "a.log", tmp_path / "b.log"])
    assert [(trace["execution"], trace["messages"]) for trace in report["executions"]] == [("x", 1), ("y", 0)]


def test_a_delimiter_may_be_given_or_missing(tmp_path: Path) -> None:
    assert _convert(tmp_path, f"{_one}---\n{_two}", delimiter="^---$")["executions"][1]["messages"] == 1
    for text in (f"{_pattern}\n\n{_one}", f"{_pattern}\n{_one}"):
        report = _convert(tmp_path, text)
        assert (report["executions"], report["events"], report["unreadable"]) == (None, 2, 0)
        (tmp_path / "t.jsonl").unlink()


def test_the_first_line_may_be_blank(tmp_path: Path) -> None:
    report = _convert(tmp_path, f"\n^=+$\n{_one}=====\n{_two}")
    assert report["files"][0]["pattern"] == "event-first"
    assert [trace["messages"] for trace in report["executions"]] == [1, 1]
    assert report["unreadable"] == 0


def test_a_pattern_of_its_own_is_recognised(tmp_path: Path) -> None:
    text = "at (?<host>\\S+) with (?<clock>{.*}): (?<event>.*)\n\n"
    text += 'at a with {"a":1}: sends\nat b with {"a":1,"b":1}: gets\n'
    report = _convert(tmp_path, text)
    assert (report["files"][0]["format"], report["events"], report["messages"]) == ("shiviz", 2, 1)


@pytest.mark.parametrize(
    "text",
    [
        "(?<event>.*) (?<host>.*) (?<clock>.*\n",
        f"{_pattern}\n(\n{_one}",
    ],
)
def test_a_header_that_is_no_expression(tmp_path: Path, text: str, reads: Snapshots) -> None:
    with pytest.raises(TraceError) as caught:
        _convert(tmp_path, text, form="shiviz")
    reads(str(caught.value))


def test_a_delimiter_is_for_logs(tmp_path: Path, reads: Snapshots) -> None:
    with pytest.raises(UsageError) as caught:
        _convert(tmp_path, "[]", form="zipkin", delimiter="x")
    reads(str(caught.value))
    with pytest.raises(UsageError) as caught:
        _convert(tmp_path, _one, delimiter="(")
    reads(str(caught.value))
    spans = [{"traceId": "t", "id": "1", "timestamp": 1, "localEndpoint": {"serviceName": "a"}}]
    with pytest.raises(UsageError) as caught:
        _convert(tmp_path, json.dumps(spans), execution="1")
    reads(str(caught.value))


_contradicting = """\
a acts
a {"a":1}
c hears of a
c {"a":1,"c":1}
c has forgotten
c {"c":2}
b hears of c
b {"b":1,"c":2}
b hears of a
b {"a":1,"b":2,"c":2}
"""


def test_lateness_from_clocks_that_contradict_each_other_is_undecided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reads: Snapshots
) -> None:
    report = _convert(tmp_path, _contradicting)
    assert report["assumed"] == {"contradicting_clock": 2}
    said = verify([tmp_path / "t.jsonl"])
    assert said["orders"]["causal"] == {"holds": True, "late": 0, "undecided": 1, "first": None}
    assert said["clocks"]["disagree"] == 2
    trace = str(tmp_path / "t.jsonl")
    assert cli.run(["verify", trace]) == 0
    reads(capsys.readouterr().out)
    assert cli.run(["verify", trace, "--strict"]) == 1


def test_no_log_of_clocks_proves_lateness(seeds: int, tmp_path: Path) -> None:
    """Clocks that are right, that forget, and that are made up."""
    undecided = 0
    for seed in range(seeds):
        dice = Random(f"clocks {seed}")
        hosts = [f"h{k}" for k in range(dice.randint(2, 4))]
        wrong = dice.choice((0, 0.2, 0.6))
        clocks: dict[str, dict[str, int]] = {host: {} for host in hosts}
        text = ""
        for _ in range(dice.randint(2, 25)):
            host = dice.choice(hosts)
            clock = clocks[host]
            for name, entry in clocks[dice.choice(hosts)].items():
                clock[name] = max(clock.get(name, 0), entry)
            clock[host] = clock.get(host, 0) + 1
            shown = {
                name: entry if name == host or dice.random() > wrong else dice.randint(0, entry)
                for name, entry in clock.items()
            }
            text += f"event\n{host} {json.dumps(shown)}\n"
        _convert(tmp_path, text)
        sifted = sift(read_events([tmp_path / "t.jsonl"])[0])
        (tmp_path / "t.jsonl").unlink()
        verdict = judge(sifted.trace)
        assert not verdict.fifo, seed
        assert not verdict.causal, seed
        undecided += verdict.causal_undecided > 0
        if not wrong:
            assert not verdict.causal_undecided, seed
            assert not sifted.reasons, seed
    assert undecided > seeds // 50

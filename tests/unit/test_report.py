"""``antecede report``: one page and one document, from answers that the other commands give as well."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import pytest

from antecede import limits
from antecede.cli import run
from antecede.report import busiest, heat_map, per_second
from antecede.trace import Event, write_trace

_late = [
    Event("p", 0, "send", "x", ("r",), 10**9, stamp_bytes=3, notification="Said", label="hello"),
    Event("p", 1, "send", "y", ("q",), 2 * 10**9),
    Event("q", 0, "deliver", "y", None, 3 * 10**9),
    Event("q", 1, "send", "z", ("r",), 4 * 10**9),
    Event("r", 0, "deliver", "z", None, 5 * 10**9),
    Event("r", 1, "deliver", "x", None, 6 * 10**9),
]
_apart = ("seconds", "session_seconds", "events_per_second", "named")


class _Page(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.values: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.values += [value or "" for _, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, _Page, dict]]:
    monkeypatch.chdir(tmp_path)

    def made(rows: list[Event], *options: str) -> tuple[int, _Page, dict]:
        write_trace("trace.jsonl", rows)
        code = run(["report", "trace.jsonl", "--engine", "plain", *options])
        text = Path("report.html").read_text(encoding="utf-8")
        assert len(text) < 5_000_000
        return code, _Page(text), json.loads(Path("report.json").read_text())

    return made


def test_the_numbers_are_those_of_the_other_commands(
    report: Callable[..., tuple[int, _Page, dict]], capsys: pytest.CaptureFixture[str]
) -> None:
    code, page, document = report(_late, "--title", "A chat")
    assert code == 1
    assert {"title", "inputs", "json", "verify", "measure", "explain", "by_second"} == document.keys()
    for command, key in (("verify", "verify"), ("measure", "measure"), ("explain", None)):
        capsys.readouterr()
        run([command, "trace.jsonl", "--json", "--engine", "plain"])
        expected = json.loads(capsys.readouterr().out)
        found = document[key] if key else document["explain"][0]
        for name in found.keys() - set(_apart):
            assert found[name] == expected[name], (command, name)
    assert document["by_second"] == [[0, 1], [1, 1], [3, 1]]
    words = " ".join(page.text.split())
    for part in ("A chat", "1 late", "holds", "not recorded", "Method and limits"):
        assert part in words
    assert 'p sent "hello" to r, then y to q; q delivered y and sent z to r; r delivered z before "hello"' in words


def test_the_page_needs_nothing_and_runs_nothing(report: Callable[..., tuple[int, _Page, dict]]) -> None:
    bad = [
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "\x1b[31m\u202e",
        "a" * 9_000,
        "</style>",
        "&lt;",
    ]
    rows = []
    for place, name in enumerate(bad):
        rows.append(Event(name, 0, "send", f"<b>{place}", tuple(bad), label="</svg><script>", notification="</title>"))
        rows.append(Event(name, 1, "send", f"<u>{place}", (bad[(place + 1) % len(bad)],)))
        rows.append(Event(name, 2, "deliver", f"<u>{(place - 1) % len(bad)}"))
        rows.append(Event(name, 3, "deliver", f"<b>{(place - 1) % len(bad)}"))
    code, page, _ = report(rows, "--title", "<script>x</script>")
    assert code == 1
    assert "script" not in page.tags
    assert not {"img", "a", "link", "iframe", "object", "b", "u", "i"} & (page.tags - {"b"})
    assert not [name for name in page.attributes if name.startswith("on") or name in ("src", "href")]
    assert all("http" not in value or value.startswith("http://www.w3.org/") for value in page.values)
    assert "<script>alert(1)</script>" in page.text, "shown as text"
    assert "\x1b" not in page.text
    assert "a" * 1_100 not in page.text


def test_many_processes_are_the_busiest_and_others(report: Callable[..., tuple[int, _Page, dict]]) -> None:
    random = Random(1)
    names = [f"p{number}" for number in range(limits.report_processes_max + 50)]
    indices = dict.fromkeys(names, 0)
    rows = []

    def row(process: str, kind: str, message: str, to: tuple[str, ...] | None = None) -> None:
        rows.append(Event(process, indices[process], kind, message, to, len(rows) * 10**7))
        indices[process] += 1

    for number in range(5_000):
        source, target = random.sample(names, 2)
        row(source, "send", f"m{number}", (target,))
        row(target, "deliver", f"m{number}")
    code, page, document = report(rows)
    assert code == 0
    assert "The 50 processes with the least traffic" in page.text
    assert "others → others" in page.text
    kept, cells = busiest(document["measure"]["traffic"])
    assert len(kept) == limits.report_processes_max + 1
    assert sum(cells.values()) == 5_000
    drawn = heat_map(document["measure"]["traffic"])
    ElementTree.fromstring(drawn)
    # The others together have most copies; shades still distinguish single processes.
    assert re.search(r"1 to \d copies; others: up to \d+<", drawn)
    assert len(set(re.findall(r'class="s(\d)" x', drawn))) > 3
    drawn = ElementTree.fromstring(per_second(dict.fromkeys(range(100000), 1)))
    assert len(drawn) < 300


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("report -", "standard input"),
        ("report trace.jsonl -o no/such/folder/x.html", "does not exist"),
        ("report trace.jsonl -o x.json", "choose a name that does not end in .json"),
        ("report trace.jsonl -o .", "not a directory"),
        ("report trace.jsonl --order casual", "did you mean causal?"),
        ("report trace.jsonl --first 1000", "expected 0 to 100"),
        ("report nothing.jsonl", "nothing.jsonl"),
        ("report empty.jsonl", "nothing to report"),
    ],
)
def test_bad_input_is_one_line(
    line: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_trace("trace.jsonl", _late)
    Path("empty.jsonl").write_text("{}\n")
    before = set(Path().iterdir())
    assert run(line.split()) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert set(Path().iterdir()) == before

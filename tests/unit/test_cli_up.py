"""``antecede up`` shows the output of its servers, whatever their handlers print."""

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import pytest

from antecede.cli.serve import _Console, _ready
from antecede.topology import parse_topology
from helpers.changing import topology


def test_a_very_long_line_is_shown_in_pieces(capsys: pytest.CaptureFixture[str]) -> None:
    """If reading ended there, the server would soon wait for its own output, and ``up`` for the server."""
    file = parse_topology('[servers]\ns1 = "tcp://127.0.0.1:1"\n[domains]\nA = { servers = ["s1"] }\n')
    console = _Console(file, "text")

    async def main() -> None:
        stream = asyncio.StreamReader()
        process: Any = SimpleNamespace(stderr=stream)
        following = asyncio.create_task(console.follow("s1", process))
        stream.feed_data(b"first\n\n" + b"x" * 300_000)
        await asyncio.sleep(0)
        stream.feed_data(b"\n12:00:00.000 s1 started\nlast \xff")
        stream.feed_eof()
        await following

    asyncio.run(main())
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["s1 | first", "s1 | "]
    assert "".join(line.removeprefix("s1 | ") for line in lines[2:-3]) == "x" * 300_000
    assert lines[-3:] == ["s1 | 12:00:00.000 s1 started", "antecede: ready: s1", "s1 | last �"]
    assert console.last["s1"] == "last �"


@pytest.mark.parametrize("style", ["text", "json"])
def test_after_its_terminal_was_closed_it_reads_on(monkeypatch: pytest.MonkeyPatch, style: str) -> None:
    file = parse_topology('[servers]\ns1 = "tcp://127.0.0.1:1"\n[domains]\nA = { servers = ["s1"] }\n')
    console = _Console(file, style)
    terminal, ours = os.openpty()

    async def main() -> None:
        stream = asyncio.StreamReader()
        process: Any = SimpleNamespace(stderr=stream)
        following = asyncio.create_task(console.follow("s1", process))
        stream.feed_data(b'12:00:00.000 s1 started\n{"event": "started"}\n12:00:01.000 s1 stopped\n')
        stream.feed_eof()
        await following

    # It can be closed without an error: nothing is left to be written.
    with os.fdopen(ours, "w") as stderr, monkeypatch.context() as patch:
        os.close(terminal)
        patch.setattr("sys.stderr", stderr)
        asyncio.run(main())
    assert console.last["s1"] == "12:00:01.000 s1 stopped"


def test_a_change_that_would_be_refused_is_not_recommended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file from before a server was removed: its name cannot be used again."""
    old = parse_topology(topology({"A": "123"}, {"a": 1}))
    new = parse_topology(topology({"A": "12"}, {"a": 1}, moved="3>2"))
    monkeypatch.setattr("antecede.live.directories.differing", lambda folder, file: new if file is old else old)
    assert not _ready("old.toml", old, "data")
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == (
        "antecede: this change is refused: [moved] has no s3, but addresses NAME@s3 may still be in use: "
        'keep s3 = "s2", and give a new server another name'
    )
    assert not _ready("new.toml", new, "data")
    assert "to make this change: antecede topology apply new.toml --data data" in capsys.readouterr().err

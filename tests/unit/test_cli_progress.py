"""Progress on a terminal: numbers, percent and time left; nothing where standard error is not a terminal."""

import os
import pty
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from antecede.cli.terminal import Status, bar, status, watched
from antecede.pipeline.sessions import shown_tasks, tasks_of


class _Terminal:
    """Standard error as a terminal, whose output is kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ours, theirs = pty.openpty()
        self._ours, self._kept = ours, b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self._stream = os.fdopen(theirs, "w")
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "120")
        monkeypatch.setattr(sys, "stderr", self._stream)

    def _read(self) -> None:
        try:
            while piece := os.read(self._ours, 4096):
                self._kept += piece
        except OSError:
            # The other end is closed.
            pass

    def text(self) -> str:
        self._stream.close()
        self._reader.join(30)
        os.close(self._ours)
        return self._kept.decode("utf-8", "replace")


def test_steps_show_their_number_percent_and_text(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal(monkeypatch)
    with bar("counting") as (say, tell):
        tell(30, 120)
        say("still counting")
    shown = terminal.text()
    assert "still counting" in shown
    assert "30/120" in shown
    assert "25%" in shown


def test_a_counter_is_read_while_work_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal(monkeypatch)
    read = threading.Event()

    def done() -> int:
        read.set()
        return 7

    with watched("counting", 10, done):
        assert read.wait(60)
    assert "counting" in terminal.text()


def test_a_phase_shows_its_share_and_the_time_left() -> None:
    shown: list[str] = []
    now = [100.0]
    say = Status(shown.append, "starting", lambda: now[0])
    say("reading the trace")
    now[0] = 103.0
    for counted in (None, (0, 8), (2, 8)):
        say.tell(counted)
    assert shown == [
        "starting",
        "reading the trace",
        "reading the trace: 0% (0 of 8 tasks)",
        "reading the trace: 25% (2 of 8 tasks), 9 s left",
    ]


def test_a_status_on_a_terminal_shows_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal(monkeypatch)
    asked = threading.Event()

    def counter() -> tuple[int, int]:
        asked.set()
        return 3, 4

    with status("reading") as say:
        assert isinstance(say, Status)
        with say.watch(counter):
            assert asked.wait(60)
    assert "reading" in terminal.text()


def test_the_tasks_of_spark_are_counted_while_it_works() -> None:
    stages = {1: SimpleNamespace(numTasks=8, numCompletedTasks=3), 2: None}
    tracker = SimpleNamespace(getActiveStageIds=lambda: [*stages], getStageInfo=stages.get)
    assert tasks_of(SimpleNamespace(statusTracker=lambda: tracker)) == (3, 8)
    assert tasks_of(SimpleNamespace()) is None
    counters: list[Any] = []

    class Say:
        def __call__(self, text: str) -> None: ...

        def watch(self, counter: Any) -> AbstractContextManager[None]:
            counters.append(counter())
            return nullcontext()

    with shown_tasks(SimpleNamespace(statusTracker=lambda: tracker), Say()):
        assert counters == [(3, 8)]
    with shown_tasks(None, lambda text: None):
        pass


def test_nothing_is_shown_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with bar("counting") as (say, tell):
        say("more")
        tell(1, 2)
    with watched("counting", 10, lambda: 1):
        pass
    with status("counting") as say:
        say("more")
    assert capsys.readouterr().err == ""

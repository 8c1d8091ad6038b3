"""Progress on a terminal: numbers, percent and time left; nothing where standard error is not a terminal."""

import os
import pty
import sys
import threading

import pytest

from antecede.cli.progress import bar, watched


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


def test_nothing_is_shown_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with bar("counting") as (say, tell):
        say("more")
        tell(1, 2)
    with watched("counting", 10, lambda: 1):
        pass
    assert capsys.readouterr().err == ""

"""Where an exception of the application came from: the innermost frame of its own code."""

import json
from pathlib import Path

import pytest

from antecede import limits
from antecede.errors import AgentError
from antecede.failures import described, place_of, traceback_of
from antecede.live.application import load_class


def _total(prices: dict[str, int]) -> int:
    return prices["tea"]


def test_the_innermost_frame_of_the_application() -> None:
    with pytest.raises(KeyError) as caught:
        _total({})
    line = _total.__code__.co_firstlineno + 1
    assert described(caught.value) == f"KeyError: 'tea' (test_failures.py:{line} in _total)"


def test_a_library_that_was_called_is_not_to_blame() -> None:
    with pytest.raises(ValueError, match="Expecting value") as caught:
        json.loads("nonsense")
    assert place_of(caught.value).startswith("test_failures.py:")


def test_an_exception_that_nobody_raised_has_no_place() -> None:
    assert described(AgentError("no")) == "AgentError: no"


def test_a_traceback_is_cut_at_its_bound() -> None:
    short = traceback_of(ValueError("x"))
    most = limits.log_traceback_chars_max
    whole, cut = (traceback_of(ValueError("x" * (most - len(short) + more))) for more in (1, 2))
    assert (len(whole), "…" in whole) == (most, False)
    assert (len(cut), cut[:12], "…" in cut) == (most + 3, "ValueError: ", True)
    assert traceback_of(ValueError("\ud800")) == "ValueError: \\ud800"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def half(:\n", "SyntaxError: invalid syntax (broken0.py:1)"),
        ("\n\nx = 1 / 0\n", "ZeroDivisionError: division by zero (broken1.py:3)"),
        ("def f():\n    raise SystemExit(3)\nf()\n", "SystemExit: 3 (broken2.py:2 in f)"),
        ("import there_is_none\n", "No module named 'there_is_none' (broken3.py:1)"),
        ("from json import nothing_such\n", "broken4.py:1"),
    ],
)
def test_a_module_that_cannot_be_imported(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = next(word for word in said.replace("(", " ").split() if word.startswith("broken")).partition(".")[0]
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(AgentError) as caught:
        load_class(f"{name}:X")
    assert str(caught.value).startswith(f"agent class {name}:X: cannot import {name}: ")
    assert said in str(caught.value)


def test_a_module_that_is_not_there_has_no_place() -> None:
    with pytest.raises(AgentError, match=r"cannot import nowhere_at_all: No module named 'nowhere_at_all'$"):
        load_class("nowhere_at_all:X")

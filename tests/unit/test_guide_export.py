"""The guide to ``antecede export``: the pattern and the bounds are those of the code."""

import re
from pathlib import Path

from antecede import limits
from antecede.trace.exporting import PATTERN

_root = Path(__file__).resolve().parents[2]
_text = (_root / "docs" / "guide" / "export.md").read_text(encoding="utf-8")


def test_the_pattern_is_that_of_the_code() -> None:
    assert f"--pattern '{PATTERN}'" in _text


def test_the_bounds_are_those_of_the_code() -> None:
    told = dict(re.findall(r"^\| `(\w+)` \|.*\| ([\d,]+) events \|$", _text, re.MULTILINE))
    assert told == {form: f"{most:,}" for form, most in limits.export_events_max.items()}

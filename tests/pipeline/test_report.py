"""``antecede report`` on Spark: the same numbers as the plain engine, from one session."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_timings = {"engine", "seconds", "session_seconds", "events_per_second"}


def _numbers(document: Any) -> Any:
    """The document without what differs between engines."""
    if isinstance(document, dict):
        return {key: _numbers(value) for key, value in document.items() if key not in _timings}
    return [_numbers(one) for one in document] if isinstance(document, list) else document


def test_both_engines_report_the_same(
    command: Callable[[str], tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    from antecede.pipeline.judge import files

    session = files.session
    monkeypatch.setattr(files, "session", lambda *given, **named: started.append(1) or session(*given, **named))
    assert command("simulate --order none --messages 300 --multicast --trace run.jsonl")[0] == 0
    assert command("report run.jsonl -o report.html")[0] == 1
    plain = json.loads((tmp_path / "report.json").read_text())
    code, printed, _ = command("report run.jsonl -o report.html --engine spark")
    assert (code, printed.endswith(" KB), report.json\n")) == (1, True)
    assert started == [1]
    spark = json.loads((tmp_path / "report.json").read_text())
    assert spark["verify"]["engine"] == "spark"
    assert _numbers(plain) == _numbers(spark)

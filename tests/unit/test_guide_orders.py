"""The guide to one's own order: the template is refuted as printed, and passes once it is complete."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

_text = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "orders.md").read_text(encoding="utf-8")
_python = re.findall(r"^```python\n(.*?)^```$", _text, re.MULTILINE | re.DOTALL)


def _run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, encoding="utf-8", timeout=120)


def test_the_template_is_refuted_once_and_then_passes(tmp_path: Path) -> None:
    template, check, learn, test = _python
    assert len(template.splitlines()) <= 66
    (shown,) = re.findall(r"^```\n(AssertionError: .*?)^```$", _text, re.MULTILINE | re.DOTALL)
    (tmp_path / "counting.py").write_text(template)
    refuted = _run(tmp_path, check)
    assert refuted.returncode == 1
    assert refuted.stderr.rstrip().endswith(shown.rstrip()), refuted.stderr
    (tmp_path / "counting.py").write_text(template + "\n" + textwrap.indent(textwrap.dedent(learn), "    "))
    passed = _run(tmp_path, check.replace("Counting)", "Counting, schedules=10)"))
    assert passed.stdout.startswith("counting keeps causal, fifo: "), passed.stderr
    assert "10 schedules" in passed.stdout
    compile(test, "orders.md", "exec")

"""The pytest plug-in: a fixture that records the messages of a test, and explains a broken order with a diagram.

    def test_checkout(antecede_recording):
        ann = antecede_recording.process("ann")
        ann.sent("x", to="bob")
        …

When the test function has ended, the plug-in judges the recording by causal order. A marker can name other orders:
``@pytest.mark.antecede("fifo", "total")``. A broken order or an empty recording makes the test fail. If the test fails
for another reason, its report also shows the verdict on the recording.

If Antecede is installed, pytest imports this module every time it starts. So this module imports no other module of
Antecede until the fixture is used.
"""

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from antecede.record import Recording

_name = "antecede_recording"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker ``antecede``, so that pytest accepts it with ``--strict-markers``."""
    config.addinivalue_line(
        "markers", "antecede(*orders, complete=True, undelivered=True): the orders that antecede_recording must keep"
    )


@pytest.fixture
def antecede_recording(tmp_path: Path) -> "Generator[Recording, None, None]":
    """A recording of messages: ``antecede_recording.process("ann").sent("x", to="bob")``. After the test, the plug-in
    judges the recording by causal order, or by the orders that the marker ``antecede`` names."""
    from antecede.record import Recording

    with Recording(tmp_path / "antecede-recording") as recording:
        yield recording


@pytest.hookimpl(hookwrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, None]:
    """Run a test function. Then judge the recording of the test, if it has one. A skipped test is not judged."""
    outcome = yield
    recording: Any = pyfuncitem.funcargs.get(_name)
    error = outcome.excinfo[1] if outcome.excinfo else None
    if recording is None or isinstance(error, pytest.skip.Exception):
        return
    found = _judged(pyfuncitem, recording)
    if error is None and found:
        outcome.force_exception(pytest.fail.Exception(found, pytrace=False))
    elif error is not None and (not found or found.splitlines()[0] not in str(error)):
        text = (
            found
            or f"the recorded messages keep the order ({recording.events} event{'s' if recording.events != 1 else ''})"
        )
        pyfuncitem.add_report_section("call", "antecede", text)


def _judged(item: pytest.Function, recording: "Recording") -> str:
    from antecede.errors import AntecedeError
    from antecede.testing import problem

    marker = item.get_closest_marker("antecede")
    orders = marker.args if marker and marker.args else ("causal",)
    options = marker.kwargs if marker else {}
    if not recording.events:
        return f"nothing to judge: the test uses {_name}, but records no message"
    try:
        found = problem(recording, orders, **options, svg=recording.folder.with_suffix(".svg"))
    except (AntecedeError, TypeError) as error:
        return f"{_name}: {error}"
    return f"{found}\nrecorded in {recording.folder}" if found else ""

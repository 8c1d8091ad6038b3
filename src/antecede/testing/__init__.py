"""Tools to test your programs: a simulated world for agents, assertions about recorded traces, and tests of orders.

* :class:`World` runs your agents on simulated servers, with faults (:mod:`antecede.testing.world`).
* :func:`assert_causal`, :func:`assert_fifo` and :func:`assert_order` judge a recorded trace and explain a failure with
  a diagram. The pytest plug-in uses them for its fixture.
* :func:`check_order` tests your own order, a class that decides when each message may be delivered
  (:mod:`antecede.testing.order_kit`).

The simulator is loaded only when it is used: a test that judges a trace does not load it.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec

from antecede.errors import UsageError
from antecede.trace import Event, verify
from antecede.trace.explain import ExplainRequest, explain, with_origins
from antecede.trace.files import encode
from antecede.trace.titles import Titles, messages_in, named
from antecede.trace.verdicts import known_orders

if TYPE_CHECKING:
    from antecede.testing.order_kit import check_order
    from antecede.testing.world import NONE, ROUGH, DeadLetter, Faults, World

_homes = {
    "NONE": "world",
    "ROUGH": "world",
    "DeadLetter": "world",
    "Faults": "world",
    "World": "world",
    "check_order": "order_kit",
}


__all__ = [
    "NONE",
    "ROUGH",
    "DeadLetter",
    "Faults",
    "World",
    "assert_causal",
    "assert_fifo",
    "assert_order",
    "check_order",
]


def __getattr__(name: str) -> Any:
    home = _homes.get(name)
    if home is None:
        raise AttributeError(f"module 'antecede.testing' has no attribute {name!r}")
    return getattr(import_module(f"antecede.testing.{home}"), name)


# Judge a recorded trace in a test: if an order is broken, the test fails with an explanation and a diagram.
#
# A trace is a path, several paths, a :class:`~antecede.record.Recording` or :class:`~antecede.record.Recorder`, a
# :class:`~antecede.testing.World`, or a list of rows (dictionaries or events). A test also fails if the trace has no
# deliveries, or if rows could not be used and were set aside. (With ``complete=False``, a test does not fail because of
# rows that were set aside.) With ``undelivered=False``, a test also fails if copies of messages were never delivered.


def assert_causal(trace: Any, *, complete: bool = True, undelivered: bool = True) -> None:
    """Fail if causal order is broken: a message was delivered before another message that it depends on. Causal order
    includes FIFO order."""
    __tracebackhide__ = True
    assert_order(trace, "causal", complete=complete, undelivered=undelivered)


def assert_fifo(trace: Any, *, complete: bool = True, undelivered: bool = True) -> None:
    """Fail if a sender sent two messages to one receiver, and the second message was delivered before the first."""
    __tracebackhide__ = True
    assert_order(trace, "fifo", complete=complete, undelivered=undelivered)


def assert_order(trace: Any, *orders: str, complete: bool = True, undelivered: bool = True) -> None:
    """Fail if the trace breaks one of the orders: ``fifo``, ``causal``, ``total``, ``synchronous``, ``significant``.

    Without ``orders``, causal order is checked. Also fail if the trace has no deliveries. With ``complete=True``, also
    fail if rows could not be used and were set aside. With ``undelivered=False``, also fail if copies of messages were
    never delivered.
    """
    __tracebackhide__ = True
    found = problem(trace, orders or ("causal",), complete=complete, undelivered=undelivered)
    if found:
        raise AssertionError(found)


def problem(
    trace: Any,
    orders: Iterable[str] = ("causal",),
    *,
    complete: bool = True,
    undelivered: bool = True,
    svg: Path | None = None,
) -> str:
    """Check a trace by the same rules as :func:`assert_order`. Return why it fails, or an empty text if it passes. If
    an order is broken and ``svg`` is given, draw the explanation into this file."""
    asked = known_orders(tuple(orders))
    with _paths(trace) as paths:
        report = verify(paths, asked)
        broken = [order for order in asked if report["orders"][order]["holds"] is False]
        if broken:
            return _explained(paths, broken, svg)
        if not report["deliveries"]:
            from antecede.cli.wording import counted

            events = counted(report["events"], "event|events")
            return f"nothing to judge: no delivery in the trace ({events}){_aside(report)}"
        if complete and not report["complete"]:
            return f"rows of the trace were set aside, so the verdict does not cover them{_aside(report)}"
        if not undelivered and report["undelivered"]:
            from antecede.cli.wording import counted

            return f"{counted(report['undelivered'], 'copy was|copies were')} never delivered"
    return ""


def _aside(report: Mapping[str, Any]) -> str:
    from antecede.cli.wording import unread

    return "".join("\n" + line for line in unread(report))


def _explained(paths: list[str], broken: list[str], svg: Path | None) -> str:
    from antecede.cli.explain import explained
    from antecede.cli.terminal import write_svgs
    from antecede.diagram import of_explanation

    parts = []
    drawn = []
    for order in broken:
        report = with_origins(explain(paths, ExplainRequest(order, first=3)), paths)
        report["named"] = named(messages_in(report["explanations"]), paths)
        parts.append(f"{order} order is broken\n{explained(report)}".rstrip())
        drawn += [of_explanation(one, Titles(report["named"])) for one in report["explanations"]]
    if svg is not None and drawn:
        write_svgs(drawn, svg)
        parts.append(f"drawn in {svg}")
    return "\n\n".join(parts)


@contextmanager
def _paths(trace: Any) -> Iterator[list[str]]:
    """Yield the paths of a trace; rows in memory are written to a temporary file."""
    if isinstance(trace, str | os.PathLike):
        yield [os.fspath(trace)]
        return
    rows: Callable[[], Any] | None = getattr(trace, "trace", None)
    found = list(rows() if callable(rows) else trace)
    if found and all(isinstance(one, str | os.PathLike) for one in found):
        yield list(map(os.fspath, found))
        return
    with TemporaryDirectory(prefix="antecede-") as folder:
        path = Path(folder, "rows.jsonl")
        path.write_bytes(b"".join(_row(one) + b"\n" for one in found))
        yield [str(path)]


def _row(row: Any) -> bytes:
    if isinstance(row, Event):
        return encode(row)
    if not isinstance(row, Mapping):
        raise UsageError(f"{row!r}: expected a path, or rows of a trace as dictionaries")
    try:
        return msgspec.json.encode(row)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"row {row!r}: cannot be written as JSON: {error}") from None

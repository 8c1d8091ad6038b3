"""Collaborative editing: transactions that name their parents, as in the editing-traces collection.

A document ``{"txns": [{"parents": […], "agent": 0, "time": …}, …]}`` lists transactions so that parents, named by their
position, come first. An agent is a process and a transaction is an event of it. A transaction builds on its parents; a
parent at another agent must have been delivered before, so it is a message from there. A transaction with several
parents merges concurrent work.

The listed order of an agent's transactions counts as its own order. (In the recordings each has the previous one among
its ancestors.)
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from antecede import limits
from antecede.errors import TraceError
from antecede.trace.foreign.files import ForeignFile
from antecede.trace.foreign.weave import Moment, Woven
from antecede.trace.schema import INT64_MAX

_epoch = datetime(1970, 1, 1, tzinfo=UTC)


class _Document(msgspec.Struct, frozen=True):
    txns: list[msgspec.Raw]


class _Transaction(msgspec.Struct, frozen=True):
    parents: list[int]
    agent: int | str
    time: str | None = None


class _Place(msgspec.Struct, frozen=True, gc=False):
    transaction: int
    parents: list[int]

    def columns(self) -> dict[str, Any]:
        return {"transaction": self.transaction, "parents": self.parents}


class Editing:
    """Collects one recording."""

    def __init__(self) -> None:
        self._lines: dict[str, list[Moment]] = {}
        self.events = 0
        self.merges = 0
        """Transactions with several parents."""

    def read(self, file: ForeignFile) -> None:
        """Read the recording; a second one would have agents with the same names."""
        if self._lines:
            raise TraceError(f"{file.name}: expected only one editing recording per import")
        try:
            listed = msgspec.json.decode(file.document(), type=_Document).txns
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise TraceError(f"{file.name}: not an editing recording: {error}") from None
        if len(listed) > limits.foreign_events_max:
            raise TraceError(f"{file.name}: more transactions than one import can hold")
        places: dict[int, tuple[str, Moment]] = {}
        sent: set[str] = set()
        for number, raw in enumerate(listed):
            try:
                said = msgspec.json.decode(raw, type=_Transaction)
            except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                file.unreadable(None, f"transaction {number}: {error}")
                continue
            if any(parent not in places for parent in said.parents):
                file.unreadable(None, f"transaction {number}: a parent is not an earlier transaction")
                continue
            self._add(number, said, places, sent)

    def _add(self, number: int, said: _Transaction, places: dict[int, tuple[str, Moment]], sent: set[str]) -> None:
        agent = f"agent-{said.agent}" if isinstance(said.agent, int) else said.agent
        moment = Moment(_Place(number, said.parents), _nanoseconds(said.time))
        for parent in said.parents:
            source, earlier = places[parent]
            message = f"{source}:{parent}->{agent}"
            if source != agent and message not in sent:
                sent.add(message)
                earlier.give(message, agent)
                moment.take(message)
        places[number] = agent, moment
        self._lines.setdefault(agent, []).append(moment)
        self.events += 1
        self.merges += len(said.parents) > 1

    def weave(self) -> Woven:
        """Return the trace of the recording."""
        return Woven(self._lines)


def _nanoseconds(text: str | None) -> int | None:
    """Return the time of a transaction; the beginning of 1970 means that none was recorded."""
    try:
        moment = datetime.fromisoformat(text) if text else _epoch
        since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _epoch
    except (ValueError, OverflowError):
        return None
    time = since // timedelta(microseconds=1) * 1000
    return time if time and abs(time) <= INT64_MAX else None

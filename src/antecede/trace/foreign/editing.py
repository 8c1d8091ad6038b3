"""Collaborative editing: transactions that name their parents, as in the editing-traces collection.

A document ``{"txns": [{"parents": […], "agent": 0, "time": …}, …]}`` lists transactions, each after its parents, which
are given by their positions in the list. An agent is a process and a transaction is an event of it. A transaction
builds on its parents. So a parent at another agent was certainly delivered before, and counts as a message from that
agent. A parent is not a new message if the agent already knew it: if it is an ancestor of an earlier transaction of the
agent, or of another parent. A transaction with several parents merges concurrent work.

The transactions of an agent are taken in the order in which they are listed. (In most recordings, the agent's previous
transaction is an ancestor of the next one. This is not so if an author works on two branches.) So an editing session
never shows a late delivery.
"""

from datetime import datetime
from typing import Any

import msgspec

from antecede import limits
from antecede.errors import TraceError
from antecede.trace.foreign.files import JSON_ERRORS, ForeignFile
from antecede.trace.foreign.times import since_1970
from antecede.trace.foreign.weave import Moment, Woven


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


class _Done(msgspec.Struct, frozen=True, gc=False):
    """The data of a transaction that its children need."""

    agent: str
    moment: Moment
    position: int
    """The position of the transaction among those of its agent."""
    known: dict[str, int]
    """The number of known transactions of each other agent. Successive transactions may share one table."""

    def knows(self, other: "_Done") -> bool:
        """Return whether the agent of this transaction already knew another transaction."""
        if self.agent == other.agent:
            return self.position > other.position
        return self.known.get(other.agent, 0) > other.position


class Editing:
    """Collects one recording."""

    def __init__(self) -> None:
        self._lines: dict[str, list[Moment]] = {}
        self.events = 0
        self.merges = 0
        """The number of transactions with several parents."""
        self._known: dict[str, dict[str, int]] = {}
        """By agent, how many transactions of each other agent it knows."""
        self._entries = 0

    def read(self, file: ForeignFile) -> None:
        """Read the only recording. A second one is refused, because its agents would have the same names."""
        if self._lines:
            raise TraceError(f"{file.name}: expected only one editing recording per import")
        try:
            listed = msgspec.json.decode(file.document(), type=_Document).txns
        except JSON_ERRORS as error:
            raise TraceError(f"{file.name}: not an editing recording: {error}") from None
        if len(listed) > limits.foreign_events_max:
            raise TraceError(f"{file.name}: more transactions than one import can hold: import a smaller recording")
        done: dict[int, _Done] = {}
        for number, raw in enumerate(listed):
            try:
                said = msgspec.json.decode(raw, type=_Transaction)
            except JSON_ERRORS as error:
                file.unreadable(None, f"transaction {number}: {error}")
                continue
            if any(parent not in done for parent in said.parents):
                file.unreadable(None, f"transaction {number}: a parent is not an earlier transaction")
                continue
            done[number] = self._added(number, said, done)
            if self._entries > limits.foreign_clock_entries_max:
                raise TraceError(
                    f"{file.name}: more merges of different agents than one import can hold: import a smaller recording"
                )

    def _added(self, number: int, said: _Transaction, done: dict[int, _Done]) -> _Done:
        agent = f"agent-{said.agent}" if isinstance(said.agent, int) else said.agent
        line = self._lines.setdefault(agent, [])
        moment = Moment(_Place(number, said.parents), _nanoseconds(said.time))
        known = self._known.setdefault(agent, {})
        others = {parent: done[parent] for parent in said.parents if done[parent].agent != agent}
        new = {
            parent: one
            for parent, one in others.items()
            if known.get(one.agent, 0) <= one.position and not any(two.knows(one) for two in others.values())
        }
        if new:
            known = self._known[agent] = dict(known)
        for parent, one in new.items():
            message = f"{one.agent}:{parent}->{agent}"
            one.moment.give(message, agent)
            moment.take(message)
            for name, count in (*one.known.items(), (one.agent, one.position + 1)):
                if name != agent:
                    known[name] = max(known.get(name, 0), count)
        self._entries += len(known) if new else 0
        line.append(moment)
        self.events += 1
        self.merges += len(said.parents) > 1
        return _Done(agent, moment, len(line) - 1, known)

    def weave(self) -> Woven:
        """Return the trace of the recording."""
        return Woven(self._lines)


def _nanoseconds(text: str | None) -> int | None:
    """Return the time of a transaction; ``None`` if it cannot be read, or is the beginning of 1970, which means that no
    time was recorded."""
    try:
        return (since_1970(datetime.fromisoformat(text)) or None) if text else None
    except (ValueError, OverflowError):
        return None

"""Collaborative editing: transactions that name their parents, as in the editing-traces collection.

A document ``{"txns": [{"parents": […], "agent": 0, "time": …}, …]}`` lists transactions. Each transaction names its
parents by their positions in the list. Parents come before their children in the list. Every agent becomes a process,
and its transactions become the events of this process. A transaction builds on its parents. So its agent certainly
received all parents before it made the transaction. If another agent made a parent, the trace contains a message with
the parent, from the other agent to this agent. There is no such message if this agent already knew the parent. This is
the case if the parent is an ancestor of an earlier transaction of this agent, or of another parent of the same
transaction. A transaction with several parents merges concurrent work.

The transactions of an agent are in the order of the list. In most recordings, each transaction of an agent is an
ancestor of the agent's next transaction. If an agent works on two branches, some of its transactions are not ancestors
of its next transaction.

An editing session never shows a late delivery. The delivery of a message m is *late* if the agent already received
another message that was sent causally after m. Because of that other message, the agent already knows the transaction
in m. But the trace contains no message with a transaction that the receiver already knows. So it contains no message
like m.
"""

from datetime import datetime
from typing import Any

import msgspec

from antecede import limits
from antecede.errors import TraceError
from antecede.trace.foreign.files import JSON_ERRORS, ForeignFile
from antecede.trace.foreign.moments import ConvertedTrace, Moment
from antecede.trace.foreign.times import since_1970


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
    """A transaction that was already read, with the data that is needed to read its children."""

    agent: str
    moment: Moment
    position: int
    """The position of the transaction among all transactions of its agent, from 0."""
    known: dict[str, int]
    """For each other agent B: the number of B's transactions that ``agent`` knew when it made this transaction.
    Successive transactions of an agent may share one dictionary."""

    def knows(self, other: "_Done") -> bool:
        """Return whether the agent of this transaction already knew ``other`` when it made this transaction."""
        if self.agent == other.agent:
            return self.position > other.position
        return self.known.get(other.agent, 0) > other.position


class Editing:
    """Collects the transactions of one recorded editing session, and finds the messages between the agents."""

    def __init__(self) -> None:
        self._lines: dict[str, list[Moment]] = {}
        self.events = 0
        self.merges = 0
        """The number of transactions with several parents."""
        self._known: dict[str, dict[str, int]] = {}
        """``_known[a][b]`` is the number of transactions of agent b that agent a knows so far."""
        self._entries = 0

    def read(self, file: ForeignFile) -> None:
        """Read a recording. An import may contain only one recording. A second recording is refused, because its agents
        would have the same names as the agents of the first recording."""
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
                decoded = msgspec.json.decode(raw, type=_Transaction)
            except JSON_ERRORS as error:
                file.unreadable(None, f"transaction {number}: {error}")
                continue
            if any(parent not in done for parent in decoded.parents):
                file.unreadable(None, f"transaction {number}: a parent is not an earlier transaction")
                continue
            done[number] = self._added(number, decoded, done)
            if self._entries > limits.foreign_clock_entries_max:
                raise TraceError(
                    f"{file.name}: more messages between agents than one import can hold: import a smaller recording"
                )

    def _added(self, number: int, decoded: _Transaction, done: dict[int, _Done]) -> _Done:
        agent = f"agent-{decoded.agent}" if isinstance(decoded.agent, int) else decoded.agent
        line = self._lines.setdefault(agent, [])
        moment = Moment(_Place(number, decoded.parents), _nanoseconds(decoded.time))
        known = self._known.setdefault(agent, {})
        others = {parent: done[parent] for parent in decoded.parents if done[parent].agent != agent}
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
        self.merges += len(decoded.parents) > 1
        return _Done(agent, moment, len(line) - 1, known)

    def convert(self) -> ConvertedTrace:
        """Return the trace of the recording."""
        return ConvertedTrace(self._lines)


def _nanoseconds(text: str | None) -> int | None:
    """Return the time of a transaction in nanoseconds since 1970. Return ``None`` if the time cannot be read or was not
    recorded. The beginning of 1970 means that no time was recorded."""
    try:
        return (since_1970(datetime.fromisoformat(text)) or None) if text else None
    except (ValueError, OverflowError):
        return None

"""Significant order as docs/design/verdicts.md defines it, by brute force, and traces to try it on.

The checker is written from that page alone and shares nothing with the code under test but the row. Every sentence of
the section is one function here or a line of one.
"""

from random import Random
from typing import Any

import msgspec

from antecede.trace import Event


class Guide:
    """One trace of valid rows, with its table of conflicts as a document."""

    def __init__(self, rows: list[Event], table: Any) -> None:
        self.table = table
        self.lines: dict[str, list[Event]] = {}
        for row in sorted(rows, key=lambda row: (row.process, row.index)):
            if row.kind in ("send", "deliver", "local"):
                self.lines.setdefault(row.process, []).append(row)
        self.sends = {row.message: row for row in rows if row.kind == "send"}
        self.parents: dict[str, str] = {}
        for process in sorted(self.lines):
            for row in self.lines[process]:
                if row.instance is not None and row.parent is not None:
                    self.parents.setdefault(row.instance, row.parent)
        self.precedes = self._closed()

    def own_rows(self, row: Event) -> list[Event]:
        """The rows of the instance that a row belongs to."""
        return [one for one in self.lines[row.process] if one.instance == row.instance]

    def operation(self, row: Event) -> str | None:
        return next((one.operation for one in self.own_rows(row) if one.operation is not None), None)

    def aborted(self, row: Event) -> bool:
        return any(one.kind == "local" and one.type == "abort" for one in self.own_rows(row))

    def ancestors(self, name: str) -> set[str]:
        found: set[str] = set()
        while name in self.parents and self.parents[name] not in found:
            name = self.parents[name]
            found.add(name)
        return found

    def conflict(self, one: Event, other: Event) -> bool:
        """Whether the instances of two rows of one object conflict."""
        assert one.instance is not None
        assert other.instance is not None
        if other.instance in self.ancestors(one.instance) or one.instance in self.ancestors(other.instance):
            return False
        return self.operations_conflict(one, other)

    def operations_conflict(self, one: Event, other: Event) -> bool:
        a, b = self.operation(one), self.operation(other)
        if a is None or b is None or one.instance == other.instance:
            return False
        entry = self.table.get(one.process, self.table.get("*", []))
        return entry == "all" or [a, b] in entry or [b, a] in entry

    def kind_of(self, delivery: Event) -> str:
        """What a delivery is: request, repeated, response, commit or abort."""
        messages = [row for row in self.own_rows(delivery) if row.kind != "local"]

        def meant(row: Event) -> str:
            type_ = row.type if row.type is not None else self.sends[row.message].type
            if type_ is None:
                return "request" if row is messages[0] else "response"
            return type_ if type_ in ("request", "commit", "abort") else "response"

        requests = [row for row in messages if row.kind == "deliver" and meant(row) == "request"]
        if meant(delivery) == "request":
            return "request" if delivery is requests[0] else "repeated"
        return meant(delivery)

    def _closed(self) -> set[tuple[str, str]]:
        """All pairs of messages of which the first significantly precedes the second."""
        after: dict[str, set[str]] = {}
        for line in self.lines.values():
            acts = [row for row in line if row.instance is not None and row.kind != "local"]
            for position, one in enumerate(acts):
                for two in acts[position + 1 :]:
                    if two.kind == "send" and self._directly(one, two):
                        after.setdefault(one.message or "", set()).add(two.message or "")
        pairs: set[tuple[str, str]] = set()
        for start in after:
            reached, edge = set(), after[start]
            while edge:
                reached |= edge
                edge = {far for near in edge for far in after.get(near, ())} - reached
            pairs |= {(start, far) for far in reached}
        return pairs

    def _directly(self, one: Event, two: Event) -> bool:
        if one.instance == two.instance:
            return True
        ended = self.own_rows(one)[-1].index < self.own_rows(two)[0].index
        return ended and not self.aborted(one) and self.conflict(one, two)

    def late(self) -> dict[tuple[str, int], tuple[str, str]]:
        """By process and index of each late delivery, ``overtaken_by`` and ``rule``."""
        counting = {
            process: [
                row
                for row in line
                if row.kind == "deliver" and row.instance is not None and not self.aborted(row)
                if self.kind_of(row) in ("request", "response")
            ]
            for process, line in self.lines.items()
        }
        found: dict[tuple[str, int], tuple[str, str]] = {}
        for process, deliveries in counting.items():
            for position, m in enumerate(deliveries):
                for other in deliveries[:position]:
                    if (m.message, other.message) in self.precedes:
                        if m.instance == other.instance:
                            found.setdefault((process, m.index), (other.message or "", "instance"))
                        elif self.kind_of(other) == "request" and (
                            self.operations_conflict(m, other)
                            if self.kind_of(m) == "request"
                            else self.conflict(m, other)
                        ):
                            found.setdefault((process, m.index), (other.message or "", "conflict"))
        agreed = dict(found)
        for process, deliveries in counting.items():
            requests = [row for row in deliveries if self.kind_of(row) == "request"]
            for position, m in enumerate(requests):
                for other in requests[:position]:
                    if (process, m.index) not in found and self._disagree(m, other, counting):
                        agreed.setdefault((process, m.index), (other.message or "", "agreement"))
        return agreed

    def _disagree(self, m: Event, other: Event, counting: dict[str, list[Event]]) -> bool:
        """Whether an object whose name comes first received these requests the other way round."""
        if not self.conflict(m, other) or (other.message, m.message) in self.precedes:
            return False
        for process in counting:
            if process < m.process:
                requests = [row for row in counting[process] if self.kind_of(row) == "request"]
                mine = [row for row in requests if row.message == m.message]
                its = [row for row in requests if row.message == other.message]
                if mine and its and mine[0].index < its[0].index and self.conflict(mine[0], its[0]):
                    return True
        return False


def mutated(rows: list[Event], seed: int) -> list[Event]:
    """The rows with some things said otherwise, left out, or in another order."""
    random = Random(f"mutated {seed}")
    rows = list(rows)
    names = [row.instance for row in rows if row.instance] or ["x"]
    for _ in range(random.randint(0, 8) if rows else 0):
        at = random.randrange(len(rows))
        row = rows[at]
        what = random.choice(
            ("swap", "swap", "swap", "type", "untyped", "operation", "parent", "instance", "abort", "drop")
        )
        if what == "swap":
            near = [k for k, one in enumerate(rows) if one.process == row.process and abs(one.index - row.index) <= 4]
            other = random.choice(near)
            rows[at], rows[other] = (
                (
                    msgspec.structs.replace(rows[other], index=row.index),
                    msgspec.structs.replace(row, index=rows[other].index),
                )
                if other != at
                else (row, row)
            )
        elif what == "type":
            types = ("request", "request", "response", "commit", "abort", "begin", "other")
            rows[at] = msgspec.structs.replace(row, type=random.choice(types))
        elif what == "untyped":
            rows = [msgspec.structs.replace(one, type=None) if one.message == row.message else one for one in rows]
        elif what == "operation":
            operation = random.choice((None, "read", "write", "add", "audit"))
            rows = [
                msgspec.structs.replace(one, operation=operation)
                if (one.process, one.instance) == (row.process, row.instance) and one.instance
                else one
                for one in rows
            ]
        elif what == "parent":
            parent = random.choice(names)
            rows = [
                msgspec.structs.replace(one, parent=parent) if one.instance == row.instance else one for one in rows
            ]
        elif what == "instance":
            rows[at] = msgspec.structs.replace(row, instance=random.choice((None, *names)))
        elif what == "abort" and row.kind == "local":
            rows[at] = msgspec.structs.replace(row, type="abort")
        elif what == "drop":
            del rows[at]
            if not rows:
                return rows
    return rows


def drawn_table(table: Any, seed: int) -> Any:
    """The table, or now and then one in which everything conflicts at some objects."""
    random = Random(f"table {seed}")
    return table if random.random() < 0.8 else table | {random.choice(("*", "o0", "o1")): "all"}

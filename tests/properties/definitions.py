"""The definitions of happened-before and of every verdict, written out as loops over all pairs, for small traces.

Nothing here is shared with the code under test but the row itself. Happened-before is the transitive closure of the
adjacency relation, computed as such; every verdict asks for all pairs what its definition says.
"""

from collections.abc import Iterable, Sequence
from itertools import product
from random import Random

import msgspec

from antecede.trace import Event

Circle = set[tuple[str, str]]


def closure(nodes: Sequence[int], edges: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    """What can be reached from each node, by Warshall's algorithm."""
    reach: dict[int, set[int]] = {node: set() for node in nodes}
    for a, b in edges:
        reach[a].add(b)
    for middle in nodes:
        for start in nodes:
            if middle in reach[start]:
                reach[start] |= reach[middle]
    return reach


def set_aside(rows: list[Event]) -> dict[int, str]:
    """By row number, the reason for which the rows of a trace are set aside."""
    why: dict[int, str] = {}

    def left(*kinds: str) -> list[int]:
        return [i for i, row in enumerate(rows) if i not in why and (not kinds or row.kind in kinds)]

    def place(i: int) -> tuple[str, int, bool]:
        return rows[i].process, rows[i].index, rows[i].kind == "hop"

    why |= {i: "duplicate_row" for i in left() if any(rows[i] == rows[j] for j in range(i))}
    why |= {i: "duplicate_index" for i in left() if any(i != j and place(i) == place(j) for j in left())}
    twice = {
        rows[i].message for i, j in product(left("send"), repeat=2) if i < j and rows[i].message == rows[j].message
    }
    why |= {i: "duplicate_send" for i in left("send", "deliver") if rows[i].message in twice}
    why |= {
        i: "duplicate_delivery"
        for i in left("deliver")
        if any(_copy(rows[i]) == _copy(rows[j]) and rows[j].index < rows[i].index for j in left("deliver"))
    }
    sends = {rows[i].message: rows[i] for i in left("send")}
    why |= {i: "orphan_delivery" for i in left("deliver") if rows[i].message not in sends}
    why |= {i: "orphan_arrival" for i in left("arrive") if rows[i].message not in sends}
    why |= {i: "not_addressed" for i in left("deliver") if not _addressed(sends[rows[i].message], rows[i].process)}
    why |= {
        i: "before_send"
        for i in left("deliver")
        if sends[rows[i].message].process == rows[i].process and sends[rows[i].message].index > rows[i].index
    }
    reach = happened_before(rows, left())
    sent = {rows[i].message: i for i in left("send")}
    why |= {i: "cycle" for i in left("deliver") if sent[rows[i].message] in reach[i]}
    return why


def _copy(row: Event) -> tuple[str | None, str]:
    return row.message, row.process


def _addressed(send: Event, process: str) -> bool:
    return send.to is None or process in send.to


def happened_before(rows: list[Event], valid: list[int], certain: bool = False) -> dict[int, set[int]]:
    """For each valid row, the rows that come after it; for certain: wherever the assumed rows really were."""
    edges = []
    for i, j in product(valid, repeat=2):
        a, b = rows[i], rows[j]
        if "hop" in (a.kind, b.kind):
            continue
        along = a.process == b.process and a.index < b.index
        along = along and not (certain and (a.assumed or b.assumed))
        across = a.kind == "send" and b.kind == "deliver" and a.message == b.message
        if along or across:
            edges.append((i, j))
    return closure(valid, edges)


class Definitions:
    """All verdicts on one trace."""

    def __init__(self, rows: list[Event]) -> None:
        self.rows = rows
        self.why = set_aside(rows)
        self.valid = [i for i in range(len(rows)) if i not in self.why]
        self.after = happened_before(rows, self.valid)
        assert all(i not in self.after[i] for i in self.valid), "what is left must be a partial order"
        self.sends = {rows[i].message or "": i for i in self.valid if rows[i].kind == "send"}
        self.delivers = [i for i in self.valid if rows[i].kind == "deliver"]

    def send_of(self, i: int) -> int:
        return self.sends[self.rows[i].message or ""]

    def earlier(self, i: int) -> list[int]:
        """The deliveries in the same process before this one, first to last."""
        row = self.rows[i]
        same = [j for j in self.delivers if self.rows[j].process == row.process and self.rows[j].index < row.index]
        return sorted(same, key=lambda j: self.rows[j].index)

    def late(self, fifo: bool) -> list[tuple[str, str, int, str]]:
        """(message, process, index, overtaken by) of every late delivery, least (index, process) first."""
        found = []
        for i in self.delivers:
            over = [j for j in self.earlier(i) if self.send_of(j) in self.after[self.send_of(i)]]
            if fifo:
                sender = self.rows[self.send_of(i)].process
                over = [j for j in over if self.rows[self.send_of(j)].process == sender]
            if over:
                row = self.rows[i]
                found.append((row.message or "", row.process, row.index, self.rows[over[0]].message or ""))
        return sorted(found, key=lambda f: (f[2], f[1]))

    def late_for_certain(self, fifo: bool) -> list[tuple[str, str, int, str]]:
        """The same, wherever the assumed rows really were."""
        after = happened_before(self.rows, self.valid, certain=True)
        found = []
        for i in self.delivers:
            row, sent = self.rows[i], self.send_of(i)
            earlier = [j for j in self.earlier(i) if not row.assumed and not self.rows[j].assumed]
            over = [j for j in earlier if self.send_of(j) in after[sent]]
            if fifo:
                sends = {j: self.rows[self.send_of(j)] for j in over}
                mine = self.rows[sent]
                over = [j for j in over if sends[j].process == mine.process and not (mine.assumed or sends[j].assumed)]
            if over:
                found.append((row.message or "", row.process, row.index, self.rows[over[0]].message or ""))
        return sorted(found, key=lambda f: (f[2], f[1]))

    def comes_before(self, kinds: tuple[str, ...]) -> Circle:
        """The pairs of different messages of which an event of the first precedes one of the second in a process, for
        certain."""
        rows = [self.rows[i] for i in self.valid if self.rows[i].kind in kinds and not self.rows[i].assumed]
        return {
            (a.message or "", b.message or "")
            for a, b in product(rows, repeat=2)
            if a.process == b.process and a.index < b.index and a.message != b.message
        }

    def undelivered(self) -> int:
        got = {_copy(self.rows[i]) for i in self.delivers}
        return sum((m, name) not in got for m, i in self.sends.items() for name in set(self.rows[i].to or ()))

    def needless(self) -> list[tuple[str, str]]:
        """(process, message) of every message that was held without need."""
        found = []
        for message, process in {_copy(self.rows[i]) for i in self.valid if self.rows[i].kind == "arrive"}:
            line = sorted(
                (self.rows[i] for i in self.valid if self.rows[i].process == process and self.rows[i].kind != "hop"),
                key=lambda row: row.index,
            )
            got = [row.message for row in line if row.kind == "deliver"]
            if message not in got and process not in (self.rows[self.sends[message or ""]].to or ()):
                continue
            wanted = {
                m
                for m, i in self.sends.items()
                if (process in (self.rows[i].to or ()) or m in got) and self.sends[message or ""] in self.after[i]
            }
            if self._held_in(line, message or "", wanted):
                found.append((process, message or ""))
        return sorted(found)

    @staticmethod
    def _held_in(line: list[Event], message: str, wanted: set[str]) -> bool:
        arrived = False
        delivered: set[str | None] = set()
        for row in line:
            if row.kind == "deliver" and row.message == message:
                return False
            if row.kind != "deliver" and arrived and wanted <= delivered:
                return True
            arrived = arrived or (row.kind == "arrive" and row.message == message)
            delivered |= {row.message} if row.kind == "deliver" else set()
        return arrived and wanted <= delivered


def has_cycle(relation: Circle) -> bool:
    """Whether a relation between messages leads from one back to itself."""
    names = sorted({name for pair in relation for name in pair})
    number = {name: i for i, name in enumerate(names)}
    reach = closure(range(len(names)), [(number[a], number[b]) for a, b in relation])
    return any(node in reach[node] for node in reach)


def random_trace(seed: int) -> list[Event]:
    """A small trace: what a network could do, what a liar would write, or the first damaged into the second."""
    random = Random(f"trace {seed}")
    style = random.choice(("network", "network", "damaged", "damaged", "wild"))
    names = [f"p{i}" for i in range(random.randint(1, 5))]
    rows = _wild(random, names) if style == "wild" else _network(random, names)
    if style == "damaged":
        for _ in range(random.randint(1, 4)):
            rows = _damage(random, rows)
    if random.random() < 0.5:
        random.shuffle(rows)
    return rows


def with_assumed(rows: list[Event], seed: int) -> list[Event]:
    """The rows with some positions assumed."""
    random = Random(f"assumed {seed}")
    share = random.choice((0.1, 0.3, 0.7))
    return [msgspec.structs.replace(row, assumed=True) if random.random() < share else row for row in rows]


def _network(random: Random, names: list[str]) -> list[Event]:
    rows: list[Event] = []
    flying: list[tuple[str, str]] = []
    arrived: list[tuple[str, str]] = []
    eager = random.choice((0.2, 0.5, 0.8))
    patience = random.choice((0.0, 0.0, 0.5))
    sent = 0
    next_index = dict.fromkeys(names, 0)

    def add(process: str, kind: str, message: str | None, to: tuple[str, ...] | None = None) -> None:
        rows.append(Event(process, next_index[process], kind, message, to))
        next_index[process] += 1

    for _ in range(random.randint(1, 30)):
        if random.random() < 0.08:
            add(random.choice(names), random.choice(("local", "hop")), "m0")
        if not flying or random.random() < eager:
            to = tuple(sorted(random.sample([*names, "nobody"], random.randint(0, len(names)))))
            message = f"m{sent}"
            add(random.choice(names), "send", message, None if random.random() < 0.1 else to)
            flying += [(name, message) for name in to if name != "nobody"]
            sent += 1
        elif arrived and random.random() < patience:
            process, message = arrived.pop(random.randrange(len(arrived)))
            add(process, "deliver", message)
        else:
            process, message = flying.pop(random.randrange(len(flying)))
            add(process, "arrive", message)
            if random.random() < patience:
                arrived.append((process, message))
            else:
                add(process, "deliver", message)
    return _renumbered(rows)


def _renumbered(rows: list[Event]) -> list[Event]:
    """Hops have a numbering of their own."""
    counts: dict[tuple[str, bool], int] = {}
    out = []
    for row in rows:
        key = row.process, row.kind == "hop"
        out.append(Event(row.process, counts.get(key, 0), row.kind, row.message, row.to))
        counts[key] = counts.get(key, 0) + 1
    return out


def _damage(random: Random, rows: list[Event]) -> list[Event]:
    rows = list(rows)
    i, j = random.randrange(len(rows)), random.randrange(len(rows))
    a, b = rows[i], rows[j]
    what = random.choice(
        ("again", "swap", "swap", "swap", "drop", "clash", "rename", "readdress", "resend", "redeliver")
    )
    if what == "again":
        rows.append(a)
    elif what == "swap":
        rows[i] = Event(a.process, b.index if a.process == b.process else a.index, a.kind, a.message, a.to)
        rows[j] = Event(b.process, a.index if a.process == b.process else b.index, b.kind, b.message, b.to)
    elif what == "drop" and len(rows) > 1:
        del rows[i]
    elif what == "clash":
        rows.append(Event(a.process, a.index, "local"))
    elif what == "rename":
        rows[i] = Event(a.process, a.index, a.kind, f"m{random.randint(0, 12)}", a.to)
    elif what == "readdress":
        rows[i] = Event(a.process, a.index, a.kind, a.message, ("p0",))
    else:
        top = max(row.index for row in rows if row.process == a.process)
        rows.append(Event(a.process, top + 1, "send" if what == "resend" else "deliver", b.message or "m0", b.to))
    return rows


def _wild(random: Random, names: list[str]) -> list[Event]:
    rows = []
    messages = random.randint(1, 8)
    for name in names:
        for index in range(random.randint(0, 8)):
            kind = random.choice(("send", "deliver", "deliver", "deliver", "arrive", "local"))
            to = random.choice((None, None, tuple(names), tuple(names[:1]), ()))
            rows.append(Event(name, index, kind, f"m{random.randrange(messages)}", to if kind == "send" else None))
    return rows

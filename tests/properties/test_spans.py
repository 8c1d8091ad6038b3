"""Imported spans against what really happened: nothing that was in order is called late.

A run of services calls each other one after the other, in parallel, or without waiting. We know when everything was
sent and received; the spans that are recorded of it have the clocks of their hosts, which differ and are rounded. A
delivery that ``verify`` calls late must have been late. ``ANTECEDE_SEEDS`` sets how many runs.
"""

from pathlib import Path
from random import Random
from typing import Any

import msgspec

from antecede.trace import Event, judge, read_events, sift
from antecede.trace.foreign import convert


class _Run:
    """A run of services, and the spans that were recorded of it."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(f"spans {seed}")
        dice = self.dice
        names = dice.sample(["cart", "api", "zoo", "mail", "bank", "auth"], dice.randint(2, 5))
        self.hosts = {name: dice.randint(1, 2) if dice.random() < 0.2 else 1 for name in names}
        skew = dice.choice((0, 0, 5_000, 10**6))
        self.skew = {(name, host): dice.uniform(0, skew) for name in names for host in range(2)}
        self.tick = dice.choice((1, 10, 1_000))
        self.recorded = dice.choice(("shared", "apart", "parents only"))
        self.network = dice.choice((50, 500, 4_000))
        self.manners = dice.choice((("sequential",), ("parallel",), ("async",), ("sequential", "parallel", "async")))
        self.spans: list[dict[str, Any]] = []
        self.true: list[tuple[float, str, str, str, str]] = []
        """When, at which service, send or deliver, which message, to whom."""
        now = 100_000.0
        for _ in range(dice.randint(1, 4)):
            self._work(dice.choice(names), now, None, 0)
            now += dice.choice((300, 3_000, 30_000))

    def _record(
        self, span: str, parent: str | None, service: str, host: int, kind: str | None, start: float, end: float
    ) -> None:
        skew = self.skew[service, host]
        begun = int((start + skew) / self.tick) * self.tick
        took = int((end - start) / self.tick) * self.tick
        said = {"traceId": "t", "id": span, "timestamp": begun, "duration": took}
        said["localEndpoint"] = {"serviceName": service} | (
            {"ipv4": f"10.0.0.{host}"} if self.hosts[service] > 1 else {}
        )
        self.spans.append(said | ({"parentId": parent} if parent else {}) | ({"kind": kind} if kind else {}))

    def _work(self, service: str, start: float, given: tuple[str, str | None] | None, depth: int) -> float:
        """Serve a call, or begin by oneself; when it ended."""
        dice = self.dice
        span, parent = given or (f"root{len(self.spans)}-{start}", None)
        host = dice.randrange(self.hosts[service])
        now = start + dice.uniform(10, 500)
        end = now
        for _ in range(dice.randint(0, 3) if depth < 3 else 0):
            manner = dice.choice(self.manners)
            to = dice.choice(list(self.hosts))
            if to == service and self.recorded == "parents only":
                continue
            begun = now
            done = self._call(manner, service, host, span, to, begun, depth)
            end = max(end, done)
            now = (done if manner == "sequential" else begun) + dice.uniform(1, 600)
        end = max(end, now) + dice.uniform(0, 200)
        self._record(span, parent, service, host, "SERVER" if given else None, start, end)
        return end

    def _call(self, manner: str, service: str, host: int, parent: str, to: str, begun: float, depth: int) -> float:
        dice = self.dice
        number = f"{len(self.true)}"
        sent = begun + dice.uniform(0, 100)
        arrived = sent + dice.uniform(1, self.network)
        self.true.append((sent, service, "send", number, to))
        self.true.append((arrived, to, "deliver", number, to))
        if self.recorded == "shared":
            client, server, above = number, number, parent
        elif self.recorded == "apart":
            client, server, above = f"c{number}", number, f"c{number}"
        else:
            client, server, above = "", number, parent
        end = self._work(to, arrived, (server, above), depth + 1)
        answered = sent + dice.uniform(0, 100) if manner == "async" else end + dice.uniform(1, self.network)
        if client:
            kind = "PRODUCER" if manner == "async" else "CLIENT"
            self._record(client, parent, service, host, kind, begun, answered)
        return answered

    def late(self) -> tuple[set[str], set[str]]:
        """What was late by FIFO and by causal order."""
        rows: list[Event] = []
        indices: dict[str, int] = {}
        for _, service, kind, message, to in sorted(self.true):
            index = indices[service] = indices.get(service, -1) + 1
            rows.append(Event(service, index, kind, message, (to,) if kind == "send" else None))
        verdict = judge(rows)
        return {one.message for one in verdict.fifo}, {one.message for one in verdict.causal}


def test_what_was_in_order_is_never_called_late(seeds: int, tmp_path: Path) -> None:
    seen = {"late": 0, "undecided": 0, "truly late": 0, "kept": 0}
    for seed in range(seeds):
        run = _Run(seed)
        dice = Random(seed)
        dice.shuffle(run.spans)
        path = tmp_path / "spans.json"
        path.write_bytes(msgspec.json.encode(run.spans))
        convert([path], tmp_path / "t.jsonl")
        events = read_events([tmp_path / "t.jsonl"])[0]
        (tmp_path / "t.jsonl").unlink()
        sifted = sift(events)
        if all(count == 1 for count in run.hosts.values()):
            assert not sifted.reasons, f"seed {seed}: what really happened can be put in a sequence"
        verdict = judge(sifted.trace)
        received = {(row.process, row.index): (row.extra or {}).get("span") for row in events if row.kind == "deliver"}
        for found, true in zip((verdict.fifo, verdict.causal), run.late(), strict=True):
            accused = {received[late.to, late.deliver_index] for late in found}
            assert accused <= true, f"seed {seed}: {accused - true}"
        seen["late"] += bool(verdict.causal)
        seen["undecided"] += verdict.causal_undecided > 0
        seen["truly late"] += bool(run.late()[1])
        seen["kept"] += bool(verdict.deliveries) and not run.late()[1]
    # A comparison that never saw a late delivery proves nothing.
    assert min(seen.values()) > seeds // 100, seen

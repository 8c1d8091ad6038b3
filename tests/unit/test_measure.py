"""What order cost, measured from the trace alone: against the simulator's own figures, and against the definitions."""

from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest

from antecede.orders import parse
from antecede.simulator.run import Setup, simulate
from antecede.trace import Event, match, write_trace
from antecede.trace.costs import compared_max, concurrency, drawn, held, quantile
from antecede.trace.measure import COLUMNS, measure

_direct_orders = [
    *("none", "fifo", "matrix", "updates", "pruned", "direct", "buffer", "buffer:pipelined=true", "synchronous"),
    *("token", "lamport", "skeen", "skeen:causal=true"),
]
"""All but the coordinator, whose copies arrive at it first, and the vector, which broadcasts."""


def _measured(folder: Path, rows: list[Event], **options: Any) -> dict[str, Any]:
    write_trace(folder / "t.jsonl", rows)
    return measure([folder / "t.jsonl"], **options)


@pytest.mark.parametrize("order", _direct_orders)
@pytest.mark.parametrize("shape", ["unicast", "multicast", "request-reply"])
def test_a_simulated_trace_tells_what_the_simulator_counted(tmp_path: Path, order: str, shape: str) -> None:
    rows: list[Event] = []
    figures = simulate(Setup(parse(order), 6, 120, shape), rows.append)
    report = _measured(tmp_path, rows)
    assert report["held"] == figures["held"]
    stamp = figures["stamp"]
    assert report["stamp"] == {
        "bytes_mean": stamp["bytes_total"] / stamp["copies"],
        "bytes_max": stamp["bytes_max"],
        "copies": stamp["copies"],
    }
    assert report["delay"]["mean"] == pytest.approx(figures["latency"]["mean"], abs=1e-9)
    assert report["delay"]["p99"] == pytest.approx(figures["latency"]["p99"], rel=0.02)
    assert sum(pair["messages"] for pair in report["traffic"]) == report["deliveries"] == figures["deliveries"]


@pytest.mark.parametrize("faults", [{"loss": 0.2, "duplicate": 0.2}, {"partition": 0.02}])
def test_held_is_what_the_simulator_counted_on_bad_links(tmp_path: Path, faults: dict[str, Any]) -> None:
    for order in ("pruned", "fifo", "lamport"):
        rows: list[Event] = []
        figures = simulate(Setup(parse(order), 5, 150, "multicast", **faults), rows.append)
        assert _measured(tmp_path, rows)["held"] == figures["held"] > 0


def test_held_to_the_letter() -> None:
    """Directly; set free by another's arrival in the same instant; after a local event; later by the clock; never."""
    rows = [
        Event("q", 0, "arrive", "a", time=5),
        Event("q", 1, "deliver", "a", time=5),
        Event("q", 2, "arrive", "b", time=6),
        Event("q", 3, "arrive", "c", time=7),
        Event("q", 4, "deliver", "c", time=7),
        Event("q", 5, "deliver", "b", time=7),
        Event("q", 6, "arrive", "d"),
        Event("q", 7, "local"),
        Event("q", 8, "deliver", "d"),
        Event("q", 9, "arrive", "e", time=9),
        Event("q", 10, "deliver", "e", time=11),
        Event("q", 11, "arrive", "e", time=12),
        Event("q", 12, "arrive", "f"),
    ]
    rows += [Event("p", index, "send", message, ("q",)) for index, message in enumerate("abcdef")]
    assert held(match(rows)) == {"q": (6, 4)}


def test_a_routed_trace_tells_its_hops_and_its_stamps(tmp_path: Path) -> None:
    """One message over two routers, and one that stays at home."""
    rows = [
        Event("s1", 0, "send", "far", ("s4",), stamp_bytes=10),
        Event("s2", 0, "hop", "far", stamp_bytes=20, domain="B", hop=1),
        Event("s3", 0, "hop", "far", stamp_bytes=30, domain="C", hop=2),
        Event("s4", 0, "arrive", "far", stamp_bytes=30),
        Event("s4", 1, "deliver", "far"),
        Event("s1", 1, "send", "near", ("s2",), stamp_bytes=4),
        Event("s2", 0, "arrive", "near", stamp_bytes=4),
        Event("s2", 1, "deliver", "near"),
    ]
    report = _measured(tmp_path, rows)
    assert report["hops"] == {"mean": 2.0, "max": 3}
    assert report["stamp"] == {"bytes_mean": 32.0, "bytes_max": 60, "copies": 2}


def test_a_multicast_over_a_router_is_one_packet_a_stop(tmp_path: Path) -> None:
    rows = [
        Event("s1", 0, "send", "m", ("s2", "s3", "s4")),
        Event("s2", 0, "hop", "m", domain="B", hop=1),
        *(
            Event(name, index, kind, "m")
            for name in ("s2", "s3", "s4")
            for index, kind in enumerate(("arrive", "deliver"))
        ),
    ]
    report = _measured(tmp_path, rows)
    assert report["hops"] == {"mean": 1.0, "max": 2}
    assert report["stamp"]["bytes_mean"] is None


def test_what_the_trace_lacks_is_null(tmp_path: Path) -> None:
    report = _measured(tmp_path, [Event("p", 0, "send", "m", ("q",)), Event("q", 0, "deliver", "m")])
    assert report["traffic"] == [{"from": "p", "to": "q", "messages": 1, "bytes": None}]
    assert set(report["stamp"].values()) == set(report["delay"].values()) == set(report["hops"].values()) == {None}
    assert [report[name] for name in ("held", "arrivals", "concurrency", "rates")] == [None] * 4
    assert {"unit", "mean", "p50", "p99"} <= report["delay"].keys()


def test_bytes_are_known_where_every_message_says_them(tmp_path: Path) -> None:
    rows = [
        Event("p", 0, "send", "a", ("q", "r"), extra={"bytes": 10}),
        Event("p", 1, "send", "b", ("q",), extra={"size": 5, "bytes": True}),
        Event("p", 2, "send", "c", ("r",), extra={"bytes": "many"}),
        Event("p", 3, "send", "d", ("r",), extra={"bytes": -1}),
    ]
    assert _measured(tmp_path, rows)["traffic"] == [
        {"from": "p", "to": "q", "messages": 2, "bytes": 15},
        {"from": "p", "to": "r", "messages": 3, "bytes": None},
    ]


def test_unknown_destinations_are_where_a_message_came_to(tmp_path: Path) -> None:
    rows = [
        Event("p", 0, "send", "a", stamp_bytes=7),
        Event("q", 0, "deliver", "a"),
        Event("r", 0, "arrive", "a", stamp_bytes=9),
        Event("p", 1, "send", "to nobody", ()),
    ]
    report = _measured(tmp_path, rows)
    assert [(pair["to"], pair["messages"]) for pair in report["traffic"]] == [("q", 1), ("r", 1)]
    assert report["stamp"] == {"bytes_mean": 8.0, "bytes_max": 9, "copies": 2}


def test_clocks_that_disagree_are_reported(tmp_path: Path) -> None:
    rows = [Event("p", index, "send", f"m{index}", ("q",), time=10**9 * index) for index in range(4)]
    rows += [Event("q", index, "deliver", f"m{index}", time=10**9 * (2 * index - 1)) for index in range(4)]
    delay = _measured(tmp_path, rows)["delay"]
    assert delay == {
        "unit": "s",
        "mean": 0.5,
        "p50": 0.0,
        "p99": 2.0,
        "min": -1.0,
        "max": 2.0,
        "deliveries": 4,
        "negative": 1,
    }


def test_quantiles_are_values_that_occurred() -> None:
    values = list(range(1, 101))
    assert [quantile(values, percent) for percent in (0, 1, 50, 99, 100)] == [1, 1, 50, 99, 100]
    assert quantile([7], 50) == quantile([7], 99) == 7


def test_rates_over_the_span_and_in_the_fullest_second(tmp_path: Path) -> None:
    second = 10**9
    rows = [Event("p", k, "send", f"p{k}", (), time=time) for k, time in enumerate((5, 6, 5 + second, 5 + 4 * second))]
    rows.append(Event("q", 0, "send", "untimed", ()))
    rows.append(Event("q", 1, "send", "timed", (), time=7))
    rates = _measured(tmp_path, rows)["rates"]
    assert (rates["seconds"], rates["messages"], rates["mean"], rates["peak"]) == (4.0, 5, 1.25, 3)
    assert rates["processes"] == [
        {"process": "p", "messages": 4, "mean": 1.0, "peak": 2},
        {"process": "q", "messages": 1, "mean": 0.25, "peak": 1},
    ]
    assert _measured(tmp_path, rows[:1])["rates"]["mean"] is None, "one instant has no rate"


def _concurrent_by_definition(rows: list[Event]) -> float:
    """All pairs, over the closure of happened-before."""
    after: dict[int, set[int]] = {}
    for i in reversed(range(len(rows))):
        after[i] = set()
        for j in range(i + 1, len(rows)):
            along = rows[i].process == rows[j].process
            if along or (rows[i].kind == "send" and rows[i].message == rows[j].message):
                after[i] |= {j} | after[j]
    sends = [i for i, row in enumerate(rows) if row.kind == "send"]
    pairs = list(combinations(sends, 2))
    return sum(j not in after[i] for i, j in pairs) / len(pairs)


def test_concurrency_is_its_definition(seeds: int) -> None:
    for seed in range(seeds):
        random = Random(f"concurrency {seed}")
        names = [f"p{i}" for i in range(random.randint(1, 5))]
        rows: list[Event] = []
        flying: list[tuple[str, str]] = []
        indices = dict.fromkeys(names, 0)
        for step in range(random.randint(6, 30)):
            process, message = random.choice(names), f"m{step}"
            if step > 2 and flying and random.random() < 0.5:
                process, message = flying.pop(random.randrange(len(flying)))
                rows.append(Event(process, indices[process], "deliver", message))
            else:
                to = tuple(random.sample(names, random.randint(0, len(names))))
                rows.append(Event(process, indices[process], "send", message, to))
                flying += [(name, message) for name in to]
            indices[process] += 1
        share, compared = concurrency(match(rows))
        assert compared == sum(row.kind == "send" for row in rows)
        assert share == pytest.approx(_concurrent_by_definition(rows)), seed


def test_many_messages_are_sampled_evenly_and_always_alike() -> None:
    assert drawn(compared_max) == list(range(compared_max))
    ranks = drawn(3 * compared_max + 5)
    assert ranks == drawn(3 * compared_max + 5)
    assert len(ranks) == len(set(ranks)) == compared_max
    assert ranks == sorted(ranks)
    assert ranks[0] < 4
    assert 3 * compared_max <= ranks[-1] < 3 * compared_max + 5
    half = 2 * compared_max
    apart = [Event("p", index, "send", f"p{index}", ()) for index in range(half)]
    apart += [Event("q", index, "send", f"q{index}", ()) for index in range(half)]
    share, compared = concurrency(match(apart))
    assert compared == compared_max
    assert share == pytest.approx(0.5, abs=0.001)


def test_rows_set_aside_are_not_measured(tmp_path: Path) -> None:
    rows = [
        Event("p", 0, "send", "m", ("q",), time=0, stamp_bytes=1),
        Event("q", 0, "deliver", "m", time=1),
        Event("p", 1, "send", "twice", ("q",), time=2, stamp_bytes=100),
        Event("p", 2, "send", "twice", ("q",), time=3, stamp_bytes=100),
        Event("q", 1, "deliver", "twice", time=4),
        Event("s", 0, "hop", "m", hop=1, domain="A"),
        Event("s", 0, "hop", "m", hop=1, domain="B"),
    ]
    report = _measured(tmp_path, rows)
    assert report["quarantined"] == {"duplicate_index": 2, "duplicate_send": 3}
    assert report["complete"] is False
    assert (report["messages"], report["delay"]["deliveries"], report["stamp"]["bytes_max"]) == (1, 1, 1)
    assert report["hops"]["mean"] is None


def test_tables_are_tidy(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows: list[Event] = []
    simulate(Setup(parse("pruned"), 4, 60, "multicast"), rows.append)
    rows.append(Event("router", 0, "hop", "m0", domain="A", hop=1, stamp_bytes=3))
    report = _measured(tmp_path, rows, tables=tmp_path / "tables")
    read = {name: parquet.read_table(tmp_path / "tables" / f"{name}.parquet") for name in COLUMNS}
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == sorted(
        f"{name}.parquet" for name in COLUMNS
    )
    assert all(table.column_names == list(COLUMNS[name]) for name, table in read.items())
    assert read["traffic"].to_pylist() == report["traffic"]
    assert sum(read["delay"]["deliveries"].to_pylist()) == report["deliveries"]
    assert sum(read["rates"]["messages"].to_pylist()) == report["messages"]
    assert sum(read["held"]["arrivals"].to_pylist()) == report["arrivals"]
    assert read["hops"].to_pylist() == [{"router": "router", "domain": "A", "hop": 1, "messages": 1, "stamp_bytes": 3}]


def test_sums_that_no_column_holds_are_left_out(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [Event("p", index, "send", f"m{index}", ("q",), extra={"bytes": 2**63 - 1}) for index in range(3)]
    report = _measured(tmp_path, rows, tables=tmp_path / "tables")
    assert report["traffic"][0]["bytes"] == 3 * (2**63 - 1)
    assert parquet.read_table(tmp_path / "tables" / "traffic.parquet")["bytes"].to_pylist() == [None]

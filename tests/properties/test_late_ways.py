"""Late deliveries are the same in whichever way they are found, on any trace."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antecede.trace import Arrays, Event, Lanes, Matched, judge, match, streaming

pytest.importorskip("numpy")


def _trace(seed: int, processes: int, messages: int) -> list[Event]:
    """A random run: each message to a few processes, itself perhaps among them, delivered in any order."""
    dice = Random(seed)
    events: list[Event] = []
    index = [0] * processes
    streaming: list[tuple[str, int]] = []

    def add(process: int, kind: str, message: str, to: tuple[str, ...] | None = None) -> None:
        events.append(Event(f"p{process:03}", index[process], kind, message, to))
        index[process] += 1

    for number in range(messages):
        destinations = dice.sample(range(processes), dice.randint(0, min(4, processes)))
        add(dice.randrange(processes), "send", f"m{number}", tuple(f"p{one:03}" for one in destinations))
        streaming += [(f"m{number}", one) for one in destinations]
        for _ in range(dice.randint(0, 3)):
            if streaming:
                message, process = streaming.pop(dice.randrange(len(streaming)))
                add(process, "deliver", message)
    return events


@given(st.integers(0, 10**9), st.integers(1, 9), st.integers(0, 40))
def test_every_way_finds_the_same(seed: int, processes: int, messages: int) -> None:
    trace = match(_trace(seed, processes, messages))
    wanted = streaming.late_deliveries(trace, Lanes)
    assert streaming.late_deliveries(trace, Arrays) == wanted
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming, "_senders_min", 0)
        # Bits are swept often, and there are never too many.
        patch.setattr(streaming, "_sweep_min", 2)
        patch.setattr(streaming, "_most_pending", lambda walk, awaited: 0)
        found = [streaming.late_by_sets(trace)]
        # Not few, so the other walk is taken, but not so many that there is no answer.
        senders = len({trace.sends[event.message or ""][0] for event in _deliveries(trace)})
        patch.setattr(streaming, "_most_pending", lambda walk, awaited: 16 * senders)
        found.append(streaming.late_by_sets(trace))
    for late in found:
        assert late is not None
        assert _places(late) == _places(wanted)


def _deliveries(trace: Matched) -> list[Event]:
    return [event for line in trace.lines for event in line if event.kind == "deliver"]


def _places(events: list[Event]) -> list[tuple[str, int]]:
    return sorted((event.process, event.index) for event in events)


@pytest.mark.parametrize("way", ["pending", "arrays", "integers"])
def test_many_processes(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way gives the oracle's verdict on a trace of many processes; the others are not there to help."""
    trace = match(_trace(5, 80, 400))
    wanted = judge(trace, ("fifo", "causal"))
    assert wanted.causal
    if way == "pending":
        monkeypatch.setattr(streaming, "late_deliveries", None)
    else:
        monkeypatch.setattr(streaming, "_most_pending", lambda walk, awaited: 10**9)
        if way == "arrays":
            monkeypatch.setattr(streaming, "Lanes", None)
        else:
            monkeypatch.setattr(streaming, "find_spec", lambda name: None)
            monkeypatch.setattr(streaming, "Arrays", None)
    assert streaming.judge_large(trace, ("fifo", "causal"), every_overtaker=True).causal == wanted.causal


def test_few_processes_need_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = match(_trace(5, 8, 40))
    assert streaming.late_by_sets(trace) is None
    monkeypatch.setattr(streaming, "Arrays", None)
    assert streaming.judge_large(trace, ("causal",), every_overtaker=True).causal == judge(trace, ("causal",)).causal


def test_bits_are_used_again() -> None:
    """However long a run is, a set has room for what is pending, not for all that was ever sent."""
    events = []
    for number in range(6_000):
        a, b = f"p{number % 70:03}", f"p{(number + 1) % 70:03}"
        index = 2 * (number // 70)
        events.append(Event(a, index + (number % 70 > 0), "send", f"m{number}", (b,)))
        events.append(Event(b, index + (0 if b != "p000" else 1), "deliver", f"m{number}"))
    trace = match(events)
    walk, ends, awaited = streaming._numbered(trace)
    walk.sort()
    sets = streaming._Bits(len(trace.lines), len(awaited))
    assert streaming._late(walk, ends, awaited, sets) == []
    assert sets._width <= 4 * streaming._sweep_min


def _mailing_list(seed: int, people: int, mails: int) -> list[Event]:
    """Whoever answers a mail has read it before; an archive receives everything, some of it late."""
    dice = Random(seed)
    senders = [f"u{dice.randrange(people):03}" for _ in range(mails)]
    answered = [
        dice.randrange(max(0, mail - 9), mail) if mail and dice.random() < 0.7 else None for mail in range(mails)
    ]
    readers: list[dict[str, None]] = [{"archive": None} for _ in range(mails)]
    for mail, parent in enumerate(answered):
        if parent is not None and senders[parent] != senders[mail]:
            readers[parent][senders[mail]] = None
    events: list[Event] = []
    index: dict[str, int] = {}
    read: set[tuple[str, int]] = set()

    def add(process: str, kind: str, mail: int, to: tuple[str, ...] | None = None) -> None:
        events.append(Event(process, index.get(process, 0), kind, f"m{mail}", to))
        index[process] = index.get(process, 0) + 1

    waiting: list[int] = []
    for mail, parent in enumerate(answered):
        me = senders[mail]
        if parent is not None and me in readers[parent] and (me, parent) not in read:
            read.add((me, parent))
            add(me, "deliver", parent)
        add(me, "send", mail, tuple(readers[mail]))
        waiting.append(mail)
        while len(waiting) > 3:
            add("archive", "deliver", waiting.pop(dice.randrange(len(waiting))))
    return events


@pytest.mark.parametrize("seed", range(3))
def test_an_archive_leads_the_walk(seed: int) -> None:
    """Where one process receives everything, few messages are pending if it leads, and many by Lamport's clock."""
    trace = match(_mailing_list(seed, 100, 1_500))
    walk, _, awaited = streaming._numbered(trace)
    assert streaming._most_pending(walk, awaited) < 100 < streaming._most_pending(sorted(walk), awaited)
    wanted = judge(trace, ("fifo", "causal"))
    assert wanted.causal
    found = streaming.judge_large(trace, ("fifo", "causal"), every_overtaker=True)
    assert (found.causal, found.fifo, found.undelivered) == (wanted.causal, wanted.fifo, wanted.undelivered)

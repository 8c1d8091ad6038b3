"""Overtaking chains: each is re-checked against the rows, and shortest by brute force, on random traces.

Nothing here is shared with the search but the row. ``ANTECEDE_SEEDS`` sets how many traces; a failure names its seed.
"""

from collections import Counter
from itertools import pairwise
from random import Random

from antecede.trace import Chains, Event, Late, Link, judge, match

Rows = list[Event]


def _random_rows(seed: int) -> Rows:
    """What a network that reorders could do: multicasts, self-sends, undelivered copies, gaps in the indices."""
    random = Random(f"chains {seed}")
    names = [f"p{i}" for i in range(random.randint(1, 7))]
    rows: Rows = []
    flying: list[tuple[str, str]] = []
    stride = random.choice((1, 1, 3))
    indices = dict.fromkeys(names, 0)

    def add(process: str, kind: str, message: str, to: tuple[str, ...] | None = None) -> None:
        rows.append(Event(process, indices[process], kind, message, to))
        indices[process] += random.randint(1, stride)

    def anything(steps: int) -> None:
        for _ in range(steps):
            if not flying or random.random() < 0.5:
                to = random.sample(names, random.choice((1, 1, 1, min(2, len(names)), random.randint(1, len(names)))))
                message = f"m{len(rows)}"
                add(random.choice(names), "send", message, None if random.random() < 0.1 else tuple(sorted(to)))
                flying.extend((name, message) for name in to)
            else:
                process, message = flying.pop(random.randrange(len(flying)))
                add(process, "deliver", message)

    anything(random.randint(2, 40))
    if random.random() < 0.5:
        # A relay through many processes, which makes long chains unless what happens around it offers a short cut.
        way = random.sample(names, len(names))
        noise = random.choice((0, 1, 3))
        add(way[0], "send", "slow", (way[-1],))
        for number, (source, to) in enumerate(pairwise(way)):
            add(source, "send", f"relay{number}", (to,))
            anything(random.randint(0, noise))
            add(to, "deliver", f"relay{number}")
        add(way[-1], "deliver", "slow")
    anything(random.randint(0, 20))
    return rows


def _recheck(rows: Rows, late: Late, chain: list[Link]) -> None:
    """A chain is what it says it is: read off the rows, one by one."""
    at = {(row.process, row.index): row for row in rows}

    def sent(link: Link) -> None:
        send, deliver = at[link.source, link.send_index], at[link.to, link.deliver_index]
        assert (send.kind, send.message) == ("send", link.message)
        assert (deliver.kind, deliver.message) == ("deliver", link.message)

    for link in chain:
        sent(link)
    sent(Link(late.message, late.source, late.send_index, late.to, late.deliver_index))
    assert chain[0].source == late.source
    assert chain[0].send_index >= late.send_index
    for before, after in pairwise(chain):
        assert (before.to, True) == (after.source, before.deliver_index < after.send_index)
    assert chain[-1].to == late.to
    assert chain[-1].deliver_index < late.deliver_index
    assert chain[-1].message != late.message


def _fewest(rows: Rows, late: Late) -> int:
    """The length of a shortest chain: all ends of chains of one message, then of two, and so on."""
    sends = {row.message: row for row in rows if row.kind == "send"}
    deliveries = [row for row in rows if row.kind == "deliver"]
    ends = [
        row
        for row in deliveries
        if sends[row.message].process == late.source and sends[row.message].index >= late.send_index
    ]
    length = 1
    while not any(row.process == late.to and row.index < late.deliver_index for row in ends):
        ends = [
            row
            for row in deliveries
            if any(sends[row.message].process == end.process and sends[row.message].index > end.index for end in ends)
        ]
        length += 1
        assert ends
    return length


def test_chains_are_real_and_have_the_fewest_messages(seeds: int) -> None:
    seen: Counter[str] = Counter()
    seed = violated = 0
    while violated < seeds * 7:
        rows = _random_rows(seed)
        found = judge(rows, ("causal",)).causal
        violated += bool(found)
        chains = Chains(match(rows))
        for late in found:
            try:
                chain = chains.shortest(late)
                _recheck(rows, late, chain)
                assert len(chain) == _fewest(rows, late)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, {late}: {error}") from error
            seen[f"length {min(len(chain), 5)}"] += 1
            seen["begun by a copy"] += chain[0].message == late.message
            seen["self-send"] += late.source == late.to
            seen["several"] += len({one.to for one in found if one.message == late.message}) > 1
        seed += 1
    # What never occurred was not tested.
    wanted = {f"length {length}" for length in range(1, 6)} | {"begun by a copy", "self-send", "several"}
    assert wanted - {name for name, count in seen.items() if count >= 10} == set()


def test_a_nearer_way_found_later_does_not_lengthen_the_chain() -> None:
    """Two messages reach ``a`` earlier than one does; the chain through ``a``'s later send still counts one."""
    rows = [
        Event("p", 0, "send", "m", ("q",)),
        Event("p", 1, "send", "direct", ("a",)),
        Event("p", 2, "send", "round", ("c",)),
        Event("c", 0, "deliver", "round"),
        Event("c", 1, "send", "about", ("a",)),
        Event("a", 0, "deliver", "about"),
        Event("a", 1, "deliver", "direct"),
        Event("a", 2, "send", "on", ("b",)),
        Event("b", 0, "deliver", "on"),
        Event("b", 1, "send", "last", ("q",)),
        Event("q", 0, "deliver", "last"),
        Event("q", 1, "deliver", "m"),
    ]
    (late,) = (one for one in judge(rows, ("causal",)).causal if one.message == "m")
    assert [link.message for link in Chains(match(rows)).shortest(late)] == ["direct", "on", "last"]

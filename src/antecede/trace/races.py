"""Races: pairs of messages that were delivered in the right order, but only because of their timing.

Let q be a process that delivers the messages m and m′. The pair (m, m′) is a **race** at q if four conditions hold:

* The send of m happened before the send of m′.
* q delivered m before m′.
* The delivery of m at q did not happen before the send of m′.
* The declared guarantee of the system does not order m and m′.

If the copy of m to q had taken a little longer, m would have been late. The guarantee ``none`` orders no pair. The
guarantee ``fifo`` orders two messages of one sender. The guarantee ``causal`` orders m and m′ whenever the first
condition holds, so with it there are no races.

:mod:`antecede.trace.race_search` finds the pairs. If several messages of one sender are in a race with the same m′ at
q, only the last one delivered is counted, unless all pairs are requested.

**Slack** is how much later m could have arrived without being late. It is the time, by q's own clock, from the arrival
of m to the arrival of m′. There is one exception, if FIFO order is declared: m′ could not be delivered before all
earlier messages of its sender had arrived. If some of them arrived after m′, the slack is measured to the last of these
arrivals instead. If the arrivals are not recorded, the times of the deliveries are compared. A negative slack means
that m arrived after m′ but was delivered first: the system kept more order than it declared.

This module must not import :mod:`antecede.orders`, so the caller provides the declared guarantee.
"""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from antecede import __version__
from antecede.errors import UsageError
from antecede.trace.chain import Chains, Link
from antecede.trace.matched import Matched
from antecede.trace.quarantine import counts, sift
from antecede.trace.race_search import Found, Race, Wanted, find_races
from antecede.trace.schema import Event, Metadata
from antecede.trace.sources import load
from antecede.trace.verdicts import Late

GUARANTEES = ("none", "fifo", "causal")
"""The guarantees that a system may declare, weakest first."""

_second = 10**9


class Declared(msgspec.Struct, frozen=True):
    """The guarantee on which the search for races relies. ``by`` says where the guarantee comes from: from the
    ``metadata`` of the trace, from the option ``assume``, or from the ``default``."""

    guarantee: str = "fifo"
    by: str = "default"


Declare = Callable[[Sequence[Metadata]], Declared]
"""A function that returns the guarantee declared in the metadata of a trace. The caller provides it, because this
module must not import :mod:`antecede.orders`."""


def assumed(guarantee: str, by: str = "assume") -> Declare:
    """Return a function that always returns this guarantee and ignores the metadata."""
    if guarantee not in GUARANTEES:
        raise UsageError(f"--assume {guarantee!r}: expected one of {', '.join(GUARANTEES)}")
    return lambda _: Declared(guarantee, by)


def races(
    paths: Sequence[str | os.PathLike[str]], declare: Declare | None = None, wanted: Wanted | None = None
) -> dict[str, Any]:
    """Find the races of the given traces, taken as one trace; return the report."""
    started = time.perf_counter()
    wanted = wanted or Wanted()
    wanted.check()
    loaded = load(paths)
    declared = declare(loaded.metadata) if declare is not None else Declared()
    sifted = sift(loaded.events, loaded.placed)
    trace = sifted.trace
    found = find_races(trace, declared.guarantee, wanted)
    about = {
        "events": sifted.events,
        "deliveries": trace.deliveries,
        "complete": not sifted.reasons and not loaded.reasons,
        "quarantined": counts(sifted, loaded.reasons),
    }
    report = assembled("plain", declared, found, _race_rows(trace, found.races), about)
    return report | {"session_seconds": 0.0, "seconds": round(time.perf_counter() - started, 3)}


def assembled(
    engine: str, declared: Declared, found: Found, rows: list[dict[str, Any]], about: dict[str, Any]
) -> dict[str, Any]:
    """Return the report on the races of a trace, without the durations of the run."""
    return {
        "version": __version__,
        "engine": engine,
        "guarantee": declared.guarantee,
        "declared_by": declared.by,
        "events": about["events"],
        "deliveries": about["deliveries"],
        "late": None if declared.guarantee == "causal" else found.late,
        "pairs": found.pairs,
        "untimed": found.untimed,
        "resolution_seconds": None if found.resolution is None else found.resolution / _second,
        "shown": len(rows),
        "races": rows,
        "complete": about["complete"],
        "quarantined": about["quarantined"],
    }


def _race_rows(trace: Matched, found: list[Race]) -> list[dict[str, Any]]:
    """Return the report of each race. The report includes a shortest chain of messages, which shows how the second
    message of the race depends on the first."""
    if not found:
        return []
    chains = Chains(trace)
    rows = []
    for race in found:
        line = trace.lines[race.at]
        first, second = line[race.first], line[race.second]
        sent, after = trace.sent(first.message or ""), trace.sent(second.message or "")
        links: list[Link] = []
        if sent.process != after.process:
            # The chain that reaches the second sender before it sends, as if a delivery were late there at that moment.
            links = chains.shortest(Late(after.index, after.process, first.message or "", sent.process, sent.index))
        links.append(Link(second.message or "", after.process, after.index, second.process, second.index))
        rows.append(race_of(first, sent, second, None if race.untimed else race.slack, links))
    return rows


def race_of(first: Event, sent: Event, second: Event, slack: int | None, chain: Sequence[Link]) -> dict[str, Any]:
    """Return the report of one race. ``first`` and ``second``: the deliveries of the two messages. ``sent``: the send
    of the first message. ``slack``: in nanoseconds, or None if it is not known. ``chain``: a chain of messages through
    which the second message depends on the first."""
    return {
        "first": first.message,
        "second": second.message,
        "at": first.process,
        "slack_seconds": None if slack is None else slack / _second,
        "from": sent.process,
        "send_index": sent.index,
        "first_index": first.index,
        "second_index": second.index,
        "chain": [link.as_json() for link in chain],
    }


def declared_orders(metadata: Sequence[Metadata]) -> list[str]:
    """Return the names of all orders that the metadata of a trace contain, without repeats. If the metadata of one file
    do not name an order, return an empty list."""
    named: list[str] = []
    for one in metadata:
        if not isinstance(one.order, str) or not one.order.strip():
            return []
        named += [name.strip() for name in one.order.split(", ")]
    return list(dict.fromkeys(named))

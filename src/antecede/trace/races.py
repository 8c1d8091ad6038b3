"""Races: the pairs of messages that only timing kept in order.

A pair (m, m′) at q is a **race** where send(m) → send(m′), q delivered m first, deliver_q(m) does not precede
send(m′), and the guarantee that the system declares does not order the two. Had m's copy to q taken a little longer, it
would have been late. Under ``fifo`` two messages of one sender are ordered; under ``causal`` every such pair is, so
there are no races; under ``none`` nothing is.

The pairs are found by :mod:`antecede.trace.race_search`. Of the messages of one sender that race with the same m′ only
the last one delivered counts, unless every pair is wanted.

**Slack** is how much later m could have arrived: the time of q's own clock from the arrival of m to the arrival of m′.
Where FIFO order is declared, m′ may have waited for an earlier message of its sender; then the arrival that set it free
counts, for until then m could not come too late. Without arrivals the times of the deliveries are compared. A negative
slack means that m arrived after m′ and yet was delivered first: the system kept more than it declares.

This module knows events and their happened-before. It must not know orders: whoever does says what was declared.
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
"""What a system may declare, weakest first."""

_second = 10**9


class Declared(msgspec.Struct, frozen=True):
    """The guarantee that a trace is held against, and who says so: ``metadata``, ``assume`` or ``default``."""

    guarantee: str = "fifo"
    by: str = "default"


Declare = Callable[[Sequence[Metadata]], Declared]
"""What a trace's metadata declare, by somebody who knows orders."""


def assumed(guarantee: str, by: str = "assume") -> Declare:
    """This guarantee, whatever the metadata declare."""
    if guarantee not in GUARANTEES:
        raise UsageError(f"--assume {guarantee!r}: expected one of {', '.join(GUARANTEES)}")
    return lambda _: Declared(guarantee, by)


def races(
    paths: Sequence[str | os.PathLike[str]], declare: Declare | None = None, wanted: Wanted | None = None
) -> dict[str, Any]:
    """Find the races of the traces that the paths name, taken as one trace; the report."""
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
    report = assembled("plain", declared, found, _told(trace, found.races), about)
    return report | {"session_seconds": 0.0, "seconds": round(time.perf_counter() - started, 3)}


def assembled(
    engine: str, declared: Declared, found: Found, told: list[dict[str, Any]], about: dict[str, Any]
) -> dict[str, Any]:
    """The report without its timings."""
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
        "shown": len(told),
        "races": told,
        "complete": about["complete"],
        "quarantined": about["quarantined"],
    }


def _told(trace: Matched, found: list[Race]) -> list[dict[str, Any]]:
    """Each race by names, with a shortest chain by which the second message follows from the first."""
    chains = Chains(trace) if found else None
    told = []
    for race in found:
        assert chains is not None
        line = trace.lines[race.at]
        first, second = line[race.first], line[race.second]
        sent, after = trace.sent(first.message or ""), trace.sent(second.message or "")
        links: list[Link] = []
        if sent.process != after.process:
            # The chain that reaches the second sender before it sends, as if something were late there at that moment.
            links = chains.shortest(Late(after.index, after.process, first.message or "", sent.process, sent.index))
        links.append(Link(second.message or "", after.process, after.index, second.process, second.index))
        told.append(race_of(first, sent, second, None if race.untimed else race.slack, links))
    return told


def race_of(first: Event, sent: Event, second: Event, slack: int | None, chain: Sequence[Link]) -> dict[str, Any]:
    """The report of one race."""
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
    """The orders that a trace's metadata names, each once; nothing if one of them names none."""
    named: list[str] = []
    for one in metadata:
        if not isinstance(one.order, str) or not one.order.strip():
            return []
        named += [name.strip() for name in one.order.split(", ")]
    return list(dict.fromkeys(named))

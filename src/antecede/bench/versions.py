"""``antecede bench channel --against CHECKOUT``: compares this version with another one, by CPU time per message.

On a shared machine, wall-clock figures differ by tens of percent from minute to minute, but CPU time per message
differs only by a few percent. A *side* of the benchmark is one way to send messages. Both versions run in every round:
each side is measured with one version, and directly afterwards with the other version. In every second round, the two
versions run in the opposite sequence. For each side, a round gives one ratio: this version's CPU time divided by the
CPU time of the other version. The report has the geometric mean of the ratios and its 95 % confidence interval, by
Student's t on the logarithms of the ratios.

Both versions run with this interpreter, and both execute this version's :mod:`antecede.bench.ours`. So the agents and
the program are the same, and only the package that they import differs.

In the same way, ``antecede bench channel --permissions`` compares a client with permissions and a client without. With
permissions, the server has an access file: client and server prove their identity once, and each publish is checked.
Without permissions, nothing is proved or checked. TLS is used in neither case.
"""

import os
from collections.abc import Callable, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

import antecede
from antecede.bench import payload
from antecede.bench.channel import Ours, Sample, Side, sides
from antecede.bench.children import SideError
from antecede.bench.interpreter import interpreter
from antecede.errors import UsageError
from antecede.pipeline.sweep.intervals import half_width

usual = ("durable", "stateful", "exchange", "ping-pong")
"""The names of the sides (the ways to send messages) that are compared by default."""

_client = "program"
"""The name of the client that :mod:`antecede.bench.ours` runs."""

FIGURES = ("sender_cpu_us", "receiver_cpu_us", "cpu_us")


def comparable(only: str | None, permissions: bool = False) -> list[Side]:
    """Return the sides (the ways to send messages) to compare. ``only``: their names, separated by commas, or None for
    the default sides. If ``permissions`` is false, the default sides are ``usual``. If ``permissions`` is true, only
    sides with a client as the sender are possible, and the default is all of these sides. Raise UsageError if a name is
    not possible."""
    ours = {side.name: side for side in sides if isinstance(side.run, Ours) and not (permissions and side.run.embedded)}
    some = tuple(ours) if permissions else usual
    names = some if only is None else tuple(name.strip() for name in only.split(","))
    for name in names:
        if name not in ours:
            option = "--permissions" if permissions else "--against"
            raise UsageError(f"--only {name}: with {option}, expected some of {', '.join(ours)}")
    return [side for name, side in ours.items() if name in names]


def source_of(checkout: str) -> str:
    """Return the directory in a checkout from which the package of that checkout is imported."""
    source = os.path.join(os.path.abspath(checkout), "src")
    if not os.path.isfile(os.path.join(source, "antecede", "__init__.py")):
        raise UsageError(f"--against {checkout}: no src/antecede there; expected a checkout of Antecede")
    return source


def compare(
    wanted: Sequence[Side],
    checkout: str | None,
    messages: int,
    rounds: int,
    directory: str | None,
    report_status: Callable[[str], None],
    step: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Compare this version with the version in ``checkout``, and return the report. If ``checkout`` is None, compare
    this version with permissions and this version without permissions. ``step`` is called for each side in each
    round."""
    own = os.path.dirname(os.path.dirname(os.path.abspath(antecede.__file__)))
    sources = {"this": own, "other": own if checkout is None else source_of(checkout)}

    def measured(side: Side, variant: str) -> Sample:
        assert isinstance(side.run, Ours)
        with TemporaryDirectory(prefix="antecede-bench-", dir=directory) as place:
            keys = issue(Path(place) / "keys") if checkout is None and variant == "this" else None
            try:
                return side.run(max(100, round(messages * side.share)), place, sources[variant], keys)
            except SideError as error:
                if checkout is None:
                    raise
                raise SideError(f"side {side.name}, run with the package in {sources[variant]}: {error}") from None

    samples = _in_turns(wanted, measured, rounds, report_status, step)
    return {
        "bench": "channel",
        "against": "no permissions" if checkout is None else os.path.abspath(checkout),
        "payload_bytes": len(payload),
        "messages": messages,
        "rounds": rounds,
        "interpreter": interpreter(),
        "sides": [_row(side, samples[side.name]) for side in wanted],
    }


def _in_turns(
    wanted: Sequence[Side],
    measured: Callable[[Side, str], Sample],
    rounds: int,
    report_status: Callable[[str], None],
    step: Callable[[int, int], None],
) -> dict[str, dict[str, list[Sample]]]:
    """Measure each side in two variants. The names of the variants are ``this`` and ``other``. In each round, both
    variants of a side are measured directly one after the other. Return the samples of all rounds, by side and
    variant."""
    samples: dict[str, dict[str, list[Sample]]] = {side.name: {"this": [], "other": []} for side in wanted}
    for number in range(rounds):
        turns = ("this", "other") if number % 2 == 0 else ("other", "this")
        for at, side in enumerate(wanted):
            step(number * len(wanted) + at, rounds * len(wanted))
            for variant in turns:
                samples[side.name][variant].append(measured(side, variant))
            ratio = samples[side.name]["this"][-1]["cpu_us"] / samples[side.name]["other"][-1]["cpu_us"]
            report_status(f"round {number + 1}/{rounds}  {side.name:<20} {ratio:.3f}")
    return samples


def _row(side: Side, found: dict[str, list[Sample]]) -> dict[str, Any]:
    """Return the row of one side in the report. For each figure it has the medians of both variants, the ratio of the
    variants, and the confidence interval of the ratio."""
    row: dict[str, Any] = {"name": side.name, "says": side.says}
    for figure in FIGURES:
        here, there = ([sample[figure] for sample in found[version]] for version in ("this", "other"))
        ratios = [a / b for a, b in zip(here, there, strict=True)]
        low, high = interval(ratios)
        row[figure] = {
            "this": median(here),
            "other": median(there),
            "ratio": exp(fmean(map(log, ratios))),
            "low": low,
            "high": high,
            "ratios": ratios,
        }
    return row


def issue(folder: Path) -> Path:
    """Write these files to the folder: keys for both servers and the client, and an access file with the client's
    permissions. Return the folder."""
    from antecede.access.model import CLIENT, SERVER, Identity, Key
    from antecede.live.issuing import new_key, table, write_folder, write_servers

    identities = []
    for role, name in ((SERVER, "s1"), (SERVER, "s2"), (CLIENT, _client)):
        key = new_key()
        write_folder(folder / name, role, name, key, None, None)
        send, receive = (("wall", "sink"), ("wall",)) if role == CLIENT else ((), ())
        identities.append(Identity(role, name, (Key(key.public),), send=send, receive=receive))
    write_servers(folder / _client, identities[:2])
    (folder / "access.toml").write_text("".join(map(table, identities)))
    return folder


def interval(ratios: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the 95 % confidence interval of the geometric mean of these ratios. For a single ratio, return (None,
    None)."""
    if len(ratios) < 2:
        return None, None
    logs = [log(ratio) for ratio in ratios]
    reach = half_width(logs)
    assert reach is not None
    return exp(fmean(logs) - reach), exp(fmean(logs) + reach)


def comparison_table(report: dict[str, Any]) -> str:
    """Return the report as a table of text."""
    lines = [f"CPU per message against {report['against']}, {report['rounds']} rounds in turns"]
    lines.append(f"{'side':<18}{'':<10}{'this':>10}{'other':>10}{'ratio':>8}   95 % interval")
    for row in report["sides"]:
        for figure, name in zip(FIGURES, ("sender", "receiver", "both"), strict=True):
            of = row[figure]
            span = "–" if of["low"] is None else f"{of['low']:.3f} … {of['high']:.3f}"
            called = row["name"] if name == "sender" else ""
            lines.append(
                f"{called:<18}{name:<10}{of['this']:>7.1f} µs{of['other']:>7.1f} µs{of['ratio']:>8.3f}   {span}"
            )
    return "\n".join([*lines, report["interpreter"]["text"]])

"""Make the HTML page of a report from the answers of ``verify``, ``measure`` and ``explain``."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import ceil, sqrt
from typing import Any

from antecede import limits
from antecede.diagram import of_explanation, printable
from antecede.errors import DiagramError
from antecede.trace.explain import is_causal_chain, sentence
from antecede.trace.quarantine import unreadable_rows
from antecede.trace.titles import Titles, short_id

# Figures of a report as SVG: a map of the traffic, messages per second, and bars.
#
# A chart has no script. A cell of the map, or a bar in the chart of messages per second, has its value as a
# ``<title>``. Browsers show the title under the pointer. Colours come from the style sheet of the page, which has
# variants for light and dark.


OTHERS = "others"
_heat_shades = 8
_named_max = 36
"""The largest number of processes for which the rows and columns of the map have names."""
_points_max = 240
"""The largest number of bars in a chart over time. If a trace has more seconds, one bar stands for several seconds."""


def text(value: object, length: int = 40) -> str:
    """Return a value from a trace as text for the page: printable, escaped, and shortened if it is too long."""
    return escape(short_id(printable(str(value)), length))


def busiest(traffic: Sequence[Mapping[str, Any]]) -> tuple[list[str], dict[tuple[str, str], int]]:
    """Return the names of the busiest processes, and the number of copies of messages for each pair (sender, receiver).
    A message to three receivers counts as three copies. The busiest processes send and receive the most copies. If
    there are more than ``report_processes_max`` processes, the others are counted together under an empty name, which
    comes last."""
    totals: Counter[str] = Counter()
    for row in traffic:
        totals[row["from"]] += row["messages"]
        totals[row["to"]] += row["messages"]
    chosen = [name for name, _ in sorted(totals.items(), key=lambda item: (-item[1], item[0]))]
    kept = set(chosen[: limits.report_processes_max])
    cells: Counter[tuple[str, str]] = Counter()
    for row in traffic:
        # No process can be mistaken for the others: a name is never empty here.
        cells[row["from"] if row["from"] in kept else "", row["to"] if row["to"] in kept else ""] += row["messages"]
    names = sorted(kept, key=_natural)
    return names + ([""] if len(chosen) > len(kept) else []), dict(cells)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts P2 before P10."""
    return [(int(part[:18]) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", name)]


def heat_map(traffic: Sequence[Mapping[str, Any]]) -> str:
    """Draw a map with one row per sender and one column per receiver. Each cell shows how many copies of messages this
    sender has sent to this receiver. Return an empty string if there is no traffic."""
    names, cells = busiest(traffic)
    if not cells:
        return ""
    size = 22 if len(names) <= 20 else 14 if len(names) <= _named_max else 7
    shown = [text(name, 18) if name else OTHERS for name in names]
    named = len(names) <= _named_max
    letters = max(len(short_id(printable(name), 18)) if name else len(OTHERS) for name in names)
    left = 14 + 7.2 * letters if named else 40.0
    top = 18 + 5.2 * letters if named else 20.0
    # The cells of the others together are much larger; they would make all single processes look alike.
    single = [count for (source, to), count in cells.items() if source and to] or [*cells.values()]
    least, most = min(single), max(single)
    parts: list[str] = []
    if named:
        for place, name in enumerate(shown):
            middle = (place + 0.5) * size
            parts.append(f'<text class="axis end" x="{left - 6:.0f}" y="{top + middle + 4:.1f}">{name}</text>')
            x = left + middle + 4
            parts.append(
                f'<text class="axis" x="{x:.1f}" y="{top - 6:.0f}" transform="rotate(-45 {x:.1f} {top - 6:.0f})">'
                f"{name}</text>"
            )
    else:
        parts.append(f'<text class="axis" x="{left:.0f}" y="{top - 6:.0f}">to →</text>')
        parts.append(f'<text class="axis" x="2" y="{top + 10:.0f}">from</text>')
    side = len(names) * size
    parts.append(f'<rect class="field" x="{left:.0f}" y="{top:.0f}" width="{side}" height="{side}"/>')
    places = {name: place for place, name in enumerate(names)}
    for (source, to), count in sorted(cells.items()):
        shade = _shade(count, most)
        x, y = left + places[to] * size, top + places[source] * size
        title = f"{shown[places[source]]} → {shown[places[to]]}: {count:,}"
        parts.append(
            f'<rect class="s{shade}" x="{x:.0f}" y="{y:.0f}" width="{size - 1}" height="{size - 1}">'
            f"<title>{title}</title></rect>"
        )
    y = top + side + 14
    used = range(_shade(least, most), _heat_shades + 1)
    for place, shade in enumerate(used):
        parts.append(f'<rect class="s{shade}" x="{left + place * 14:.0f}" y="{y:.0f}" width="14" height="9"/>')
    scale = f"{least:,} to {most:,} copies" if least < most else f"{most:,} {'copy' if most == 1 else 'copies'} each"
    above = max(cells.values())
    scale += f"; {OTHERS}: up to {above:,}" if above > most else ""
    parts.append(f'<text class="axis" x="{left + len(used) * 14 + 8:.0f}" y="{y + 9:.0f}">{scale}</text>')
    width = left + max(side + (top * 0.8 if named else 8), _heat_shades * 14 + 160)
    height = y + 20
    return _svg(width, height, "Copies from each process to each", parts)


def _shade(count: int, most: int) -> int:
    return min(_heat_shades, max(1, ceil(_heat_shades * sqrt(count / most))))


def per_second(by_second: Mapping[int, int]) -> str:
    """Draw one bar per second. Each bar shows how many messages were sent in this second. If the trace is long, one bar
    stands for several seconds, and shows the average number per second. Return an empty string if all messages were
    sent in the same second, or if there are no messages. ``by_second`` has the number of messages for each second."""
    if len(by_second) < 2:
        return ""
    first, last = min(by_second), max(by_second)
    step = max(1, -(-(last - first + 1) // _points_max))
    counts: Counter[int] = Counter()
    for second, count in by_second.items():
        counts[(second - first) // step] += count
    total = (last - first) // step + 1
    most = max(counts.values()) / step
    left, width, height = 62.0, 640.0, 150.0
    bar = width / total
    parts = _grid(left, width, height, most)
    for place, count in sorted(counts.items()):
        high = height * count / step / most
        start = first + place * step
        when = f"second {start:,}" if step == 1 else f"seconds {start:,} to {start + step - 1:,}"
        parts.append(
            f'<rect class="bar" x="{left + place * bar:.1f}" y="{10 + height - high:.1f}" '
            f'width="{max(bar - 0.6, 0.6):.1f}" height="{high:.1f}"><title>{when}: {count / step:,.1f}/s</title></rect>'
        )
    parts.append(f'<text class="axis" x="{left:.0f}" y="{height + 26:.0f}">{first:,} s</text>')
    parts.append(f'<text class="axis end" x="{left + width:.0f}" y="{height + 26:.0f}">{last + 1:,} s</text>')
    return _svg(left + width + 10, height + 34, "Messages sent per second", parts)


def _grid(left: float, width: float, height: float, most: float) -> list[str]:
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = 10 + height * (1 - share)
        parts.append(f'<line class="grid" x1="{left:.0f}" x2="{left + width:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="axis end" x="{left - 6:.0f}" y="{y + 4:.1f}">{most * share:,.0f}</text>')
    return parts


def bars(rows: Sequence[tuple[str, int]], label: str) -> str:
    """Draw one horizontal bar per row, with its name and its value. Return an empty string if there are no rows."""
    if not rows:
        return ""
    most = max(value for _, value in rows) or 1
    left = 16 + 6.8 * max(len(short_id(printable(name), 28)) for name, _ in rows)
    parts: list[str] = []
    for place, (name, value) in enumerate(rows):
        y = 8 + place * 22
        long = 300 * value / most
        parts.append(f'<text class="axis end" x="{left - 8:.0f}" y="{y + 13}">{text(name, 28)}</text>')
        parts.append(f'<rect class="bar" x="{left:.0f}" y="{y}" width="{max(long, 1):.1f}" height="17" rx="2"/>')
        parts.append(f'<text class="axis" x="{left + long + 6:.1f}" y="{y + 13}">{value:,}</text>')
    return _svg(left + 300 + 110, 16 + 22 * len(rows), label, parts)


def _svg(width: float, height: float, label: str, parts: list[str]) -> str:
    return (
        f'<svg class="chart" role="img" aria-label="{escape(label)}" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}">{"".join(parts)}</svg>'
    )


_style = """
:root { color-scheme: light dark; --fg: #1f2328; --quiet: #59636e; --page: #ffffff; --card: #f6f8fa; --line: #d1d9e0;
 --good: #1a7f37; --bad: #cf222e; --open: #9a6700; --bar: #0969da;
 --s1: #ddf4ff; --s2: #b6e3ff; --s3: #80ccff; --s4: #54aeff; --s5: #218bff; --s6: #0969da; --s7: #0550ae;
 --s8: #033d8b; }
@media (prefers-color-scheme: dark) { :root { --fg: #e6edf3; --quiet: #9198a1; --page: #0d1117; --card: #151b23;
 --line: #3d444d; --good: #3fb950; --bad: #f85149; --open: #d29922; --bar: #58a6ff;
 --s1: #051d4d; --s2: #0c2d6b; --s3: #0d419d; --s4: #1158c7; --s5: #1f6feb; --s6: #388bfd; --s7: #79c0ff;
 --s8: #cae8ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px 20px 60px; max-width: 1080px; background: var(--page); color: var(--fg);
 font: 15px/1.55 system-ui, "Segoe UI", "DejaVu Sans", Arial, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 19px; margin: 40px 0 8px; }
p { margin: 8px 0; max-width: 75ch; }
.quiet { color: var(--quiet); } .cards { display: flex; flex-wrap: wrap; gap: 12px; margin: 16px 0; }
.card { flex: 1 1 190px; border: 1px solid var(--line); border-radius: 8px; padding: 12px 16px;
 background: var(--card); }
.card b { display: block; font-size: 22px; line-height: 1.3; } .card span { color: var(--quiet); font-size: 13px; }
.good b { color: var(--good); } .bad b { color: var(--bad); } .open b { color: var(--open); }
.good { border-left: 5px solid var(--good); } .bad { border-left: 5px solid var(--bad); }
.open { border-left: 5px solid var(--open); }
.drawings { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 480px), 1fr)); gap: 0 28px; }
figure { margin: 14px 0; overflow-x: auto; } figure svg { display: block; height: auto; max-width: none; }
.drawings svg { max-width: 100%; }
figcaption { color: var(--quiet); font-size: 13px; margin-top: 4px; }
table { border-collapse: collapse; margin: 10px 0; display: block; overflow-x: auto; font-size: 14px; }
th, td { text-align: left; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
.chart text { font: 12px system-ui, "DejaVu Sans", Arial, sans-serif; } .chart .axis { fill: var(--quiet); }
.chart .end { text-anchor: end; } .chart .bar { fill: var(--bar); } .chart .grid { stroke: var(--line); }
.chart .field { fill: var(--card); stroke: var(--line); }
"""
_shades = "".join(f".chart .s{shade} {{ fill: var(--s{shade}); }}" for shade in range(1, 9))
_policy = "default-src 'none'; style-src 'unsafe-inline'"
_meanings = {
    "fifo": "messages from one sender to one receiver arrive in the order in which they were sent",
    "causal": "no message arrives before one that it follows from",
    "total": "all processes deliver messages in one common sequence",
    "synchronous": "all messages could have been instantaneous",
    "significant": "conflicting operations are computed in causal order",
}


def page_of(report: Mapping[str, Any]) -> str:
    """Return the HTML page of a report. ``report``: the content of the JSON that ``antecede report`` can write."""
    found, figures = report["verify"], report["measure"]
    parts = [*_head(report), *_verdicts(found), *_violations(report), *_costs(figures)]
    parts += [*_traffic(figures), *_rates(figures, report["by_second"]), *_method(report)]
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(report['title'], 80)}</title>\n<style>{_style}{_shades}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _head(report: Mapping[str, Any]) -> Iterator[str]:
    found = report["verify"]
    inputs = ", ".join(text(path, 60) for path in report["inputs"][:6]) + (", …" if len(report["inputs"]) > 6 else "")
    yield f"<h1>{text(report['title'], 80)}</h1>"
    yield f'<p class="quiet">{inputs}</p>'
    counts = [("events", found["events"]), ("processes", found["processes"]), ("messages", found["messages"])]
    counts += [("deliveries", found["deliveries"]), ("copies undelivered", found["undelivered"])]
    yield '<div class="cards">'
    yield from (f'<div class="card"><b>{count:,}</b><span>{name}</span></div>' for name, count in counts)
    yield "</div>"


def _verdicts(found: Mapping[str, Any]) -> Iterator[str]:
    yield '<h2>Was order kept?</h2>\n<div class="cards">'
    doubtful = not found["readable"]
    for order, entry in found["orders"].items():
        kind, verdict = "good", "holds"
        if entry["holds"] is None or (entry["holds"] and doubtful):
            kind, verdict = "open", "not judged"
        elif not entry["holds"]:
            late = entry.get("late")
            kind, verdict = "bad", "violated" if late is None else f"{late:,} late"
        undecided = f"<br>{entry['undecided']:,} more undecided" if entry.get("undecided") else ""
        yield (
            f'<div class="card {kind}"><span>{order} order</span><b>{verdict}</b>'
            f"<span>{_meanings[order]}{undecided}</span></div>"
        )
    yield "</div>"
    if doubtful:
        yield f"<p>Too many rows cannot be read for a verdict: {escape(unreadable_rows(found) or '')}.</p>"


def _violations(report: Mapping[str, Any]) -> Iterator[str]:
    explained = [one for one in report["explain"] if one["explanations"]]
    if not explained:
        return
    yield "<h2>What went wrong</h2>"
    for one in explained:
        titles = Titles(one["named"])
        if one["late"]:
            late = "1 delivery is" if one["late"] == 1 else f"{one['late']:,} deliveries are"
            first = f" The first {one['shown']} are drawn." if one["shown"] < one["late"] else ""
            yield (
                f"<p>{late} late under {one['order']} order. A drawing shows a shortest chain of messages that "
                f"overtook the late message, which is red.{first}</p>"
            )
        else:
            yield f"<p>Messages in a cycle break {one['order']} order.</p>"
        yield '<div class="drawings">'
        yield from (_drawn(explanation, titles) for explanation in one["explanations"])
        yield "</div>"


def _drawn(explanation: dict[str, Any], titles: Titles) -> str:
    try:
        drawn = of_explanation(explanation, titles).svg()
        # On a narrow screen a drawing shrinks, as long as its texts can be read; then it scrolls.
        size = re.search(r'width="(\d+)', drawn)
        least = f' style="min-width: {int(size[1]) * 0.7:.0f}px"' if size else ""
        return f"<figure>{drawn.replace('<svg ', f'<svg{least} ', 1)}</figure>"
    except DiagramError as error:
        caption = (
            sentence(explanation, titles) if is_causal_chain(explanation) else f"{explanation['length']:,} messages"
        )
        return f"<p>{escape(printable(caption))} (not drawn: {escape(str(error))})</p>"


def _costs(figures: Mapping[str, Any]) -> Iterator[str]:
    stamp, delay, hops = figures["stamp"], figures["delay"], figures["hops"]
    yield "<h2>What did order cost?</h2>"
    cards = [
        ("stamp bytes per copy", _number(stamp["bytes_mean"]), _most("at most", stamp["bytes_max"])),
        ("held back", _share(figures["held"]), _most("of", figures["arrivals"], " arrivals")),
        ("mean delay", _seconds(delay["mean"]), f"p50 {_seconds(delay['p50'])}, p99 {_seconds(delay['p99'])}"),
        ("packets per copy", _number(hops["mean"]), _most("hops, at most", hops["max"])),
        ("of pairs are concurrent", _share(figures["concurrency"]), "causal order does not order these"),
    ]
    yield '<div class="cards">'
    for name, value, more in cards:
        known = value is not None
        yield (
            f'<div class="card"><b>{value if known else "–"}</b><span>{name}<br>'
            f"{more if known else 'not recorded'}</span></div>"
        )
    yield "</div>"
    if delay["negative"]:
        yield f"<p>{delay['negative']:,} deliveries come before their send by the clocks: the clocks disagree.</p>"


def _traffic(figures: Mapping[str, Any]) -> Iterator[str]:
    rows = figures["traffic"]
    if not rows:
        return
    yield "<h2>Traffic between processes</h2>"
    others = len({name for row in rows for name in (row["from"], row["to"])}) - limits.report_processes_max
    least = f" The {others:,} processes with the least traffic are together in the last row and column."
    more = least if others > 0 else ""
    description = "Copies of messages from each process (rows) to each (columns): the stronger the colour, the more."
    yield f"<p>{description}{more}</p>"
    yield f"<figure>{heat_map(rows)}</figure>"
    busiest = sorted(rows, key=lambda row: (-row["messages"], row["from"], row["to"]))[:_busiest]
    head = '<tr><th>from</th><th>to</th><th class="n">copies</th><th class="n">bytes</th></tr>'
    lines = [
        f'<tr><td>{text(row["from"])}</td><td>{text(row["to"])}</td><td class="n">{row["messages"]:,}</td>'
        f'<td class="n">{"–" if row["bytes"] is None else format(row["bytes"], ",")}</td></tr>'
        for row in busiest
    ]
    yield f"<table>{head}{''.join(lines)}</table>"


def _rates(figures: Mapping[str, Any], by_second: Sequence[Sequence[int]]) -> Iterator[str]:
    rates = figures["rates"]
    if rates is None:
        return
    yield "<h2>Messages per second</h2>"
    mean = "" if rates["mean"] is None else f"{rates['mean']:,.1f} messages/s over {_seconds(rates['seconds'])}; "
    yield f"<p>{mean}{rates['peak']:,} in the busiest second.</p>"
    chart = per_second({one[0]: one[1] for one in by_second})
    if chart:
        yield f"<figure>{chart}</figure>"
    busiest = sorted(rates["processes"], key=lambda one: (-one["messages"], one["process"]))[:_busiest]
    rows = [(one["process"], one["messages"]) for one in busiest]
    yield f"<figure>{bars(rows, 'Messages sent by process')}<figcaption>Messages sent</figcaption></figure>"


def _method(report: Mapping[str, Any]) -> Iterator[str]:
    found = report["verify"]
    yield "<h2>Method and limits</h2>"
    yield (
        f"<p>Judged by Antecede {escape(found['version'])}, engine {escape(found['engine'])}, from the recorded events "
        "alone: no clock decides about order. Happened-before leads from a send to its deliveries and along each "
        "process. A delivery is late if a message that follows from it was delivered there before.</p>"
    )
    if found["complete"]:
        yield "<p>All rows of the trace were used.</p>"
    else:
        rows = "".join(
            f'<tr><td>{escape(reason)}</td><td class="n">{count:,}</td></tr>'
            for reason, count in found["quarantined"].items()
        )
        yield (
            "<p>Some rows are certainly wrong and were set aside. Every violation on this page is real, but there may "
            f"be more.</p><table><tr><th>reason</th><th>rows</th></tr>{rows}</table>"
        )
    sample = report["measure"]["concurrency_messages"]
    yield (
        "<p>Delays compare the clocks of two processes, which may disagree; they are not corrected. Concurrency is "
        f"computed from {sample:,} messages. A figure that the trace does not record is “–”, never 0. The numbers of "
        f"this page are in <code>{text(report['json'], 60)}</code> in the same folder.</p>"
    )


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def _share(value: float | None) -> str | None:
    return None if value is None else f"{value:.1%}"


def _most(description: str, value: int | None, unit: str = "") -> str:
    return "" if value is None else f"{description} {value:,}{unit}"


def _seconds(value: float | None) -> str | None:
    if value is None:
        return None
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(value) >= size:
            return f"{value / size:,.3g} {unit}"
    return f"{value * 1e9:,.3g} ns"


_busiest = 12

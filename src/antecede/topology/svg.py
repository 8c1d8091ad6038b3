"""A topology as a picture in SVG. A domain is a box. A *pill* is a small rounded box for a server. A server has a pill
in each of its domains.

The central domain is on top. A router belongs to several boxes. The router's *upper box* is the one that is nearest to
the central domain. The router's other boxes, its *lower boxes*, are drawn below the upper box. The router has one pill
in the lowest row of the upper box, and one pill on the upper edge of each lower box. Lines connect these pills. The
pills of routers are dark.

The layout is a tidy tree. Each box reserves the width of everything below it, so nothing can overlap. One pass upwards
computes the widths, and one pass downwards computes the positions. If a router has many boxes that have nothing below
them, these boxes are in several rows. The line to a box that is not in the first row passes to the left of the boxes
above it.

The document needs no other files, adapts to dark and light pages, and describes in words what it shows.
"""

from collections.abc import Iterator
from html import escape
from math import ceil, sqrt

import msgspec

from antecede import limits
from antecede.errors import TopologyError
from antecede.topology.file import TopologyFile
from antecede.topology.graph import Topology


class Branch(msgspec.Struct):
    """A domain, the router through which it is reached, and the branches below it."""

    domain: str
    via: str = ""
    below: list["Branch"] = []


def branches(topology: Topology) -> list[Branch]:
    """Return each connected part of a topology as a tree below its central domain."""
    roots: list[Branch] = []
    entered: set[str] = set()
    for name in topology.domains:
        if name not in entered:
            root = Branch(_centre(topology, name))
            part = {root.domain: root}
            for domain, before, server in topology.walk(root.domain):
                part[domain] = Branch(domain, server)
                part[before].below.append(part[domain])
            entered.update(part)
            roots.append(root)
    return roots


def _centre(topology: Topology, start: str) -> str:
    """Return the domain in the middle of a longest route, in the connected part that contains the domain ``start``."""
    far = _ways(topology, start)[1]
    before, end = _ways(topology, far)
    way = [end]
    while way[-1] != far:
        way.append(before[way[-1]])
    return way[len(way) // 2]


def _ways(topology: Topology, start: str) -> tuple[dict[str, str], str]:
    """Return two values: for each domain, the previous domain on the route from ``start``; and a domain that is
    farthest from ``start``."""
    before = {start: start} | {domain: previous for domain, previous, _ in topology.walk(start)}
    return before, next(reversed(before))


def outline(file: TopologyFile, *, unicode: bool = True) -> str:
    """Return a topology as an outline in text: the central domain first, the others below the router that leads there.

    ::

        A  pruned  s1* s2 s3*
        ├─ s1: E  pruned  s1* s4*
        │      └─ s4: B  pruned  s4* s5
        └─ s3: D  pruned  s3* s6*
               └─ s6: C  pruned  s6* s7 s8

    A star marks a router. The central domain is the middle of a longest route, so the outline has as few levels as
    possible. Every domain appears once; if the topology is not a forest, the edges that close a cycle are left out.
    """
    lines: list[str] = []
    strokes = ("├─ ", "└─ ", "│  ") if unicode else ("|- ", "`- ", "|  ")
    topology = file.organisation
    orders = {domain.name: domain.order for domain in file.domains}

    def described(name: str) -> str:
        members = (f"{server}*" if topology.is_router(server) else server for server in topology.domains[name].servers)
        return f"{name}  {orders[name]}  {' '.join(members)}"

    # An explicit stack: a daisy of thousands of domains is too deep for recursion in Python.
    for root in branches(topology):
        waiting = [(root, "", "")]
        while waiting:
            branch, first, rest = waiting.pop()
            lines.append(first + described(branch.domain))
            for place, child in enumerate(reversed(branch.below)):
                lead = f"{child.via}: "
                stroke, onward = (strokes[1], "   ") if place == 0 else (strokes[0], strokes[2])
                waiting.append((child, f"{rest}{stroke}{lead}", f"{rest}{onward}{' ' * len(lead)}"))
    isolated = [server for server in topology.servers if not topology.domains_of(server)]
    if isolated:
        lines.append(f"in no domain: {' '.join(isolated)}")
    return "\n".join(lines) + "\n"


_pill_height = 24.0
_gap = 8.0
_pad = 12.0
_head = 26.0
"""The height of a box's title, if no pill is on the upper edge of the box."""
_head_below = 38.0
"""The height of a box's title, if the pill of a router is on the upper edge of the box."""
_drop = 44.0
"""The distance from a box to the boxes below it."""
_apart = 22.0
"""The distance between boxes side by side."""
_side_by_side = 8
"""The largest number of leaf boxes (boxes with no boxes below them) in a single row below a router. If a router has
more leaf boxes, they are drawn in several rows. The limit applies if no other router of the domain has boxes below
it."""
_side_by_side_each = 3
"""The limit that is used instead of ``_side_by_side`` if several routers of a domain have boxes below them. It is the
limit for each of these routers."""
_edge = 20.0
_titled = 16.0
"""The height of the title of a drawing."""
_letter = 7.4

_style = """
.antecede { font: 12px system-ui, sans-serif; }
.antecede .page { fill: #ffffff; }
.antecede text { fill: #24292f; }
.antecede .domain { stroke-width: 1.4; }
.antecede .name { font-weight: 600; font-size: 13px; }
.antecede .order { fill: #57606a; font-size: 11px; }
.antecede .server { fill: #ffffff; stroke: #8c959f; stroke-width: 1.2; }
.antecede .router { fill: #24292f; stroke: #24292f; }
.antecede .pill { text-anchor: middle; }
.antecede .pill.of-router { fill: #ffffff; font-weight: 600; }
.antecede .link { stroke: #24292f; stroke-width: 2; fill: none; }
.antecede .h0 { fill: #ddf4ff; stroke: #54aeff; }
.antecede .h1 { fill: #dafbe1; stroke: #4ac26b; }
.antecede .h2 { fill: #fff8c5; stroke: #d4a72c; }
.antecede .h3 { fill: #fbefff; stroke: #c297ff; }
.antecede .h4 { fill: #ffeff7; stroke: #ff80c8; }
.antecede .h5 { fill: #fff1e5; stroke: #fb8f44; }
@media (prefers-color-scheme: dark) {
.antecede .page { fill: #0d1117; }
.antecede text { fill: #e6edf3; }
.antecede .order { fill: #9198a1; }
.antecede .server { fill: #0d1117; stroke: #6e7681; }
.antecede .router { fill: #e6edf3; stroke: #e6edf3; }
.antecede .pill.of-router { fill: #0d1117; }
.antecede .link { stroke: #e6edf3; }
.antecede .h0 { fill: #0c2d6b; stroke: #388bfd; }
.antecede .h1 { fill: #033a16; stroke: #2ea043; }
.antecede .h2 { fill: #4b2900; stroke: #bb8009; }
.antecede .h3 { fill: #3c1e70; stroke: #a371f7; }
.antecede .h4 { fill: #5e103e; stroke: #db61a2; }
.antecede .h5 { fill: #5a1e02; stroke: #db6d28; }
}
"""
_hues = 6


class _Box(msgspec.Struct, eq=False):
    """The box of a domain, with its size and its position in the drawing."""

    branch: Branch
    plain: list[str]
    """The servers of this domain that are not routers to the box above or to a box below."""
    groups: list[tuple[str, list["_Box"]]]
    """Routers, each with the boxes below it."""
    pill: float
    """The width of each pill in this box."""
    head: float = _head
    """The height of the title of this box."""
    columns: int = 1
    own: float = 0.0
    """The width that the title and the pills of this box need."""
    width: float = 0.0
    """The width of the box together with everything below it."""
    height: float = 0.0
    left: float = 0.0
    right: float = 0.0
    top: float = 0.0
    passage: float | None = None
    """For a box in a lower row: the x-coordinate at which the line to this box passes the rows above it. None for a box
    in the first row."""
    hue: int = 0

    def measure(self, order: str) -> None:
        title = 2 * _pad + _letter * (len(self.branch.domain) + 2 + 0.85 * len(order))
        below = _spread([self._group_width(group) for _, group in self.groups])
        wide = int((below + _gap) // (self.pill + _gap)) if below else 0
        self.columns = max(1, min(len(self.plain), max(ceil(sqrt(1.8 * len(self.plain))), wide)))
        rows = ceil(len(self.plain) / self.columns) if self.plain else 0
        self.own = max(title, 2 * _pad + self.columns * (self.pill + _gap) - _gap)
        self.width = max(self.own, below)
        rows += bool(self.groups)
        self.height = self.head + rows * (_pill_height + _gap) + (_pad - _gap if rows else 0.0)

    def _group_width(self, group: list["_Box"]) -> float:
        return max(_spread(self._top_row(group)), self.pill)

    def _columns(self, group: list["_Box"]) -> int:
        """Return the number of columns in which the leaf boxes of a group are drawn. A leaf box has no boxes below it.
        ``group``: the boxes below one router of this box; it begins with the leaf boxes."""
        ending = sum(not child.groups for child in group)
        most = _side_by_side if len(self.groups) == 1 else _side_by_side_each
        return ending if ending <= most else round(sqrt(1.5 * ending))

    def _top_row(self, group: list["_Box"]) -> list[float]:
        """Return the widths in the first row of a group: first the width of each column of leaf boxes (see
        ``_columns``), then the width of each other box."""
        ending = [child.width for child in group if not child.groups]
        columns = self._columns(group)
        column_widths = [max(ending[column::columns]) for column in range(columns)]
        return column_widths + [child.width for child in group if child.groups]

    def place(self, left: float, top: float) -> None:
        """Give every box its place, from the top down."""
        waiting = [(self, left, top)]
        while waiting:
            box, left, top = waiting.pop()
            box.top = top
            middle = left + box.width / 2
            centres = []
            below = _spread([box._group_width(group) for _, group in box.groups])
            x = middle - below / 2
            for _, group in box.groups:
                wide, columns, widths = box._group_width(group), box._columns(group), box._top_row(group)
                centres.append(x + wide / 2)
                tall = max(child.height for child in group)
                start = x + (wide - _spread(widths)) / 2
                ending = sum(not child.groups for child in group)
                for place, child in enumerate(group):
                    row, column = divmod(place, columns) if place < ending else (0, columns + place - ending)
                    left = start + _spread(widths[:column]) + (_apart if column else 0.0)
                    child.passage = left - _apart / 2 if row else None
                    indent = (widths[column] - child.width) / 2
                    waiting.append((child, left + indent, top + box.height + _drop + row * (tall + _drop)))
                x += wide + _apart
            # The frame extends over its routers, not over everything below them.
            reach = max((abs(centre - middle) for centre in centres), default=0.0) + box.pill / 2 + _pad
            half = max(box.own / 2, reach if centres else 0.0)
            box.left, box.right = middle - half, middle + half

    def _routers(self) -> Iterator[tuple[str, float, list["_Box"]]]:
        """Yield three values for each router that has boxes below it: the router's name, the middle of the first row
        of these boxes, and the boxes."""
        for name, group in self.groups:
            row = [child for child in group if child.passage is None]
            yield name, (row[0].left + row[0].right + row[-1].left + row[-1].right) / 4, group

    def frame(self, order: str) -> Iterator[str]:
        name = self.branch.domain
        yield (
            f'<rect class="domain h{self.hue}" x="{self.left:.1f}" y="{self.top:.1f}" rx="12" '
            f'width="{self.right - self.left:.1f}" height="{self.height:.1f}"/>'
        )
        yield (
            f'<text x="{self.left + _pad:.1f}" y="{self.top + self.head - 9:.1f}">'
            f'<tspan class="name">{escape(name)}</tspan>'
            f'<tspan class="order" dx="6">{escape(order)}</tspan></text>'
        )

    def links(self) -> Iterator[str]:
        bottom = self.top + self.height
        for _, x, group in self._routers():
            y = bottom - _pad - _pill_height / 2
            for child in group:
                to = (child.left + child.right) / 2
                bend = bottom + _drop / 2
                way = f"M{x:.1f} {y:.1f}"
                if child.passage is not None:
                    # Down to the row of this box first, beside the boxes above it.
                    way += (
                        f"C{x:.1f} {bend:.1f} {child.passage:.1f} {bend:.1f} {child.passage:.1f} {bottom + _drop:.1f}"
                    )
                    way += f"V{child.top - _drop:.1f}"
                    x_from, bend = child.passage, child.top - _drop / 2
                else:
                    x_from = x
                way += f"C{x_from:.1f} {bend:.1f} {to:.1f} {bend:.1f} {to:.1f} {child.top:.1f}"
                yield f'<path class="link" d="{way}"/>'

    def pills(self) -> Iterator[str]:
        middle = (self.left + self.right) / 2
        for place, name in enumerate(self.plain):
            row, column = divmod(place, self.columns)
            count = min(self.columns, len(self.plain) - row * self.columns)
            x = middle + (column - (count - 1) / 2) * (self.pill + _gap)
            yield from _pill(
                name, x, self.top + self.head + row * (_pill_height + _gap) + _pill_height / 2, self.pill, False
            )
        for name, x, _ in self._routers():
            yield from _pill(name, x, self.top + self.height - _pad - _pill_height / 2, self.pill, True)
        if self.branch.via:
            yield from _pill(self.branch.via, middle, self.top, self.pill, True)


def draw(file: TopologyFile, title: str = "") -> str:
    """Return the whole SVG document. If ``title`` is not empty, it is written above the boxes."""
    if len(file.servers) > limits.topology_drawn_servers_max:
        raise TopologyError(
            f"{file.name}: {len(file.servers)} servers: a drawing shows at most {limits.topology_drawn_servers_max}"
        )
    orders = {domain.name: domain.order for domain in file.domains}
    x, y = _edge, _edge + (_titled if title else 0.0)
    boxes: list[_Box] = []
    for root in branches(file.organisation):
        upwards = _measured(file, root, orders)
        upwards[-1].place(x, y)
        boxes += upwards[::-1]
        x += upwards[-1].width + _apart
    for place, box in enumerate(sorted(boxes, key=lambda box: list(orders).index(box.branch.domain))):
        box.hue = place % _hues
    width = max(x - _apart + _edge, 2 * _edge)
    height = max((box.top + box.height for box in boxes), default=0.0) + _edge
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="antecede" role="img" width="{width:.0f}" '
        f'height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">',
        f"<title>{len(file.servers)} servers in {len(file.domains)} domains</title>",
        f"<desc>{escape(outline(file, unicode=False))}</desc>",
        f"<style>{_style}</style>",
        f'<rect class="page" width="{width:.0f}" height="{height:.0f}"/>',
    ]
    if title:
        parts.append(f'<text class="name" x="{_edge:.0f}" y="{_edge + 4:.0f}">{escape(title)}</text>')
    for box in boxes:
        parts += box.frame(orders[box.branch.domain])
    for box in boxes:
        parts += box.links()
    for box in boxes:
        parts += box.pills()
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _measured(file: TopologyFile, root: Branch, orders: dict[str, str]) -> list["_Box"]:
    """Return the boxes of one tree, with their sizes. Each box comes after all boxes below it."""
    sequence = [root]
    for branch in sequence:
        sequence += branch.below
    boxes: dict[str, _Box] = {}
    for branch in reversed(sequence):
        groups: dict[str, list[_Box]] = {}
        for child in branch.below:
            groups.setdefault(child.via, []).append(boxes[child.domain])
        for group in groups.values():
            group.sort(key=lambda one: bool(one.groups))
        members = [name for name in file.organisation.domains[branch.domain].servers if name != branch.via]
        plain = [name for name in members if name not in groups]
        pill = max(34.0, 16 + _letter * max((len(name) for name in [*members, branch.via]), default=0))
        head = _head_below if branch.via else _head
        box = boxes[branch.domain] = _Box(branch, plain, list(groups.items()), pill, head)
        box.measure(orders[branch.domain])
    return list(boxes.values())


def _spread(widths: list[float]) -> float:
    return sum(widths) + _apart * max(len(widths) - 1, 0)


def _pill(name: str, x: float, y: float, width: float, router: bool) -> Iterator[str]:
    kind = " router" if router else ""
    yield (
        f'<rect class="server{kind}" x="{x - width / 2:.1f}" y="{y - _pill_height / 2:.1f}" width="{width:.1f}" '
        f'height="{_pill_height:.0f}" rx="{_pill_height / 2:.0f}"/>'
    )
    yield f'<text class="pill{" of-router" if router else ""}" x="{x:.1f}" y="{y + 4:.1f}">{escape(name)}</text>'

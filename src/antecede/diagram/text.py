"""A space-time diagram in characters: time runs downwards, one column per process.

The points are drawn from top to bottom in their sequence, in general one per row. (A point is an event, or several
adjacent events of a process.) A message is an arrow on the row of its *arrival*, drawn from its sender's line. If the
arrival is the next point after the send, the send is on the same row. Otherwise the send has a separate row. While a
process holds a message, the line of this process is drawn double. On a row where the process has a sign, for example
``●``, the sign is drawn instead of the double line. (In the example below, P3 holds the message z on three rows. P3 has
a sign on each of these rows, so no double line is visible.) ::

    P1       P2       P3
    ■ x      │        │    x to P3
    ■── y ──▶●        │    y to P2; delivered
    │        ■── z ──▶○    z to P3; held
    ├── x ───┼───────▶●    x delivered
    │        │        ●    z delivered

In the code, a row is a list of cells, and each cell has a style. Only `_finish` translates styles to colours.
"""

from textwrap import wrap

from rich.cells import cell_len, set_cell_size

from antecede.diagram.computation import Diagram, Flight, Point

_signs = {
    "line": ("│", "|"),
    "holding": ("║", "H"),
    "dash": ("─", "-"),
    "cross": ("┼", "|"),
    "cross holding": ("╫", "H"),
    "from right": ("├", "|"),
    "from left": ("┤", "|"),
    "right": ("▶", ">"),
    "left": ("◀", "<"),
    "send": ("■", "S"),
    "local": ("·", "."),
    "deliver": ("●", "*"),
    "late": ("◉", "!"),
    "hold": ("○", "o"),
    "repeat": ("×", "x"),
    "drop": ("×", "x"),
    "cut": ("…", "~"),
}
"""For each sign, its Unicode character and its ASCII character."""
_meanings = {
    "send": "sent",
    "hold": "arrived, held",
    "holding": "holding",
    "deliver": "delivered",
    "late": "delivered late",
    "repeat": "arrived again",
    "drop": "dropped as a repeat",
    "local": "local event",
}
_ansi = {
    "line": "2",
    "holding": "33",
    "send": "36",
    "arrow": "36",
    "label": "1",
    "name": "1",
    "deliver": "32",
    "hold": "33",
    "late": "1;31",
    "repeat": "35",
    "drop": "35",
    "local": "2",
    "note": "2",
}

_gap_min = 3
"""The smallest number of columns from one process's line to the next."""
_gap_max = 16
"""The smallest number of columns from one process's line to the next, if the rows are too wide for the terminal only
because of their notes. If the lines alone are too wide, ``_gap_min`` is the limit."""
_gap_wide = 34
"""The largest number of columns from one process's line to the next."""


class _Canvas:
    """The columns of the processes' lines, and the cells of the row that is being drawn."""

    def __init__(self, diagram: Diagram, width: int, unicode: bool) -> None:
        self.signs = {name: forms[0] if unicode else forms[1] for name, forms in _signs.items()}
        self.unicode = unicode
        self.diagram = diagram
        count = len(diagram.processes)
        labels = max((cell_len(self.say(point.label)) for point in diagram.points), default=0)
        names = max((cell_len(self.say(name)) for name in diagram.processes), default=0)
        notes = max((cell_len(self.say(note)) for note in map(self.note, diagram.points)), default=0) + 2
        notes = min(notes, width // 2)
        self.gap = max(8, min(_gap_wide, max(names + 2, labels + 7)))
        self._place(count, names, labels)
        while self.gap > _gap_max and self.right + notes > width:
            self.gap -= 1
            self._place(count, names, labels)
        self.notes = self.right + notes <= width
        if self.right > width:
            # Names no longer fit into the gaps, so the notes contain them.
            self.notes = True
            while self.gap > _gap_min and self.right + notes > width:
                self.gap -= 1
                self._place(count, names, labels)
        self.holding = [0] * count
        self.held = False
        """Whether at least one row has a double line. If no row has one, the legend does not explain double lines."""
        self.cells: list[tuple[str, str]] = []

    def _place(self, count: int, names: int, labels: int) -> None:
        """Compute the column of each process's line, and the right edge of the lines. ``count``: the number of
        processes. ``names``, ``labels``: the widths of the longest name and of the longest label, in columns."""
        names = min(names, self.gap - 1)
        self.columns = [names // 2 + lane * self.gap for lane in range(count)]
        self.right = (self.columns[-1] if count else 0) + max(min(labels + 3, self.gap), names - names // 2)

    def say(self, text: str) -> str:
        """Return the text. If the terminal cannot show Unicode, characters outside ASCII are escaped."""
        return text if self.unicode else text.encode("ascii", "backslashreplace").decode()

    def begin(self) -> None:
        """Start a new row with only the lines of the processes."""
        self.cells = [(" ", "")] * self.right
        for lane, column in enumerate(self.columns):
            style = "holding" if self.holding[lane] else "line"
            self.cells[column] = (self.signs[style], style)

    def put(self, column: int, text: str, style: str) -> None:
        """Write a text into the row, beginning at ``column``. A wide character takes two cells."""
        for character in text:
            size = cell_len(character)
            if not 0 <= column <= self.right - size or size == 0:
                continue
            self.cells[column] = (character, style)
            for follower in range(column + 1, column + size):
                self.cells[follower] = ("", "")
            column += size

    def fit(self, text: str, size: int) -> str:
        """Return the text. If it needs more than ``size`` columns, shorten it. If only one or two characters would
        remain, return an empty text."""
        text = self.say(text)
        if cell_len(text) <= size:
            return text
        # One or two letters of a longer name are useless.
        return set_cell_size(text, size - 1) + self.signs["cut"] if size > 3 else ""

    def mark(self, point: Point) -> None:
        kind = "late" if point.late else point.kind
        self.put(self.columns[point.lane], self.signs[kind], kind)

    def beside(self, point: Point, shift: int = 2) -> None:
        """Write the label of a point to the right of the point, at a distance of ``shift`` columns."""
        room = self.gap - shift - 1 if point.lane + 1 < len(self.columns) else self.right - self.columns[-1] - shift
        style = "late" if point.late else "label"
        self.put(self.columns[point.lane] + shift, self.fit(point.label, room), style)

    def arrow(self, flight: Flight, starts_here: bool) -> None:
        """Draw an arrow on this row, from the sender's line to the receiver's line. ``starts_here``: whether this row
        also shows the sign of the send."""
        assert flight.start is not None
        assert flight.end is not None
        source, target = flight.start.lane, flight.lane
        style = "late" if flight.late and flight.delivery is flight.end else "arrow"
        begin, end = self.columns[source], self.columns[target]
        forward = 1 if end > begin else -1
        for column in range(begin + forward, end, forward):
            self.cells[column] = (self.signs["dash"], style)
        for lane in range(min(source, target) + 1, max(source, target)):
            self.put(self.columns[lane], self.signs["cross holding" if self.holding[lane] else "cross"], style)
            self.held |= self.holding[lane] > 0
        self.put(begin, self.signs["from right" if forward > 0 else "from left"], style)
        self.put(end - forward, self.signs["right" if forward > 0 else "left"], style)
        label = self.fit(flight.label, self.gap - 6)
        if label:
            # In the gap next to the sender, before any other line is crossed.
            size = cell_len(label)
            middle = begin + forward * (self.gap // 2) - size // 2
            self.put(middle - 1, f" {label} ", "late" if style == "late" else "label")
        if starts_here:
            self.mark(flight.start)
        self.mark(flight.end)

    def note(self, point: Point) -> str:
        """Return the text at the end of a point's row: the message and what happened to it."""
        name = point.label
        if point.kind == "send":
            targets = self.diagram.targets(point)
            if not targets:
                return name
            return f"{name} to {', '.join(targets)}" if len(targets) <= 3 else f"{name} to {len(targets)} processes"
        if point.kind == "deliver":
            return f"{name} delivered late" if point.late else f"{name} delivered"
        state = {"hold": " held", "repeat": " again", "drop": " dropped"}.get(point.kind, "")
        return f"{name}{state}"

    def names(self, colour: bool) -> str:
        self.cells = [(" ", "")] * self.right
        for lane, column in enumerate(self.columns):
            name = self.say(self.diagram.processes[lane])
            room = self.gap - 1
            name = self.fit(name, room) or set_cell_size(name, min(room, cell_len(name)))
            self.put(max(column - cell_len(name) // 2, 0), name, "name")
        return self.finish("", "", colour, 0)

    def legend(self, colour: bool, width: int) -> list[str]:
        kinds = {"late" if point.late else point.kind for point in self.diagram.points}
        if self.held:
            kinds.add("holding")
        lines: list[str] = []
        reach = width
        for kind, meaning in _meanings.items():
            if kind not in kinds:
                continue
            entry = f"{_paint(self.signs[kind], kind, colour)} {meaning}"
            # The sign takes one column, with a space after it.
            size = 2 + len(meaning)
            if reach + 2 + size > width:
                lines.append(entry)
                reach = size
            else:
                lines[-1] += f"  {entry}"
                reach += 2 + size
        return lines

    def finish(self, note: str, style: str, colour: bool, width: int) -> str:
        """Return the current row and its note as text. Adjacent cells with the same style share one ANSI colour
        sequence."""
        out: list[str] = []
        run, current = "", ""
        for character, kind in [*self.cells, ("", "end")]:
            if (kind != current and character) or kind == "end":
                out.append(_paint(run, current, colour))
                run, current = "", kind
            run += character
        if note:
            note = self.fit(note, max(width - self.right - 2, 8))
            out.append("  " + _paint(note, style, colour))
        return "".join(out)


def draw(diagram: Diagram, width: int, *, unicode: bool, colour: bool) -> str:
    """Return the diagram as text: the title, the names of the processes, the rows, and a legend."""
    canvas = _Canvas(diagram, width, unicode)
    flights = {id(flight.end): flight for flight in diagram.flights if flight.end is not None}
    held = {id(flight.delivery) for flight in diagram.flights if flight.delivery is not flight.end}
    lines = wrap(canvas.say(diagram.title), width) if diagram.title else []
    lines.append(canvas.names(colour))
    points = diagram.points
    position = 0
    while position < len(points):
        point = points[position]
        position += 1
        canvas.begin()
        note = canvas.note(point)
        following = flights.get(id(points[position])) if position < len(points) else None
        if point.kind == "send" and following is not None and following.start is point and following.lane != point.lane:
            position += 1
            arrived = points[position - 1]
            canvas.arrow(following, starts_here=True)
            note += "; " + canvas.note(arrived).removeprefix(arrived.label).strip()
            point = arrived
        else:
            flight = flights.get(id(point))
            canvas.mark(point)
            if flight is None or flight.start is None:
                canvas.beside(point)
            elif flight.start.lane == point.lane:
                canvas.put(canvas.columns[point.lane] + 1, canvas.signs["left"] + canvas.signs["dash"], "arrow")
                canvas.beside(point, 4)
            else:
                canvas.arrow(flight, starts_here=False)
        if point.kind == "hold":
            canvas.holding[point.lane] += 1
        elif id(point) in held:
            canvas.holding[point.lane] -= 1
        canvas.held |= any(style == "holding" for _, style in canvas.cells)
        lines.append(canvas.finish(note if canvas.notes else "", "late" if point.late else "note", colour, width))
    lines += canvas.legend(colour, width)
    return "\n".join(line.rstrip() for line in lines if line.strip()) + "\n"


def _paint(text: str, style: str, colour: bool) -> str:
    code = _ansi.get(style)
    return f"\x1b[{code}m{text}\x1b[0m" if colour and code and text else text

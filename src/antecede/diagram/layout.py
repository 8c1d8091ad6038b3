"""The positions of points and labels on paper, chosen so that a drawing is readable.

Time runs from left to right, and each process has a horizontal line, its *lane*. Points are placed one after another,
each as far left as possible: to the right of the previous point on its lane and of its send, not much further left than
earlier events elsewhere, and not near an arrow that passes by. So independent events share a column, and a run of many
processes stays short.

Labels are placed last: from several places along its arrow, each gets the one that covers least.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import pairwise

import msgspec

from antecede.diagram.computation import Diagram, Flight, Point

LANE = 62.0
"""The distance from one lane to the next."""
STEP = 34.0
"""The least distance from one point to the next on a lane."""
CLEAR = 11.0
"""The distance between a point and an arrow that passes by."""
LETTER = 7.6
"""The width of a letter at 12 pixels, a little more than for most letters."""
ARC = 26.0
"""How far the arrow of a self-send rises above its lane."""


class Box(msgspec.Struct):
    """A rectangle that a label covers."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: "Box") -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


class Segment(msgspec.Struct):
    """A straight piece of an arrow."""

    x1: float
    y1: float
    x2: float
    y2: float

    def at(self, share: float) -> tuple[float, float]:
        return self.x1 + share * (self.x2 - self.x1), self.y1 + share * (self.y2 - self.y1)

    def meets(self, box: Box) -> bool:
        """Whether the segment passes through the box (Liang and Barsky's clipping)."""
        enter, leave = 0.0, 1.0
        dx, dy = self.x2 - self.x1, self.y2 - self.y1
        for delta, low, high in (
            (dx, box.left - self.x1, box.right - self.x1),
            (dy, box.top - self.y1, box.bottom - self.y1),
        ):
            if delta == 0:
                if low > 0 or high < 0:
                    return False
                continue
            first, second = sorted((low / delta, high / delta))
            enter, leave = max(enter, first), min(leave, second)
        return enter < leave


class Layout:
    """Coordinates for everything in a diagram."""

    def __init__(self, diagram: Diagram, left: float, top: float) -> None:
        self.top = top
        lanes = len(diagram.processes)
        self._dots: list[list[float]] = [[] for _ in range(lanes)]
        self._passing: list[list[float]] = [[] for _ in range(lanes)]
        self._x: dict[int, float] = {}
        ends = {id(flight.end): flight for flight in diagram.flights}
        reach = [left] * lanes
        frontier = left
        for point in diagram.points:
            flight = ends.get(id(point))
            width = (
                max(STEP, LETTER * len(shorten(point.label)) + 14) if flight is None and point.kind != "send" else STEP
            )
            x = max(reach[point.lane] + width, frontier - 1.5 * STEP)
            x = self._settle(point, flight, x)
            self._x[id(point)] = x
            insort(self._dots[point.lane], x)
            for lane, crossing in self._crossings(flight, x):
                insort(self._passing[lane], crossing)
            reach[point.lane] = x + (width - STEP) / 2
            frontier = max(frontier, x)
        self.right = frontier + STEP

    def x(self, point: Point) -> float:
        return self._x[id(point)]

    def y(self, lane: int) -> float:
        return self.top + lane * LANE

    def segment(self, flight: Flight) -> Segment | None:
        """The straight line of an arrow from lane to lane; a stub if it never arrives."""
        if flight.start is None or flight.start.lane == flight.lane:
            return None
        x, y = self.x(flight.start), self.y(flight.start.lane)
        if flight.end is not None:
            return Segment(x, y, self.x(flight.end), self.y(flight.lane))
        # Towards the receiver, but not as far as its line.
        direction = 1 if flight.lane > flight.start.lane else -1
        return Segment(x, y, x + 22, y + direction * LANE * 0.55)

    def arc(self, flight: Flight) -> list[Segment]:
        """Return the arrow of a self-send as short straight pieces, precise enough to place labels beside it."""
        if flight.start is None or flight.end is None or flight.start.lane != flight.lane:
            return []
        begin, end, y = self.x(flight.start), self.x(flight.end), self.y(flight.lane)
        places = [(begin, y)]
        places += [
            (begin + (end - begin) * share, y - 4 * ARC * share * (1 - share)) for share in (0.15, 0.35, 0.65, 0.85)
        ]
        places.append((end, y))
        return [Segment(*first, *second) for first, second in pairwise(places)]

    def _settle(self, point: Point, flight: Flight | None, x: float) -> float:
        if flight is not None and flight.start is not None:
            spanned = abs(flight.lane - flight.start.lane)
            x = max(x, self.x(flight.start) + (26 + 15 * spanned if spanned else 1.5 * STEP))
        for _ in range(80):
            if not _near(self._passing[point.lane], x) and not any(
                _near(self._dots[lane], crossing) for lane, crossing in self._crossings(flight, x)
            ):
                break
            x += 6
        return x

    def _crossings(self, flight: Flight | None, x: float) -> Iterator[tuple[int, float]]:
        """Return the places where an arrow that ends at ``x`` crosses the lanes between its two."""
        if flight is None or flight.start is None:
            return
        begin, end = flight.start.lane, flight.lane
        start = self.x(flight.start)
        for lane in range(min(begin, end) + 1, max(begin, end)):
            yield lane, start + (x - start) * (lane - begin) / (end - begin)


def _near(places: list[float], x: float) -> bool:
    position = bisect_left(places, x - CLEAR)
    return position < len(places) and places[position] < x + CLEAR


class Labels:
    """Finds places for labels, one after another."""

    _bucket = 120.0

    def __init__(self) -> None:
        self._things: dict[int, list[tuple[float, Box | Segment]]] = {}

    def avoid(self, thing: Box | Segment, cost: float) -> None:
        """Set the cost of covering this thing."""
        left, right = (thing.left, thing.right) if isinstance(thing, Box) else (thing.x1, thing.x2)
        for bucket in range(int(min(left, right) // self._bucket), int(max(left, right) // self._bucket) + 1):
            self._things.setdefault(bucket, []).append((cost, thing))

    def place(self, text: str, places: list[tuple[float, float]], own: Segment | None = None) -> tuple[float, float]:
        """Return the best of some places for the middle of a label; of equal ones, the first."""
        best, least = places[0], float("inf")
        for rank, (x, y) in enumerate(places):
            cost = rank * 0.03 + self._covered(label_box(text, x, y), own)
            if cost < least:
                best, least = (x, y), cost
        self.avoid(label_box(text, *best), 4.0)
        return best

    def _covered(self, box: Box, own: Segment | None) -> float:
        total = 0.0
        seen: set[int] = set()
        for bucket in range(int(box.left // self._bucket), int(box.right // self._bucket) + 1):
            for cost, thing in self._things.get(bucket, ()):
                if thing is own or id(thing) in seen:
                    continue
                if thing.overlaps(box) if isinstance(thing, Box) else thing.meets(box):
                    seen.add(id(thing))
                    total += cost
        return total


def shorten(text: str, length: int = 16) -> str:
    """Shorten a label to leave space for others; ids in recorded traces can be long."""
    return text if len(text) <= length else text[: length - 1] + "…"


def label_box(text: str, x: float, y: float) -> Box:
    """Return the area that a label covers, given its middle."""
    half = LETTER * len(text) / 2 + 3
    return Box(x - half, y - 8, x + half, y + 8)

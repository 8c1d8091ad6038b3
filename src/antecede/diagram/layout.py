"""The positions of points and labels on paper, chosen so that a drawing is readable.

Time runs from left to right, and each process has a horizontal line, its *lane*. Points are placed one after another,
each as far left as possible. A point is to the right of the previous point on its lane. The arrival of a message is to
the right of its send. If a point on another lane was placed earlier, the new point may be to the left of that point,
but only by a small distance. A point is not near an arrow that passes by. With these rules, independent events can
share a column, and the drawing of a run with many processes stays short.

A drawing can be stretched to a given width, so that several drawings below each other are equally wide.

Labels are placed last. The label of a message lies along its arrow, so that a reader sees to which arrow the label
belongs, even where many arrows cross. Several places on both sides of the arrow are tried. The label gets the place
where it covers the fewest other things.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import pairwise
from math import atan2, cos, degrees, hypot, radians, sin, sqrt

import msgspec

from antecede.diagram.computation import Diagram, Flight, Point
from antecede.trace.titles import short_id

LANE = 62.0
"""The distance between the lines of two adjacent processes, in pixels."""
STEP = 34.0
"""The least distance between two adjacent points on the line of one process."""
CLEAR = 11.0
"""The least distance between a point and an arrow that passes by."""
LETTER = 7.6
"""The assumed width of a character if the font size is 12 pixels. Most characters are a little narrower."""
STEEP = 0.6
"""The least ratio of an arrow's width to its height. The label of a steeper arrow would be hard to read."""
NAME_CHARS = 24
"""The largest number of characters of a process's name. A longer name is drawn in a shortened form."""
ARC = 26.0
"""The height of an arrow from a process to itself, above the line of the process."""


class Box(msgspec.Struct):
    """A rectangle that a text or a dot covers."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: "Box") -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


class Segment(msgspec.Struct):
    """A straight line, for example an arrow or a piece of a curved arrow."""

    x1: float
    y1: float
    x2: float
    y2: float

    def at(self, share: float) -> tuple[float, float]:
        return self.x1 + share * (self.x2 - self.x1), self.y1 + share * (self.y2 - self.y1)

    def meets(self, box: Box) -> bool:
        """Return whether the segment passes through the box (Liang–Barsky algorithm)."""
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
    """The coordinates of the points, lanes and arrows of a diagram."""

    def __init__(self, diagram: Diagram, left: float, top: float) -> None:
        self.top = top
        self.left = left
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
            x = max(reach[point.lane] + width, frontier - 2.5 * STEP)
            x = self._settle(point, flight, x)
            self._x[id(point)] = x
            insort(self._dots[point.lane], x)
            for lane, crossing in self._crossings(flight, x):
                insort(self._passing[lane], crossing)
            reach[point.lane] = x + (width - STEP) / 2
            frontier = max(frontier, x)
        self.right = frontier + STEP

    def stretch(self, right: float) -> None:
        """Stretch the drawing so that its right edge is at ``right``. A drawing that is already wider does
        not change."""
        if right <= self.right or not self._x:
            self.right = max(right, self.right)
            return
        reach = self.right - STEP - self.left
        scale = (right - STEP - self.left) / reach if reach > 0 else 1.0
        self._x = {point: self.left + (x - self.left) * scale for point, x in self._x.items()}
        self.right = right

    def x(self, point: Point) -> float:
        return self._x[id(point)]

    def y(self, lane: int) -> float:
        return self.top + lane * LANE

    def segment(self, flight: Flight) -> Segment | None:
        """Return the straight arrow of a message from one lane to another. If the message never arrives, return a short
        line towards its destination. Return None if the send is unknown, or if a process sent the message to itself."""
        if flight.start is None or flight.start.lane == flight.lane:
            return None
        x, y = self.x(flight.start), self.y(flight.start.lane)
        if flight.end is not None:
            return Segment(x, y, self.x(flight.end), self.y(flight.lane))
        # Towards the receiver, but not as far as its line.
        direction = 1 if flight.lane > flight.start.lane else -1
        return Segment(x, y, x + 22, y + direction * LANE * 0.55)

    def arc(self, flight: Flight) -> list[Segment]:
        """Return the curved arrow of a message from a process to itself, as short straight pieces that labels should
        not cover. Return an empty list for other messages."""
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
            height = abs(flight.lane - flight.start.lane) * LANE
            # Long enough for its label, with space at both ends.
            length = LETTER * len(shorten(flight.label)) + 36
            width = max(26.0, STEEP * height, sqrt(max(length * length - height * height, 0.0)))
            x = max(x, self.x(flight.start) + (width if height else max(1.5 * STEP, length)))
        for _ in range(80):
            if not _near(self._passing[point.lane], x) and not any(
                _near(self._dots[lane], crossing) for lane, crossing in self._crossings(flight, x)
            ):
                break
            x += 6
        return x

    def _crossings(self, flight: Flight | None, x: float) -> Iterator[tuple[int, float]]:
        """Yield the lanes that an arrow crosses between the sender's lane and the receiver's lane, each with the x
        coordinate of the crossing. ``x``: the x coordinate of the arrow's tip, at the receiver's lane."""
        if flight is None or flight.start is None:
            return
        begin, end = flight.start.lane, flight.lane
        start = self.x(flight.start)
        for lane in range(min(begin, end) + 1, max(begin, end)):
            yield lane, start + (x - start) * (lane - begin) / (end - begin)


def _near(places: list[float], x: float) -> bool:
    position = bisect_left(places, x - CLEAR)
    return position < len(places) and places[position] < x + CLEAR


class Place(msgspec.Struct):
    """A place for a label: the coordinates of the label's middle, and the label's angle in degrees."""

    x: float
    y: float
    angle: float = 0.0


class Labels:
    """Chooses a place for one label after another, so that each label covers as few other things as possible."""

    _bucket = 120.0

    def __init__(self) -> None:
        self._things: dict[int, list[tuple[float, Box | Segment]]] = {}

    def avoid(self, thing: Box | Segment, cost: float) -> None:
        """Add ``cost`` to the cost of each place where a later label would cover ``thing``."""
        left, right = (thing.left, thing.right) if isinstance(thing, Box) else (thing.x1, thing.x2)
        for bucket in range(int(min(left, right) // self._bucket), int(max(left, right) // self._bucket) + 1):
            self._things.setdefault(bucket, []).append((cost, thing))

    def place(self, text: str, places: list[Place], own: Segment | None = None) -> Place:
        """Return the place with the lowest cost for a label, and reserve this place. If several places have the same
        cost, return the first of them. ``own``: the arrow to which the label belongs; covering this arrow costs
        nothing."""
        best, least = places[0], float("inf")
        for rank, place in enumerate(places):
            cost = rank * 0.03 + self._covered(label_boxes(text, place), own)
            if cost < least:
                best, least = place, cost
        for box in label_boxes(text, best):
            self.avoid(box, 4.0)
        return best

    def _covered(self, boxes: list[Box], own: Segment | None) -> float:
        total = 0.0
        seen: set[int] = set()
        for box in boxes:
            for bucket in range(int(box.left // self._bucket), int(box.right // self._bucket) + 1):
                for cost, thing in self._things.get(bucket, ()):
                    if thing is own or id(thing) in seen:
                        continue
                    if thing.overlaps(box) if isinstance(thing, Box) else thing.meets(box):
                        seen.add(id(thing))
                        total += cost
        return total


def along(text: str, line: Segment) -> list[Place]:
    """Return the possible places for a label along an arrow, on both sides of the arrow. The best place comes first."""
    dx, dy = line.x2 - line.x1, line.y2 - line.y1
    length = hypot(dx, dy)
    angle = degrees(atan2(dy, dx))
    # Between the two ends, with some space for the dot and the head.
    half = (LETTER * len(text) / 2 + 6) / length
    low, high = half + 8 / length, 1 - half - 14 / length
    shares = [low + (high - low) * share for share in _shares] if low < high else [0.5]
    # The normal that points up.
    nx, ny = dy / length, -dx / length
    away = _beside
    if len(text) <= _level_chars:
        # A turned letter may look like another one.
        angle, away = 0.0, abs(nx) * (LETTER * len(text) / 2 + 3) + abs(ny) * 8 + 1
    places = []
    for share in shares:
        x, y = line.at(share)
        places += [Place(x + nx * side, y + ny * side, angle) for side in (away, -away)]
    return places


_shares = (0.5, 0.35, 0.65, 0.2, 0.8, 0.1, 0.9, 0.0, 1.0)
_level_chars = 2
"""A label with at most this number of characters stays horizontal, even next to a sloping arrow."""
_beside = 9.5
"""The distance between an arrow and the middle of its label."""


def shorten(text: str, length: int = 28) -> str:
    """Cut out the middle of a label that is longer than ``length`` characters. Ids in recorded traces can be long."""
    return short_id(text, length) if len(text) > length else text


def label_boxes(text: str, place: Place) -> list[Box]:
    """Return the rectangles that a label covers. A horizontal label covers one rectangle; a sloping label covers a row
    of small squares."""
    half = LETTER * len(text) / 2 + 3
    if abs(place.angle) < 1:
        return [Box(place.x - half, place.y - 8, place.x + half, place.y + 8)]
    count = max(1, round(2 * half / 9))
    dx, dy = cos(radians(place.angle)), sin(radians(place.angle))
    offsets = [((number + 0.5) / count - 0.5) * (2 * half - 6) for number in range(count)]
    middles = [(place.x + dx * offset, place.y + dy * offset) for offset in offsets]
    return [Box(x - 6.5, y - 6.5, x + 6.5, y + 6.5) for x, y in middles]

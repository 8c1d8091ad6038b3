"""Space-time diagrams: what they show, how they fit, and what they refuse."""

import random
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from rich.cells import cell_len

from antecede import limits
from antecede.diagram import Box, Diagram, Event, Layout, Place, from_events, label_boxes
from antecede.errors import DiagramError
from antecede.trace import Event as Row
from helpers.snapshots import Snapshots

P = ["P1", "P2", "P3"]


def send(process: str, message: str, *to: str) -> Event:
    return Event(process, "send", message, to)


def arrive(process: str, message: str) -> Event:
    return Event(process, "arrive", message)


def deliver(process: str, message: str) -> Event:
    return Event(process, "deliver", message)


def taken(process: str, message: str) -> list[Event]:
    return [arrive(process, message), deliver(process, message)]


def overtaking() -> list[Event]:
    """Garg fig. 12.1 up to the arrival of z at P3."""
    return [send("P1", "x", "P3"), send("P1", "y", "P2"), *taken("P2", "y"), send("P2", "z", "P3"), arrive("P3", "z")]


def under_causal() -> Diagram:
    return Diagram(P, [*overtaking(), *taken("P3", "x"), deliver("P3", "z")])


def under_none() -> Diagram:
    return Diagram(P, [*overtaking(), deliver("P3", "z"), *taken("P3", "x")], late={("x", "P3")}, title="none")


def random_run(processes: int, messages: int, seed: int) -> Diagram:
    """A run in which a share of the messages is held, and some are late."""
    dice = random.Random(seed)
    names = [f"P{number + 1}" for number in range(processes)]
    events: list[Event] = []
    flying: list[tuple[str, str]] = []
    held: list[tuple[str, str]] = []
    late = set()
    sent = 0
    while sent < messages or flying or held:
        if sent < messages and (not flying or dice.random() < 0.45):
            sent += 1
            source, target = dice.sample(names, 2)
            events.append(send(source, f"m{sent}", target))
            flying.append((target, f"m{sent}"))
        elif held and (not flying or dice.random() < 0.3):
            events.append(deliver(*held.pop(0)))
        else:
            copy = flying.pop(dice.randrange(len(flying)))
            if dice.random() < 0.15:
                events.append(arrive(*copy))
                held.append(copy)
            else:
                events.extend(taken(*copy))
                if dice.random() < 0.1:
                    late.add(copy[::-1])
    return Diagram(names, events, late=late)


# In the terminal.


def test_a_held_message_in_the_terminal() -> None:
    assert under_causal().text(80).splitlines() == [
        "P1      P2      P3",
        " ■ x     │       │     x to P3",
        " ■── y ─▶●       │     y to P2; delivered",
        " │       ■── z ─▶○     z to P3; held",
        " ├── x ──┼──────▶●     x delivered",
        " │       │       ● z   z delivered",
        "■ sent  ○ arrived, held  ● delivered",
    ]


def test_a_late_message_in_plain_ascii() -> None:
    text = under_none().text(80, unicode=False)
    assert text.isascii()
    assert text.splitlines() == [
        "none",
        "P1      P2      P3",
        " S x     |       |     x to P3",
        " S-- y ->*       |     y to P2; delivered",
        " |       S-- z ->*     z to P3; delivered",
        " |-- x --|------>!     x delivered late",
        "S sent  * delivered  ! delivered late",
    ]


def test_a_multicast_a_self_send_a_repeat_and_a_local_event() -> None:
    events = [
        send("B", "m", "A", "B", "C"),
        *taken("B", "m"),
        *taken("C", "m"),
        Event("C", "local", label="commit"),
        arrive("C", "m"),
        arrive("A", "m"),
        Event("C", "local", label="rest"),
        deliver("A", "m"),
        Event("B", "local", label="end"),
    ]
    assert Diagram(["A", "B", "C"], events).text(60).splitlines() == [
        "A            B            C",
        "│            ■ m          │          m to A, B, C",
        "│            ●◀─ m        │          m delivered",
        "│            ├──── m ────▶●          m delivered",
        "│            │            · commit   commit",
        "│            ├──── m ────▶×          m again",
        "○◀──── m ────┤            │          m held",
        "║            │            · rest     rest",
        "● m          │            │          m delivered",
        "│            · end        │          end",
        "■ sent  ○ arrived, held  ║ holding  ● delivered",
        "× arrived again  · local event",
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
def test_rows_keep_to_the_width(width: int) -> None:
    run = random_run(8, 40, 1)
    run.title = "a title that is longer than a narrow terminal is wide, so that it has to be wrapped"
    rows = run.text(width).splitlines()
    assert max(map(cell_len, rows)) <= width
    assert any("m40" in row for row in rows)


def test_long_and_wide_names_are_cut_and_lines_stay_straight() -> None:
    names = ["a-rather-long-service-name", "中文中文中文中文中文中文"]
    text = Diagram(names, [send(names[0], "信" * 40, names[1]), *taken(names[1], "信" * 40)]).text(60)
    rows = text.splitlines()
    assert max(map(cell_len, rows)) <= 60
    assert "…" in rows[0]


def test_colours_only_if_asked_for() -> None:
    plain, painted = under_none().text(80), under_none().text(80, colour=True)
    assert "\x1b" not in plain
    assert "\x1b[1;31m◉" in painted
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == plain


def test_nothing_from_outside_reaches_the_terminal_as_a_command() -> None:
    diagram = Diagram(["\x1b[31mP"], [Event("\x1b[31mP", "local", "a\nb\x07")], title="\x1b]0;x\x07")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", diagram.text(80))
    assert len(diagram.text(80).splitlines()) == 4


def test_a_run_of_nobody_and_a_run_of_nothing() -> None:
    assert Diagram([], []).text(80) == "\n"
    assert Diagram(["P1"], []).text(80) == "P1\n"
    for diagram in Diagram([], []), Diagram(["P1"], []):
        ElementTree.fromstring(diagram.svg())


# As SVG.


def marks(diagram: Diagram, name: str) -> list[ElementTree.Element]:
    """The elements of the drawing with that class, without the legend's."""
    root = ElementTree.fromstring(diagram.svg())
    return [element for element in root if element.get("class") == name]


def test_dots_and_waits() -> None:
    causal = under_causal()
    assert len(marks(causal, "send")) == 3
    assert len(marks(causal, "deliver")) == 3
    assert len(marks(causal, "arrow")) == 3
    (hold,), (wait,) = marks(causal, "hold"), marks(causal, "wait")
    assert (hold.get("cx"), hold.get("cy")) == (wait.get("x1"), wait.get("y1"))
    assert wait.get("x2") == marks(causal, "deliver")[-1].get("cx")
    assert not marks(causal, "deliver late")


def test_late_deliveries_stand_out_and_are_explained() -> None:
    none = under_none()
    assert len(marks(none, "deliver late")) == len(marks(none, "arrow late")) == len(marks(none, "head late")) == 1
    assert "delivered late</text>" in none.svg()
    assert "delivered late</text>" not in under_causal().svg()


def test_arrows_go_from_send_to_arrival_and_forwards() -> None:
    diagram = random_run(8, 40, 2)
    layout = Layout(diagram, 0, 0)
    for flight in diagram.flights:
        line = layout.segment(flight)
        assert line is not None
        assert flight.start is not None
        assert flight.end is not None
        assert (line.x1, line.y1) == (layout.x(flight.start), layout.y(flight.start.lane))
        assert (line.x2, line.y2) == (layout.x(flight.end), layout.y(flight.lane))
        assert line.x2 - line.x1 >= 26
    for lane in range(8):
        places = [layout.x(point) for point in diagram.points if point.lane == lane]
        assert all(later - earlier >= 30 for earlier, later in pairwise(places))


@pytest.mark.parametrize("seed", range(5))
def test_labels_of_an_ordinary_run_do_not_cover_each_other_or_the_dots(seed: int) -> None:
    diagram = random_run(8, 40, seed)
    root = ElementTree.fromstring(diagram.svg())
    texts = [element for element in root.iter() if "label" in (element.get("class") or "")]
    covered = [covers(element) for element in texts]
    assert len(covered) >= 40
    dots = [(float(e.get("cx", "0")), float(e.get("cy", "0"))) for e in root.iter() if e.get("cx")]
    for position, boxes in enumerate(covered):
        for box in boxes:
            assert not any(box.overlaps(other) for others in covered[:position] for other in others)
            assert not any(box.left < x < box.right and box.top < y < box.bottom for x, y in dots)


def covers(element: ElementTree.Element) -> list[Box]:
    """The areas that a label covers."""
    turned = re.match(r"rotate\((\S+) ", element.get("transform") or "")
    angle = float(turned[1]) if turned else 0.0
    place = Place(float(element.get("x", "0")), float(element.get("y", "0")) - 4.2, angle)
    boxes = label_boxes(element.text or "", place)
    for box in boxes:
        # Written numbers are rounded, so that boxes that just touch may seem to overlap by less than a pixel.
        box.left, box.top = box.left + 0.5, box.top + 0.5
    return boxes


@pytest.mark.parametrize("seed", range(5))
def test_labels_keep_off_the_names_of_processes(seed: int) -> None:
    """Five processes and fifteen messages with long labels: nothing is over a name, and nothing leaves the page."""
    run = random_run(5, 15, seed)
    for point in run.points:
        point.label = f'"{point.label} is the answer"'
    for flight in run.flights:
        flight.label = f'"{flight.label} is the answer"'
    root = ElementTree.fromstring(run.svg())
    names = [e for e in root.iter() if e.get("class") == "name"]
    left = max(float(e.get("x", "0")) for e in names)
    width = float(root.get("width", "0"))
    for element in root.iter():
        if "label" in (element.get("class") or ""):
            for box in covers(element):
                assert left - 6 < box.left < box.right < width + 6


def test_one_legend_one_width_and_no_empty_half() -> None:
    from antecede.diagram import draw_stack

    long = Diagram(P, overtaking(), title="a title " * 12, caption="a sentence " * 30)
    root = ElementTree.fromstring(draw_stack([under_none(), long, under_causal()]))
    texts = [e.text or "" for e in root.iter() if e.get("class") == "note"]
    assert sorted(texts) == ["arrived, held until delivered", "delivered", "delivered late", "sent"]
    lanes = {e.get("x2") for e in root.iter() if e.get("class") == "lane"}
    assert len(lanes) == 1
    right = float(lanes.pop() or 0)
    for panel in [root, *root.iter("{http://www.w3.org/2000/svg}g")][:-1]:
        dots = [float(e.get("cx", "0")) for e in panel if e.get("cx")]
        assert max(dots) > 0.8 * right, "a narrow drawing is stretched"
    lines = [e for e in root.iter() if e.get("class") in ("title", "caption")]
    assert len(lines) > 4
    assert all(6.0 * len(e.text or "") < right for e in lines), "long texts are wrapped"


def test_the_view_holds_everything() -> None:
    root = ElementTree.fromstring(random_run(8, 40, 3).svg())
    _, _, width, height = map(float, (root.get("viewBox") or "").split())
    for element in root.iter():
        for name, bound in (("x", width), ("x2", width), ("cx", width), ("y", height), ("y2", height), ("cy", height)):
            assert 0 <= float(element.get(name) or 0) <= bound


def test_text_from_outside_is_escaped_and_cut() -> None:
    name, message = 'P<1>&"\x00', "</text><script>" + "x" * 40
    diagram = Diagram([name], [Event(name, "local", message)], title="<b>&")
    root = ElementTree.fromstring(diagram.svg())
    assert "script" not in {element.tag.rpartition("}")[2] for element in root.iter()}
    written = "".join(root.itertext())
    assert 'P<1>&"\N{REPLACEMENT CHARACTER}' in written
    assert message in written, "the whole label is in the tooltip"
    assert f"{message[:14]}…{message[-13:]}" in written


def test_a_title_and_a_description_for_those_who_cannot_see() -> None:
    root = ElementTree.fromstring(under_none().svg())
    space = "{http://www.w3.org/2000/svg}"
    assert root.get("role") == "img"
    assert root.findtext(f"{space}title") == "none"
    description = root.findtext(f"{space}desc")
    assert description == "P1: sends x, sends y. P2: delivers y, sends z. P3: delivers z, delivers x late."


def test_self_sends_stubs_repeats_and_messages_from_nowhere() -> None:
    events = [send("P1", "a", "P1", "P2", "P3"), *taken("P1", "a"), *taken("P2", "a"), arrive("P2", "a")]
    diagram = Diagram(P, [*events, deliver("P3", "ghost")])
    assert len(marks(diagram, "arrow lost")) == 1
    assert len(marks(diagram, "arrow repeat")) == 1
    assert len(marks(diagram, "again")) == 1
    assert "ghost</text>" in diagram.svg()
    assert "C" in (marks(diagram, "arrow")[0].get("d") or ""), "a self-send is an arc"


def test_a_held_message_that_is_never_delivered_waits_to_the_end() -> None:
    diagram = Diagram(P, overtaking())
    (wait,) = marks(diagram, "wait")
    assert wait.get("x2") == marks(diagram, "lane")[0].get("x2")


# What is refused.


def test_the_bound_on_events_is_named(reads: Snapshots) -> None:
    events = [Event("P1", "local")] * limits.diagram_events_max
    ElementTree.fromstring(Diagram(["P1"], events).svg())
    with pytest.raises(DiagramError) as caught:
        Diagram(["P1"], [*events, Event("P1", "local")])
    reads(str(caught.value))
    with pytest.raises(DiagramError) as caught:
        from_events([Row("P1", index, "local") for index in range(limits.diagram_events_max + 1)])
    reads(str(caught.value))


def test_the_bound_on_processes_is_named(reads: Snapshots) -> None:
    names = [f"P{number}" for number in range(limits.diagram_processes_max + 1)]
    Diagram(names[:-1], []).svg()
    with pytest.raises(DiagramError) as caught:
        Diagram(names, [])
    reads(str(caught.value))


def test_unknown_processes_and_kinds(reads: Snapshots) -> None:
    with pytest.raises(DiagramError) as caught:
        Diagram(P, [Event("P9", "local")])
    reads(str(caught.value))
    with pytest.raises(DiagramError) as caught:
        Diagram(P, [Event("P1", "hop")])
    reads(str(caught.value))


# From a trace.


def trace() -> list[Row]:
    return [
        Row("P1", 0, "send", "x", ("P3",)),
        Row("P1", 1, "send", "y", ("P2", "P4")),
        Row("P2", 0, "arrive", "y"),
        Row("P2", 1, "deliver", "y"),
        Row("P2", 2, "send", "z", ("P3",)),
        Row("router", 0, "hop", "z"),
        Row("P3", 0, "arrive", "z"),
        Row("P3", 1, "deliver", "z"),
        Row("P3", 2, "arrive", "x"),
        Row("P3", 3, "deliver", "x"),
    ]


def test_rows_in_sequence_are_drawn_as_they_are() -> None:
    diagram = from_events(trace(), late={("x", "P3")})
    assert diagram.processes == ["P1", "P2", "P3", "P4"]
    drawn = [(diagram.processes[point.lane], point.kind, point.message) for point in diagram.points]
    assert drawn == [
        ("P1", "send", "x"),
        ("P1", "send", "y"),
        ("P2", "deliver", "y"),
        ("P2", "send", "z"),
        ("P3", "deliver", "z"),
        ("P3", "deliver", "x"),
    ]
    assert diagram.points[-1].late


@pytest.mark.parametrize("seed", range(20))
def test_rows_in_any_sequence_give_a_valid_one(seed: int) -> None:
    rows = trace()
    random.Random(seed).shuffle(rows)
    diagram = from_events(rows, processes=["P1", "P2", "P3", "P4"])
    assert [flight.start is not None for flight in diagram.flights] == [True] * 4
    for lane, messages in enumerate(["xy", "yz", "zx"]):
        seen = dict.fromkeys(point.message for point in diagram.points if point.lane == lane)
        assert "".join(seen) == messages


def test_rows_that_contradict_each_other(reads: Snapshots) -> None:
    rows = [Row("P1", 0, "deliver", "m"), Row("P1", 1, "send", "m", ("P1",))]
    with pytest.raises(DiagramError) as caught:
        from_events(rows)
    reads(str(caught.value))

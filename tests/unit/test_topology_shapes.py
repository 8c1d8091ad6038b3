"""Generated organisations, what they cost, and how they are drawn."""

from itertools import pairwise
from xml.etree import ElementTree

import pytest

from antecede import limits
from antecede.errors import TopologyError
from antecede.simulator.draws import below, stream
from antecede.topology import (
    SHAPES,
    Domain,
    Topology,
    cost_max,
    cost_mean,
    costs_from,
    draw,
    hops_mean,
    make,
    outline,
    parse_topology,
)
from helpers.snapshots import Snapshots


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("servers", [1, 2, 3, 4, 5, 7, 10, 48, 100, 151])
@pytest.mark.parametrize("size", [None, 2, 3, 8])
def test_shapes_are_trees_of_all_servers(shape: str, servers: int, size: int | None) -> None:
    file = make(shape, servers, size)
    organisation = file.organisation
    assert len(file.servers) == servers
    assert organisation.cycle is None
    assert len(organisation.trees) == 1
    assert all(organisation.domains_of(server) for server in file.servers)
    if size is not None and shape in ("daisy", "tree"):
        assert max(len(domain.servers) for domain in file.domains) <= size
    assert parse_topology(file.text()).epoch == file.epoch


def test_bus_is_a_backbone_of_routers() -> None:
    file = make("bus", 48, 8, "matrix", "10.0.0.1", 9000)
    assert [len(domain.servers) for domain in file.domains] == [6, 8, 8, 8, 8, 8, 8]
    assert file.domains[0].servers == ("s1", "s9", "s17", "s25", "s33", "s41")
    assert {domain.order for domain in file.domains} == {"matrix"}
    assert str(file.servers["s48"]) == "tcp://10.0.0.1:9047"


def test_daisy_shares_one_server_with_the_next() -> None:
    domains = make("daisy", 13, 4).domains
    assert [domain.servers for domain in domains][:2] == [("s1", "s2", "s3", "s4"), ("s4", "s5", "s6", "s7")]
    assert [domain.servers[-1] for domain in domains[:-1]] == [domain.servers[0] for domain in domains[1:]]


def test_tree_has_as_many_below_as_told() -> None:
    file = make("tree", 1 + 3 * (1 + 2 + 4 + 8), 4, branches=2)
    below = [sum(file.organisation.is_router(server) for server in domain.servers) for domain in file.domains]
    # The first has two below; the others two below and one above; the last eight only one above.
    assert below == [2] + [3] * 6 + [1] * 8


@pytest.mark.parametrize(
    "arguments",
    [
        ("ring", 4),
        ("bus", 0),
        ("bus", limits.topology_servers_max + 1),
        ("bus", 9, 1),
        ("bus", 9, 3, "pruned", "a b"),
        ("bus", 9, 3, "pruned", "h", 65_528),
        ("bus", 9, 3, "pruned", "h", 1, 1),
        ("tree", 9, 3, "pruned", "h", 1, 3),
    ],
)
def test_what_cannot_be_made(arguments: tuple[object, ...], reads: Snapshots) -> None:
    with pytest.raises(TopologyError) as caught:
        make(*arguments)  # type: ignore[arg-type]
    reads(str(caught.value))


def test_bound_of_servers_and_ports() -> None:
    assert len(make("flat", limits.topology_servers_max, port=65_536 - limits.topology_servers_max).servers) == 4_096


def _some_forest(seed: int) -> Topology:
    rng = stream(seed, "costs")
    domains = [Domain("D0", ("s0", "s1"))]
    for number in range(1, 1 + below(rng, 5)):
        members = [f"n{number}.{place}" for place in range(1 + below(rng, 3))]
        # Now and then a tree of its own.
        known = [server for domain in domains for server in domain.servers]
        router = [known[below(rng, len(known))]] if rng.random() < 0.8 else []
        domains.append(Domain(f"D{number}", (*router, *members)))
    return Topology(domains)


def test_costs_equal_those_of_walking_every_pair() -> None:
    for seed in range(60):
        topology = _some_forest(seed)
        walked = []
        for source in topology.servers:
            for target in topology.tree(source):
                way = topology.route(source, target)
                shared = [set(topology.domains_of(a)) & set(topology.domains_of(b)) for a, b in pairwise(way)]
                sizes = [len(topology.domains[one].servers) for (one,) in shared]
                walked.append((source, target, sum(size**2 for size in sizes), len(sizes)))
        assert cost_mean(topology) == pytest.approx(sum(cost for _, _, cost, _ in walked) / len(walked))
        assert hops_mean(topology) == pytest.approx(sum(hops for *_, hops in walked) / len(walked))
        assert cost_max(topology) == max(cost for _, _, cost, _ in walked)
        assert all(costs_from(topology, source)[target] == cost for source, target, cost, _ in walked)


def test_costs_need_a_way(reads: Snapshots) -> None:
    topology = Topology([Domain("A", ("a", "b")), Domain("B", ("c", "d"))])
    assert costs_from(topology, "a") == {"a": 0.0, "b": 4.0}
    with pytest.raises(TopologyError) as caught:
        topology.route("a", "c")
    reads(str(caught.value))
    with pytest.raises(TopologyError) as caught:
        topology.route("x", "a")
    reads(str(caught.value))


def test_outline_hangs_up_the_centre() -> None:
    file = make("daisy", 9, 3)
    assert outline(file) == (
        "d3  pruned  s5* s6 s7*\n"
        "├─ s5: d2  pruned  s3* s4 s5*\n"
        "│      └─ s3: d1  pruned  s1 s2 s3*\n"
        "└─ s7: d4  pruned  s7* s8 s9\n"
    )
    assert outline(file, unicode=False).isascii()


def test_outline_names_every_domain_once_even_on_a_cycle() -> None:
    text = '[servers]\na = "tcp://h:1"\nb = "tcp://h:2"\nc = "tcp://h:3"\n[domains]\n'
    file = parse_topology(text + 'A = { servers = ["a", "b"] }\nB = { servers = ["a", "b"] }')
    lines = outline(file).splitlines()
    assert len(lines) == 3
    assert lines[-1] == "in no domain: c"


_svg = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("shape", "servers", "size"),
    [("bus", 48, 8), ("daisy", 20, 4), ("tree", 60, 4), ("flat", 9, None), ("star", 40, 2)],
)
def test_picture_has_every_server_in_each_of_its_domains_and_nothing_overlaps(
    shape: str, servers: int, size: int | None
) -> None:
    file = make(shape, servers, size)
    picture = ElementTree.fromstring(draw(file))
    width, height = float(picture.attrib["width"]), float(picture.attrib["height"])
    kinds: dict[str, list[tuple[float, float, float, float]]] = {"domain": [], "server": []}
    for rect in picture.iter(f"{_svg}rect"):
        kind = rect.attrib["class"].split()[0]
        if kind in kinds:
            x, y, wide, high = (float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
            kinds[kind].append((x, y, x + wide, y + high))
    assert len(kinds["domain"]) == len(file.domains)
    assert len(kinds["server"]) == sum(len(domain.servers) for domain in file.domains)
    for boxes in kinds.values():
        for place, (left, top, right, bottom) in enumerate(boxes):
            assert left >= 0 <= top
            assert right <= width
            assert bottom <= height
            for other in boxes[:place]:
                assert left >= other[2] or right <= other[0] or top >= other[3] or bottom <= other[1]
    for left, top, right, bottom in kinds["server"]:
        # A router is on the upper edge of the domains below it.
        inside = [
            b
            for b in kinds["domain"]
            if b[0] <= left and b[1] <= (top + bottom) / 2 and right <= b[2] and bottom <= b[3]
        ]
        assert len(inside) == 1
    if shape == "star":
        # The many domains of the hub are in rows, so that the picture fits on a page.
        assert width < 1_200
    said = "".join(text for text in picture.itertext())
    assert all(f"{name}" in said for name in file.servers)


def test_picture_of_too_many_is_refused(reads: Snapshots) -> None:
    assert draw(make("bus", limits.topology_drawn_servers_max)).startswith("<svg")
    with pytest.raises(TopologyError) as caught:
        draw(make("bus", limits.topology_drawn_servers_max + 1))
    reads(str(caught.value))

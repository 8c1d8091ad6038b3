"""The difference between two topologies, and the region that pauses for it, against a plain definition."""

from itertools import combinations, pairwise, product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antecede.cli.topology import _report_change as _report
from antecede.server import Outcome, explain
from antecede.topology import TopologyFile, parse_topology, plan_change
from helpers.changing import AGENTS, BACK, BUS, FLAT, MOVED, ONE_MORE, WITHOUT, topology
from worlds.changes import journey


def _region(old: str, new: str) -> str:
    return "".join(plan_change(parse_topology(old), parse_topology(new)).region)


def test_adding_an_agent_pauses_nothing() -> None:
    change = plan_change(
        parse_topology(BUS), parse_topology(topology({"A": "12", "B": "23", "C": "34"}, {**AGENTS, "x": 1}))
    )
    assert [(one.kind, one.name, one.after) for one in change.differences] == [("agent-added", "x", "s1")]
    assert change.region == change.begun == ()
    assert not change.paused


def test_differences_in_one_line_name_each_thing_once() -> None:
    old, new = parse_topology(BUS), parse_topology('guarantee = "fifo"\n' + ONE_MORE)
    assert "; guarantee (causal → fifo)" in explain(old, new)


def test_a_server_with_a_domain_of_its_own_pauses_nothing_and_one_that_joins_a_domain_pauses_it() -> None:
    assert _region(BUS, ONE_MORE) == ""
    assert plan_change(parse_topology(BUS), parse_topology(ONE_MORE)).begun == ("D",)
    joined = topology({"A": "12", "B": "23", "C": "345"}, AGENTS)
    assert _region(BUS, joined) == "C"


def test_a_moved_agent_pauses_the_whole_tree_and_another_order_its_domain() -> None:
    assert _region(ONE_MORE, MOVED) == "ABCD"
    assert _region(BUS, topology({"A": "12", "B": "23", "C": "34"}, AGENTS, {"B": "pruned"})) == "B"


def test_the_domain_before_the_place_of_a_change_pauses_if_the_route_turns_there() -> None:
    """Messages from s1 to s4 that wait at s2 would not be on the new way, which turns off at s3."""
    old, new = topology({"A": "123", "B": "24"}, AGENTS), topology({"A": "123", "B": "34"}, AGENTS)
    assert _region(old, new) == "AB"


def test_what_is_refused() -> None:
    old, new = parse_topology(WITHOUT), parse_topology(FLAT)
    assert "addresses NAME@s5 may still be in use" in plan_change(old, new).refusals[0]
    away = topology({"A": "56"}, {"x": 5})
    assert "no server of the old topology is left" in plan_change(new, parse_topology(away)).refusals[0]
    objects = parse_topology(
        topology({"A": "12"}, {}, {"A": "objects"}, more='account = { servers = ["s1"], class = "bank:Account" }')
    )
    other = parse_topology(
        topology({"A": "123"}, {}, {"A": "objects"}, more='account = { servers = ["s1"], class = "bank:Account" }')
    )
    assert plan_change(objects, other).refusals == (
        "domain A has replicated objects: its members and its order cannot change",
    )


def test_servers_that_are_removed_name_the_server_of_their_clients() -> None:
    change = plan_change(parse_topology(BACK), parse_topology(WITHOUT))
    assert change.emptied == {"s5": "s4"}
    assert change.leaving == {"e": ""}
    assert parse_topology(parse_topology(WITHOUT).text()).epoch == parse_topology(WITHOUT).epoch


@pytest.mark.parametrize("text", ['s1 = "s2"', 's9 = "s8"', "s9 = 3", 's9 = ["s1"]'])
def test_a_server_is_moved_only_if_it_is_gone(text: str) -> None:
    from antecede.errors import TopologyError

    with pytest.raises(TopologyError, match="moved: "):
        parse_topology(FLAT + "[moved]\n" + text)


def _forests() -> list[dict[str, str]]:
    """All forests of up to three domains on four servers."""
    sets = ["".join(members) for size in (2, 3, 4) for members in combinations("1234", size)]
    found = []
    for count in (1, 2, 3):
        for chosen in combinations(sets, count):
            domains = dict(zip("ABC", chosen, strict=False))
            if parse_topology(topology(domains, {})).organisation.cycle is None:
                found.append(domains)
    return found


def _routes(file: TopologyFile) -> dict[tuple[str, str], tuple[tuple[str, ...], frozenset[str]]]:
    """For each pair of servers its route, and the domains on it, by the definition."""
    found = {}
    for one, other in product(file.servers, repeat=2):
        if one == other or other not in file.organisation.tree(one):
            continue
        way = file.organisation.route(one, other)
        domains = {
            next(name for name, domain in file.organisation.domains.items() if {left, right} <= set(domain.servers))
            for left, right in pairwise(way)
        }
        found[one, other] = (tuple(way), frozenset(domains))
    return found


_all = _forests()


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(_all), st.sampled_from(_all))
def test_the_region_is_all_domains_on_routes_that_change(before: dict[str, str], after: dict[str, str]) -> None:
    old, new = parse_topology(topology(before, {})), parse_topology(topology(after, {}))
    shared = set(old.servers) & set(new.servers)
    expected = {name for name in before if before[name] != after.get(name)}
    ways, others = _routes(old), _routes(new)
    for pair in ways.keys() | others.keys():
        if set(pair) <= shared and ways.get(pair, ((), 0))[0] != others.get(pair, ((), 0))[0]:
            expected |= ways.get(pair, ((), frozenset()))[1] | others.get(pair, ((), frozenset()))[1]
    for server in set(old.servers) - shared:
        expected |= {name for name in before if any(name in way[1] for pair, way in ways.items() if pair[1] == server)}
    change = plan_change(old, new)
    assert set(change.region) == {name for name in expected if name in before}
    assert set(change.begun) == {name for name in after if name in expected or name not in before}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(_all), st.sampled_from(_all))
def test_what_waits_at_a_border_router_is_on_the_new_route_too(before: dict[str, str], after: dict[str, str]) -> None:
    """The rule on which causal order rests: a route is as before up to the place where it enters the region."""
    old, new = parse_topology(topology(before, {})), parse_topology(topology(after, {}))
    region = set(plan_change(old, new).region)
    ways, others = _routes(old), _routes(new)
    for pair, (way, _) in ways.items():
        if pair not in others:
            continue
        for step, (left, right) in enumerate(pairwise(way)):
            domains = {name for name, members in before.items() if {left[1], right[1]} <= set(members)}
            if domains <= region:
                assert others[pair][0][: step + 1] == way[: step + 1]
                break


@pytest.mark.parametrize(
    ("new", "needed"),
    [
        (topology({"A": "12", "B": "23", "C": "34"}, {**AGENTS, "x": 3}), "13"),
        (topology({"A": "12", "B": "23", "C": "34", "D": "35"}, AGENTS), "135"),
        (topology({"A": "12", "B": "23", "C": "34"}, AGENTS, {"C": "pruned"}), "134"),
        (topology({"A": "12", "B": "23", "C": "34"}, AGENTS).replace("7004", "7009"), "134"),
        (topology({"A": "12", "B": "23", "C": "34"}, AGENTS).replace("7002", "7009"), "12"),
        (topology({"A": "12", "B": "23", "C": "34"}, AGENTS).replace("7001", "7009"), "1234"),
        (topology({"A": "12", "B": "23", "C": "34"}, {**AGENTS, "d": 3}), "1234"),
        (BUS.replace("nowhere:Agent", "nowhere:Other", 1), "1"),
        ('[application]\nmodule = "shop"\n' + BUS, "1234"),
        (BUS, "1"),
    ],
)
def test_servers_that_must_take_part(new: str, needed: str) -> None:
    assert "".join(plan_change(parse_topology(BUS), parse_topology(new)).needed).replace("s", "") == needed


def test_a_server_of_another_tree_is_needed_if_the_first_server_is_removed() -> None:
    """It asks the first server whether there was a change; but nothing of its own is different."""
    old, new = (parse_topology(topology({"A": members, "B": "45"}, {"b": 2, "d": 4})) for members in ("123", "23"))
    change = plan_change(old, new)
    assert change.needed == ("s1", "s2", "s3", "s4", "s5")
    assert change.concerned == {"s1", "s2", "s3"}


def test_nothing_changes_for_a_server_that_need_not_take_part() -> None:
    """Its domains, its agents, and its routes to all servers that it knows; also over several changes."""
    spare = 0
    for seed in range(150):
        texts = journey(Random(seed), mild=bool(seed % 2))
        files = [parse_topology(text) for text in texts]
        for old, new in pairwise(files):
            for server in set(old.servers) - set(plan_change(old, new).needed):
                spare += 1
                before, after = old.organisation.tree(server), new.organisation.tree(server)
                ways = [{one: way for one, (_, way) in tree.items() if one in old.servers} for tree in (before, after)]
                assert ways[0] == ways[1]
                assert all(old.domain(name) == new.domain(name) for name in old.organisation.domains_of(server))
                assert old.organisation.domains_of(server) == new.organisation.domains_of(server)
                homes = [[one for one in file.agents if one.server == server] for file in (old, new)]
                assert homes[0] == homes[1]
        always = set(files[0].servers).difference(*(plan_change(*two).needed for two in pairwise(files)))
        assert not always & plan_change(files[0], files[-1]).concerned
    assert spare > 200, "the changes need all servers"


def test_a_report_says_that_an_agent_is_deleted_with_its_state(capsys: pytest.CaptureFixture[str]) -> None:
    old, new = (parse_topology(topology({"A": "12"}, agents)) for agents in ({"a": 1, "b": 2}, {"a": 1}))
    _report(Outcome("planned", old, plan_change(old, new), 0, ""), new)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "agent removed" in line)
    assert "deleted with its state" in line

"""What is kept end to end between two domains, and what is refused."""

import pytest

from antecede.topology import OrderFacts, TopologyFile, check, parse_topology, strength
from helpers.snapshots import Snapshots

_facts = {
    "none": OrderFacts(frozenset()),
    "fifo": OrderFacts(frozenset({"fifo"})),
    "pruned": OrderFacts(frozenset({"fifo", "causal"})),
    "total": OrderFacts(frozenset({"fifo", "causal", "total"})),
    "skeen": OrderFacts(frozenset({"total"})),
    "vector": OrderFacts(frozenset({"fifo", "causal"}), frozenset({"broadcast"})),
    "objects": OrderFacts(frozenset({"significant"})),
}


def _file(domains: dict[str, tuple[str, str]], guarantee: str = "causal") -> TopologyFile:
    servers = sorted({server for members, _ in domains.values() for server in members.split()})
    lines = [f'guarantee = "{guarantee}"', "[servers]"]
    lines += [f'{server} = "tcp://h:{port}"' for port, server in enumerate(servers, 1)]
    lines.append("[domains]")
    for name, (members, order) in domains.items():
        listed = ", ".join(f'"{server}"' for server in members.split())
        lines.append(f'{name} = {{ servers = [{listed}], order = "{order}" }}')
    return parse_topology("\n".join(lines))


def _kept(file: TopologyFile) -> dict[str, str]:
    verdict = check(file, _facts.__getitem__)
    return {f"{pair.source}{pair.target}": strength(pair.guarantees) for pair in verdict.pairs}


def test_weakest_order_on_the_route_counts_and_total_ends_at_the_border() -> None:
    file = _file({"A": ("a r", "total"), "B": ("r s", "fifo"), "C": ("s c", "total"), "D": ("a d", "total")}, "fifo")
    assert check(file, _facts.__getitem__).holds
    assert _kept(file) == {
        "AA": "causal, total",
        "BB": "fifo",
        "CC": "causal, total",
        "DD": "causal, total",
        "AB": "fifo",
        "AC": "fifo",
        "AD": "causal",
        "BC": "fifo",
        "BD": "fifo",
        "CD": "fifo",
    }
    routes = {(pair.source, pair.target): pair.route for pair in check(file, _facts.__getitem__).pairs}
    assert routes["C", "D"] == ("C", "B", "A", "D")


def test_separate_trees_keep_nothing() -> None:
    file = _file({"A": ("a b", "pruned"), "B": ("c d", "pruned")})
    verdict = check(file, _facts.__getitem__)
    assert verdict.holds
    assert _kept(file) == {"AA": "causal", "AB": "none", "BB": "causal"}
    assert [pair.route for pair in verdict.pairs if pair.source != pair.target] == [()]


def test_an_order_that_needs_timers_is_refused_even_alone() -> None:
    facts = OrderFacts(frozenset({"fifo", "causal"}), frozenset({"timers"}))
    verdict = check(_file({"A": ("a b", "patient")}), lambda _: facts)
    assert verdict.refusals == ("domain A: order patient needs timers, which servers do not have",)


@pytest.mark.parametrize(
    ("order", "guarantee", "refusal"),
    [
        ("pruned", "causal", None),
        ("fifo", "causal", 'order fifo is not causal, and there are several domains: .*guarantee = "fifo"'),
        ("none", "causal", 'order none is not causal.*guarantee = "none"'),
        ("skeen", "causal", 'order skeen is not causal.*guarantee = "none"'),
        ("fifo", "fifo", None),
        ("none", "fifo", 'order none is not fifo.*guarantee = "none"'),
        ("skeen", "fifo", "not fifo"),
        ("none", "none", None),
        ("vector", "causal", "order vector supports only topologies with a single domain"),
        ("vector", "none", "only topologies with a single domain"),
        ("objects", "none", "only topologies with a single domain"),
    ],
)
def test_orders_beside_another_domain(order: str, guarantee: str, refusal: str | None, reads: Snapshots) -> None:
    verdict = check(_file({"A": ("a r", "pruned"), "B": ("r b", order)}, guarantee), _facts.__getitem__)
    assert verdict.holds is (refusal is None)
    if refusal is not None:
        (said,) = verdict.refusals
        with pytest.raises(AssertionError) as caught:
            raise AssertionError(said)
        reads(str(caught.value))
        assert said.startswith("domain B: ")


@pytest.mark.parametrize("order", list(_facts))
def test_one_domain_alone_may_have_any_order(order: str) -> None:
    file = _file({"A": ("a b", order)})
    assert check(file, _facts.__getitem__).holds
    assert _kept(file) == {"AA": strength(_facts[order].guarantees)}


def test_cycle_is_refused_whatever_is_promised() -> None:
    verdict = check(_file({"A": ("a b", "fifo"), "B": ("a b c", "fifo")}, "none"), _facts.__getitem__)
    assert verdict.refusals == ("not a forest: a –A– b –B– a",)
    assert verdict.pairs == ()


_account = '\n[agents]\naccount = {{ servers = {servers}, class = "bank:Account" }}\n'


@pytest.mark.parametrize(
    ("domains", "servers", "refusal"),
    [
        ({"A": ("a b c", "objects")}, '["a", "b"]', None),
        (
            {"A": ("a b c", "pruned")},
            '["a", "b"]',
            "object account: domain A has order pruned: replicated objects need an order based on conflicts",
        ),
        (
            {"A": ("a b", "pruned"), "B": ("b c", "pruned")},
            '["a", "c"]',
            "object account: no domain has all its servers (a, c)",
        ),
    ],
)
def test_replicas_are_in_one_domain_that_goes_by_conflicts(
    domains: dict[str, tuple[str, str]], servers: str, refusal: str | None
) -> None:
    file = parse_topology(_file(domains).text() + _account.format(servers=servers))
    refusals = check(file, _facts.__getitem__).refusals
    assert [one[: len(refusal or "")] for one in refusals] == ([] if refusal is None else [refusal])

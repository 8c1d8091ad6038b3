"""Topology files: what they say, in which canonical form, and every error in one line with its place."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antecede import limits
from antecede.errors import TopologyError
from antecede.topology import Address, AgentHome, DomainEntry, ObjectHome, natural, parse_topology
from helpers.snapshots import Snapshots

_shop = """
[servers]
s1 = "tcp://127.0.0.1:7101"
s2 = "tcp://127.0.0.1:7102"
s10 = "tcp://[::1]:7103"
[domains]
A = { servers = ["s1", "s2"], order = "pruned" }
D = { servers = ["s10", "s2"], order = "buffer:pipelined=true,multicast=hold-delivery" }
[application]
module = "shop.agents"
[agents]
orders = { server = "s10", class = "shop.agents:Orders" }
"""
_two = '[servers]\na = "tcp://h:1"\nb = "tcp://h:2"\n[domains]\n'


def test_all_parts_are_read() -> None:
    file = parse_topology(_shop, "shop.toml")
    assert list(file.servers) == ["s1", "s2", "s10"]
    assert file.servers["s10"] == Address("::1", 7103)
    assert str(file.servers["s10"]) == "tcp://[::1]:7103"
    assert file.domains[0] == DomainEntry("A", ("s1", "s2"), "pruned")
    assert file.domain("D") == DomainEntry("D", ("s2", "s10"), "buffer:multicast=hold-delivery,pipelined=true")
    assert file.agents == (AgentHome("orders", "s10", "shop.agents:Orders"),)
    assert (file.module, file.guarantee) == ("shop.agents", "causal")
    assert file.organisation.route("s1", "s10") == ["s1", "s2", "s10"]


def test_order_of_a_domain_is_pruned_unless_said() -> None:
    assert parse_topology(_two + 'A = { servers = ["a", "b"] }').domains[0].order == "pruned"


def test_own_text_says_the_same() -> None:
    file = parse_topology('guarantee = "fifo"\n' + _shop, "shop.toml")
    again = parse_topology(file.text(), "other.toml")
    assert (again.canonical(), again.epoch) == (file.canonical(), file.epoch)
    assert again.text() == file.text()


def test_epoch_ignores_layout_and_sequence() -> None:
    shuffled = """
# The same, otherwise written.
[agents.orders]
class = "shop.agents:Orders"
server = "s10"
[domains.D]
order = "buffer:multicast=hold-delivery,pipelined=true"
servers = [
    "s2",
    "s10",
]
[domains.A]
servers = ["s2", "s1"]
[application]
module = 'shop.agents'
[servers]
s10 = "tcp://[::1]:7103"
s2 = "tcp://127.0.0.1:7102"
s1 = "tcp://127.0.0.1:7101"
"""
    one, other = parse_topology(_shop, "one"), parse_topology(shuffled, "other")
    assert one.canonical() == other.canonical()
    assert one.epoch == other.epoch
    assert len(one.epoch) == 16
    # Member numbers are places in a domain: they must not depend on the layout either.
    assert [domain.servers for domain in one.domains] == [domain.servers for domain in other.domains]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("127.0.0.1:7101", "127.0.0.1:7201"),
        ('"pruned"', '"matrix"'),
        ('["s1", "s2"]', '["s1", "s10"]'),
        ("s10", "s11"),
        ("A =", "B ="),
        ("agents:Orders", "agents:Stock"),
        ("[servers]", 'guarantee = "none"\n[servers]'),
    ],
)
def test_epoch_differs_with_what_is_said(old: str, new: str) -> None:
    assert old in _shop
    assert parse_topology(_shop.replace(old, new)).epoch != parse_topology(_shop).epoch


@pytest.mark.parametrize(
    "text",
    [
        "[servers\n",
        "[servers",
        "a = " + "9" * 5_000,
        "",
        "servers = 3",
        '[servers]\na = "tcp://h:1"',
        '[servers]\na = "http://h:1"\n[domains]',
        '[servers]\na = "tcp://h:0"',
        '[servers]\na = "tcp://h:65536"',
        "[servers]\na = 7",
        '[servers]\n"a b" = "tcp://h:1"',
        '[servers]\na = "tcp://h:1"\nb = "tcp://H:1"\n[domains]',
        _two + "A = 3",
        _two + "A = { servers = [] }",
        _two + 'A = { servers = "a" }',
        _two + 'A = { servers = ["a", "c"] }',
        _two + 'A = { servers = ["a", "a"] }',
        _two + 'A = { servers = ["a"], order = 3 }',
        _two + 'A = { servers = ["a"], order = "a b" }',
        _two + 'A = { servers = ["a"], colour = 1 }',
        _two + '[domains.A]\nservers = ["a"]\n\ntls = 1',
        _two + 'A = { servers = ["a"] }\n[tls]\nx = 1',
        _two + 'A = { servers = ["a"] }\n[application]\nm = 1',
        _two + 'A = { servers = ["a"] }\n[application]\nmodule = "a b"',
        _two + 'A = { servers = ["a"] }\n[agents]\nx = { server = "z", class = "m:C" }',
        _two + 'A = { servers = ["a"] }\n[agents]\nx = { server = "a", class = "C" }',
        'guarantee = "total"\n' + _two + 'A = { servers = ["a"] }',
        "guarantee = []\n" + _two + 'A = { servers = ["a"] }',
        "a = " + "[" * 20_000,
    ],
)
def test_errors_name_the_place(text: str, reads: Snapshots) -> None:
    with pytest.raises(TopologyError) as caught:
        parse_topology(text, "t.toml")
    reads(str(caught.value))
    assert "\n" not in str(caught.value)


@given(
    st.text(max_size=200) | st.sampled_from(_shop.splitlines()).flatmap(lambda line: st.just(_shop.replace(line, "")))
)
def test_any_text_is_read_or_refused(text: str) -> None:
    said = "t.toml:"
    try:
        parse_topology(text, "t.toml")
    except TopologyError as error:
        said = str(error)
    assert said.startswith("t.toml:")


def _many(servers: int) -> str:
    lines = [f's{number} = "tcp://h{number}:1"' for number in range(servers)]
    return "\n".join(["[servers]", *lines, "[domains]", 'A = { servers = ["s1"] }'])


def test_bounds(reads: Snapshots) -> None:
    assert len(parse_topology(_many(limits.topology_servers_max)).servers) == limits.topology_servers_max
    with pytest.raises(TopologyError) as caught:
        parse_topology(_many(limits.topology_servers_max + 1))
    reads(str(caught.value))
    rest = _two + 'A = { servers = ["a"] }\n#'
    padding = limits.topology_bytes_max - len(rest)
    assert parse_topology(rest + "x" * padding).domains
    with pytest.raises(TopologyError) as caught:
        parse_topology(rest + "x" * (padding + 1))
    reads(str(caught.value))


def test_numbers_in_names_count() -> None:
    names = ["s10", "s2", "s1", "a", "s2b", "10", "9", "S1"]
    assert sorted(names, key=natural) == ["9", "10", "S1", "a", "s1", "s2", "s2b", "s10"]


def test_snowflake_is_the_paper_s(root: Path) -> None:
    """Laumay et al. Fig. 2, with S6 in C."""
    file = parse_topology((root / "examples" / "snowflake.toml").read_text(encoding="utf-8"))
    assert {domain.name: set(domain.servers) for domain in file.domains} == {
        "A": {"S1", "S2", "S3"},
        "B": {"S4", "S5"},
        "C": {"S6", "S7", "S8"},
        "D": {"S3", "S6"},
        "E": {"S1", "S4"},
    }
    assert [address.port for address in file.servers.values()] == list(range(7201, 7209))
    assert file.organisation.cycle is None
    assert file.organisation.route("S1", "S8") == ["S1", "S3", "S6", "S8"]
    assert [name for name in file.servers if file.organisation.is_router(name)] == ["S1", "S3", "S4", "S6"]


_replicated = _two + 'A = { servers = ["a", "b"], order = "objects" }\n[agents]\n'


def test_objects_live_on_several_servers() -> None:
    file = parse_topology(_replicated + 'till = { servers = ["b", "a"], class = "bank:Till" }\n')
    assert file.objects == (ObjectHome("till", ("a", "b"), "bank:Till"),)
    assert file.agents == ()
    again = parse_topology(file.text())
    assert (again.objects, again.epoch) == (file.objects, file.epoch)
    assert file.epoch != parse_topology(_replicated + 'till = { servers = ["b"], class = "bank:Till" }\n').epoch


def test_the_epoch_of_a_file_without_objects_is_what_it_was_before_there_were_any() -> None:
    assert "objects" not in parse_topology(_two + 'A = { servers = ["a", "b"] }\n').canonical()


@pytest.mark.parametrize(
    "entry",
    [
        '{ servers = ["a"], server = "a", class = "x:Y" }',
        '{ servers = [], class = "x:Y" }',
        '{ servers = "a", class = "x:Y" }',
        '{ servers = ["a", "a"], class = "x:Y" }',
        '{ servers = ["a", "c"], class = "x:Y" }',
        '{ servers = ["a"], class = "x" }',
        '{ class = "x:Y" }',
    ],
)
def test_what_is_wrong_with_an_object_is_said_with_its_line(entry: str, reads: Snapshots) -> None:
    with pytest.raises(TopologyError) as raised:
        parse_topology(_replicated + f"till = {entry}\n", "bank.toml")
    reads(str(raised.value))
    assert str(raised.value).startswith("bank.toml:7: ")

"""The access file: what it may contain, and the one line that names what is wrong."""

import pytest

from antecede import limits
from antecede.access import Access, AddressLimits, Limits, matches, parse_access
from antecede.errors import AccessError
from helpers.identities import public_key as _key

_file = f"""
[servers.s1]
keys = ["{_key(1)}"]
certificates = ["spiffe://shop/server/s1"]
[clients.alice]
keys = ["{_key(2)}", {{ key = "{_key(3)}", expires = 2027-01-31T00:00:00Z }}]
names = ["alice-*"]
send = ["orders", "bank.*", "*@s1"]
receive = ["*"]
subscribe = ["news"]
call = ["account.deposit"]
limits = {{ rate = 1000, connections = 4 }}
[operators.admin]
keys = ["{_key(4)}"]
tokens = ["sha256:{"0" * 64}"]
operate = ["status", "dead-*"]
[anonymous]
operate = ["live"]
[limits]
bytes = 1_000
connections = 100
[addresses]
connections = 200
attempts = 50
"""


def test_everything_in_it() -> None:
    access = parse_access(_file)
    alice = access.clients["alice"]
    assert [key.public for key in alice.keys] == [_key(2), _key(3)]
    assert alice.keys[1].expires == 1801353600.0
    assert alice.send == ("orders", "bank.*", "*@s1")
    assert access.limits_of(alice) == Limits(1000.0, 1000.0, 4)
    assert access.servers["s1"].certificates == ("spiffe://shop/server/s1",)
    assert access.operators["admin"].operate == ("status", "dead-*")
    assert access.anonymous == ("live",)
    assert access.addresses == AddressLimits(200, 50.0)
    assert [key.public for _, _, key in access.expiring()] == [_key(3)]
    assert parse_access("") == Access(), "an empty file allows nothing"
    assert parse_access("\ufeff" + _file) == access


def test_the_digest_depends_on_the_content_alone() -> None:
    first = parse_access(_file)
    assert parse_access("# a comment\n" + _file, "other.toml").digest == first.digest
    assert parse_access(_file.replace('"orders"', '"order"')).digest != first.digest
    assert len(first.digest) == 16


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x\ny = 1", "access.toml:1: bad TOML"),
        ("a = 1", 'unknown key "a": expected servers, clients, operators, anonymous, limits, addresses'),
        ("clients = 1", "access.toml:1: clients: 1: expected a table [clients]"),
        ("[clients]\nalice = 1", "access.toml:2: clients.alice: 1: expected a table [clients.alice]"),
        ('[clients."a b"]', "clients.a b: expected a name of 1 to 64"),
        ("[clients.alice]\nsends = []", 'access.toml:2: clients.alice.sends: unknown key "sends": expected keys'),
        ("[servers.s1]\nsend = []", 'servers.s1.send: unknown key "send": expected keys, certificates'),
        ('[clients.alice]\nsend = "orders"', 'access.toml:2: clients.alice.send: "orders": expected a list'),
        ('[clients.alice]\nsend = ["a b"]', 'clients.alice.send: "a b": expected a name, or a pattern'),
        ('[clients.alice]\nsend = ["a@b@c"]', 'clients.alice.send: "a@b@c": expected a name, or a pattern'),
        ('[clients.alice]\nkeys = ["ed25519:AAAA"]', 'clients.alice.keys: "ed25519:AAAA": expected'),
        (f'[clients.a]\nkeys = [{{ key = "{_key(1)}", expires = 2027-01-31 }}]', "expected a time such as 2027"),
        (f'[clients.a]\nkeys = [{{ key = "{_key(1)}", until = 1 }}]', 'unknown key "until": expected key, expires'),
        (f'[clients.a]\nkeys = ["{_key(1)}", "{_key(1)}"]', "clients.a.keys: the same key twice"),
        (f'[clients.a]\nkeys = ["{_key(1)}"]\n[operators.b]\nkeys = ["{_key(1)}"]', 'operators.b: "ed25519:'),
        ('[operators.a]\ntokens = ["secret"]', 'operators.a.tokens: "secret": expected sha256:'),
        ("[clients.a]\ncertificate_alone = 1", "clients.a.certificate_alone: 1: expected true or false"),
        (
            "[clients.a]\ncertificate_alone = true",
            "a.certificate_alone: true is allowed only with one or more certificates and without keys",
        ),
        ("[limits]\nrate = 0", "access.toml:2: limits.rate: 0: expected a number larger than 0"),
        ("[limits]\nconnections = 1.5", "limits.connections: 1.5: expected a whole number, 1 or more"),
        ("[clients.a]\nlimits = 1", "clients.a.limits: 1: expected { rate"),
        ('[operators.a]\noperate = ["statuss"]', 'operators.a.operate: "statuss": expected one of status, dead-list'),
        ('[anonymous]\noperate = ["live", "heath"]', 'access.toml:2: anonymous.operate: "heath": expected one of'),
        ("[addresses]\nrate = 1", 'addresses.rate: unknown key "rate": expected connections, attempts'),
    ],
)
def test_an_error_is_one_line_that_names_the_place(text: str, said: str) -> None:
    with pytest.raises(AccessError) as caught:
        parse_access(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("access.toml:")


def test_bounds() -> None:
    entries = ", ".join(['"a"'] * limits.patterns_max)
    assert len(parse_access(f"[clients.a]\nsend = [{entries}]").clients["a"].send) == limits.patterns_max
    with pytest.raises(AccessError, match=r"clients\.a\.send: 1001 entries: expected at most 1000"):
        parse_access(f'[clients.a]\nsend = [{entries}, "a"]')
    longest = "a" * limits.pattern_chars_max
    assert parse_access(f'[clients.a]\nsend = ["{longest}"]').clients["a"].send == (longest,)
    with pytest.raises(AccessError, match="expected a name"):
        parse_access(f'[clients.a]\nsend = ["{longest}a"]')
    with pytest.raises(AccessError, match="more than"):
        parse_access("#" * (limits.access_bytes_max + 1))
    assert parse_access("#" * limits.access_bytes_max) == Access()
    tables = "\n".join(f"[clients.c{number}]" for number in range(limits.identities_max + 1))
    with pytest.raises(AccessError, match="clients: 10001 identities: expected at most 10000"):
        parse_access(tables)


@pytest.mark.parametrize(
    ("patterns", "name", "matched"),
    [
        (("orders",), "orders", True),
        (("orders",), "orders2", False),
        (("orders",), "orders@s1", False),
        (("bank.*",), "bank.a.b", True),
        (("bank.*",), "bankxa", False),
        (("bank.*",), "bank.eve@s1", False),
        (("*@s1",), "bob@s1", True),
        (("*@s1",), "bob@s2", False),
        (("*",), "bob@s2", True),
        (("a*",), "a@s2", False),
        (("*@*",), "orders", False),
        (("*a*b",), "a@b", False),
        (("*a*b*@*c",), "xabb@c", True),
        (("*@a@*",), "x@b@a@", False),
        (("*a**a",), "a", False),
        (("*a" * 40 + "b", "*a" * 40), "a" * 400, True),
        (("*a" * 40 + "b",), "a" * 400, False),
        ((), "orders", False),
    ],
)
def test_patterns(patterns: tuple[str, ...], name: str, matched: bool) -> None:
    assert matches(patterns, name) is matched

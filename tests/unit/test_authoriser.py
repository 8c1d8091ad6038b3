"""The authoriser: identity × action × name, and what lapses when the file changes or time passes."""

import hashlib
import json
from typing import Any

import pytest

from antecede import limits
from antecede.access import (
    ACTIONS,
    ANONYMOUS,
    LOCAL,
    REFUSED,
    TOKEN,
    Access,
    Attempts,
    Audit,
    Authoriser,
    Identity,
    Key,
    Rate,
    Who,
    parse_access,
    temporary_name,
)
from antecede.topology import is_name
from helpers.identities import public_key as _key

_secret = hashlib.sha256(b"secret").hexdigest()
_file = f"""
[servers.s1]
keys = ["{_key(1)}"]
[clients.alice]
keys = ["{_key(2)}", {{ key = "{_key(3)}", expires = 1970-01-01T00:01:40Z }}]
names = ["alice-*"]
send = ["orders", "*@s1"]
receive = ["bank"]
subscribe = ["news"]
call = ["account.deposit", "log"]
limits = {{ rate = 10, connections = 2 }}
[operators.admin]
keys = ["{_key(4)}"]
tokens = ["sha256:{_secret}"]
operate = ["status", "dead-*"]
[anonymous]
operate = ["live"]
"""
_now = [0.0]


def _authoriser() -> Authoriser:
    _now[0] = 0.0
    return Authoriser(parse_access(_file), clock=lambda: _now[0])


_alice = Who("client", "alice", _key(2))
_admin = Who("operator", "admin", _key(4))
_s1 = Who("server", "s1", _key(1))


@pytest.mark.parametrize(
    ("who", "action", "name", "allowed"),
    [
        (_s1, "link", "s1", True),
        (_s1, "link", "s2", False),
        (_s1, "operate", "status", False),
        (_s1, "send", "orders", False),
        (_alice, "connect", "alice", True),
        (_alice, "connect", "alice-2", True),
        (_alice, "connect", "bob", False),
        (_alice, "connect", temporary_name("alice", "0123456789abcdef"), True),
        (_alice, "connect", temporary_name("bob", "0123456789abcdef"), False),
        (_alice, "connect", "temporary-client.0123456789abcdef", False),
        (_alice, "connect", "temporary-client.alice.eve.0123456789abcdef", False),
        (_alice, "send", "orders", True),
        (_alice, "send", "bob@s1", True),
        (_alice, "send", "bob@s2", False),
        (_alice, "send", "news", False),
        (_alice, "receive", "bank", True),
        (_alice, "receive", "news", True),
        (_alice, "receive", "orders", False),
        (_alice, "subscribe", "news", True),
        (_alice, "subscribe", "orders", False),
        (_alice, "call", "account.deposit", True),
        (_alice, "call", "account.withdraw", False),
        (_alice, "call", "log.append", True),
        (_alice, "operate", "status", False),
        (_alice, "link", "s1", False),
        (_admin, "operate", "status", True),
        (_admin, "operate", "dead-list", True),
        (_admin, "operate", "forget", False),
        (_admin, "send", "orders", False),
        (_admin, "connect", "admin", False),
        (ANONYMOUS, "operate", "live", True),
        (ANONYMOUS, "operate", "metrics", False),
        (ANONYMOUS, "send", "orders", False),
        (Who("client", "eve", _key(2)), "send", "orders", False),
    ],
)
def test_who_may_do_what(who: Who, action: str, name: str, allowed: bool) -> None:
    refusal = _authoriser().refusal(who, action, name)
    assert (refusal is None) is allowed
    if refusal is not None:
        assert refusal.code == "not-allowed"
        assert who.label in refusal.reason


def test_the_token_and_the_own_process_may_do_everything() -> None:
    for authoriser in (_authoriser(), Authoriser(token="t")):
        assert all(authoriser.allows(who, action, "x") for who in (TOKEN, LOCAL) for action in ACTIONS)


def test_hellos_without_a_proof() -> None:
    assert Authoriser().token_refusal("") is None
    assert Authoriser(token="t").token_refusal("t") is None
    wrong = Authoriser(token="t").token_refusal("u")
    assert wrong is not None
    assert wrong.code == "wrong-token"
    refused = _authoriser().token_refusal("")
    assert refused is not None
    assert refused.code == "proof-required"


def test_callers_of_pages() -> None:
    authoriser = _authoriser()
    admin = authoriser.page_caller("secret")
    assert admin is not None
    assert (admin.role, admin.name) == ("operator", "admin")
    assert authoriser.lapse(admin) is None
    assert authoriser.page_caller("") is ANONYMOUS
    assert authoriser.page_caller("guess") is None
    assert Authoriser(token="t").page_caller("") is TOKEN, "the one-token mode has no token for pages"


def test_what_lapses() -> None:
    authoriser = _authoriser()
    second = Who("client", "alice", _key(3))
    assert authoriser.lapse(second) is None
    _now[0] = 100.0
    assert "has expired" in str(authoriser.lapse(second))
    assert authoriser.lapse(_alice) is None
    authoriser.replace(parse_access(_file.replace(_key(2), _key(9))))
    lapsed = authoriser.lapse(_alice)
    assert lapsed is not None
    assert lapsed.code == "revoked"
    certified = Who("client", "carol", "x")
    for alone, lapses in (("true", False), ("false", True)):
        carol = f'[clients.carol]\ncertificates = ["x"]\ncertificate_alone = {alone}'
        authoriser.replace(parse_access(carol))
        assert (authoriser.lapse(certified) is not None) is lapses
    authoriser.replace(parse_access(""))
    assert authoriser.lapse(_admin) is not None
    assert authoriser.lapse(TOKEN) is None
    assert authoriser.lapse(LOCAL) is None


def test_names_of_temporary_clients_are_names() -> None:
    for identity in ("a", "a" * 30, "a" * 31, "a" * 64):
        name = temporary_name(identity, "0123456789abcdef")
        assert is_name(name)
        access = parse_access(f"[clients.{identity}]")
        assert Authoriser(access).allows(Who("client", identity), "connect", name)


def test_limits_of_an_identity() -> None:
    authoriser = _authoriser()
    assert authoriser.connections_max(_alice) == 2
    assert authoriser.connections_max(_admin) is None
    assert authoriser.rate(_admin) is None
    rate = authoriser.rate(_alice)
    assert rate is not None
    assert authoriser.rate(_alice) is rate, "all connections share it"
    assert [rate.take(1, 5, 1.0) for _ in range(11)] == [""] * 10 + ["more than 10 per second"]
    assert rate.take(1, 5, 1.2) == ""


def test_a_rate_of_bytes() -> None:
    rate = Rate(None, 100)
    assert rate.take(1, 1_000, 0.0) == "", "one that is larger than the limit is not stuck"
    assert rate.take(1, 1, 1.0) == "more than 100 bytes per second"
    assert rate.take(1, 1, 9.0) == "more than 100 bytes per second"
    assert rate.take(1, 1, 9.1) == ""


def test_attempts_of_an_address() -> None:
    attempts = Attempts(2.0, limits.addresses_watched_max)
    assert [attempts.take("a", 0.0) for _ in range(3)] == [True, True, False]
    assert attempts.take("b", 0.0)
    assert attempts.take("a", 1.0)
    few = Attempts(1.0, 2)
    for address in ("a", "b", "c"):
        assert few.take(address, 0.0)
    assert len(few._buckets) == 2


def test_the_audit_log_is_bounded() -> None:
    lines: list[str] = []
    now = [10.0]
    audit = Audit(lines.append, "s1", lambda: now[0])
    for number in range(100):
        audit.note(REFUSED, None, "127.0.0.1:9", code="not-proven", claims=f"client {number}")
    assert len(lines) == limits.audit_refusals_per_second
    audit.note("connected", _alice, "127.0.0.1:9", client="x" * 10_000)
    document = json.loads(lines[-1])
    assert document["refusals_left_out"] == 80
    assert (document["event"], document["role"], document["name"]) == ("connected", "client", "alice")
    assert len(document["client"]) == 400
    now[0] = 11.0
    audit.note(REFUSED, None, "127.0.0.1:9", code="not-proven")
    assert "refusals_left_out" not in json.loads(lines[-1])
    assert "\n" not in "".join(lines)


def test_keys_that_expire() -> None:
    """A key has expired at its time, not some minutes before; one with a valid successor need not be rotated."""
    keys = (Key(_key(1), 100.0), Key(_key(2), 200.0))
    now = [80.0]
    authoriser = Authoriser(Access(clients={"alice": Identity("client", "alice", keys)}), clock=lambda: now[0])

    def shown() -> list[tuple[bool, bool]]:
        expires: Any = authoriser.status()["expires"]
        return [(one["expired"], one["replaced"]) for one in expires]

    assert shown() == [(False, True), (False, False)]
    now[0] = 100.0
    assert shown() == [(True, True), (False, False)]
    now[0] = 200.0
    assert shown() == [(True, False), (True, False)]


def test_status() -> None:
    shown = _authoriser().status()
    assert shown["mode"] == "access-file"
    assert shown["digest"] == parse_access(_file).digest
    alice = {"role": "client", "name": "alice", "key": _key(3), "time": 100.0, "days": 0.0}
    assert shown["expires"] == [{**alice, "expired": False, "replaced": False}]
    assert Authoriser().status()["mode"] == "open"
    assert Authoriser(token="t").status()["mode"] == "token"

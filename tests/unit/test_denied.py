"""Publishes that are not allowed are refused in their turn; limits of addresses; the files of the audit log and of
access."""

import errno
import json
import logging
import os
import stat
import tracemalloc
from pathlib import Path

import pytest

from antecede.access import Access, AddressLimits, Authoriser, Identity, Key, Limits, Who, parse_access
from antecede.channel import Letter
from antecede.errors import AccessError, UnknownAgentError
from antecede.live.issuing import AccessText, find, table
from antecede.live.logs import AuditFile, ServerLog
from antecede.orders import parse
from antecede.server import Accepted, Admission, AgentServer, Denied, Plan, Published, Refused, Rights, with_forbidden
from antecede.topology import Domain, Topology
from helpers.identities import public_key


def _denied(number: int, count: int = 1) -> Denied:
    return Denied("c", number, count, "why", False, "not-allowed")


def test_a_denied_publish_is_refused_in_its_turn() -> None:
    server = AgentServer("s1", Plan(Topology([Domain("A", ("s1",))]), {"A": parse("pruned")}, {"a": "s1"}), 1)
    first = Published("c", 1, ("a",), "Word", b"\x80")
    step = server.step([first, _denied(2), Published("c", 3, ("a",), "Word", b"\x80"), _denied(4)], 0.0, 0)
    assert step.replies == [Accepted("c", 1), Refused("c", 2, "why", 1, False, "not-allowed")]
    assert len(server.engine.mailboxes["a"]) == 1, "what came after it must come again"
    step = server.step([_denied(2), Published("c", 2, ("a",), "Word", b"\x80"), _denied(1, 2), _denied(2, 3)], 0.0, 0)
    assert step.replies == [
        Refused("c", 2, "why", 1, False, "not-allowed"),
        Accepted("c", 2),
        Accepted("c", 2),
        Refused("c", 3, "why", 2, False, "not-allowed"),
    ]


def _rights(limits: Limits | None = None, **permissions: tuple[str, ...]) -> Rights:
    alice = Identity("client", "alice", (Key(public_key(1)),), **permissions, limits=limits or Limits())  # type: ignore[arg-type]

    def check(to: tuple[str, ...]) -> tuple[str, ...]:
        if "nobody" in to:
            raise UnknownAgentError("nobody")
        return tuple(name.removesuffix("@s1") for name in to)

    return Rights(Authoriser(Access(clients={"alice": alice})), Who("client", "alice", public_key(1)), check)


def _code(rights: Rights, to: tuple[str, ...], kind: str = "Word", now: float = 0.0) -> str:
    refusal = rights.refusal(to, kind, [b"x"], now)
    return "" if refusal is None else refusal.code


def test_rights_of_a_session() -> None:
    rights = _rights(send=("a", "b"), subscribe=("t",), call=("o.add",))
    for _ in range(2):
        assert _code(rights, ("a",)) == ""
        assert _code(rights, ("a@s1",)) == "", "the canonical form counts"
        assert _code(rights, ("a", "b")) == ""
        assert _code(rights, ("a", "c")) == "not-allowed", "all destinations must be allowed"
        assert _code(rights, ("a",), "Subscribe") == "not-allowed", "subscribing is a permission of its own"
        assert _code(rights, ("t",), "Subscribe") == ""
        assert _code(rights, ("t",), "Unsubscribe") == ""
        assert _code(rights, ("t",)) == "not-allowed"
        assert _code(rights, ("o()",), "add") == ""
        assert _code(rights, ("o()",), "remove") == "not-allowed"
        assert _code(rights, ("nobody",)) == "", "the machine refuses it, with its reason"


def test_the_memory_for_decisions_is_bounded() -> None:
    rights = _rights(send=("a*",), receive=("a*",))
    tracemalloc.start()
    for number in range(6_000):
        _code(rights, ("o()",), f"{number}".ljust(400, "x"))
        _code(rights, (f"a{number}".ljust(200, "x"), f"b{number}".ljust(200, "x")))
        rights.may_receive(Letter("1", f"{number}".ljust(200, "x"), ("x",), "W", b""))
    for number in range(20):
        assert _code(rights, (f"a{number}".ljust(1_000_000, "x"),)) == "", "the machine refuses it"
        assert _code(rights, ("o()",), f"{number}".ljust(1_000_000, "x")) == "", "the machine refuses it"
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 1.5 * 1024 * 1024


def test_rights_that_are_forgotten_are_decided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antecede.limits.permissions_cached_bytes_max", 2_000)
    rights = _rights(send=("a*",), receive=("a*",))
    for number in range(25):
        assert _code(rights, (f"a{number}",)) == ""
        assert _code(rights, (f"b{number}",)) == "not-allowed"
        assert rights.may_receive(Letter("1", f"a{number}", ("x",), "W", b""))
        assert not rights.may_receive(Letter("1", f"b{number}", ("x",), "W", b""))
        assert rights.may_receive(Letter("1", f"b{number}", ("x",), "W", b"", answers="?1"))
    assert _code(rights, tuple(f"b{number}" for number in range(10_000))) == "", "the machine refuses so many"


def test_limits_of_rate() -> None:
    rights = _rights(Limits(rate=2.0), send=("*",))
    assert [_code(rights, ("a",)) for _ in range(3)] == ["", "", "overloaded"]
    assert _code(rights, ("a",), now=1.0) == ""


@pytest.mark.parametrize(
    ("letters", "taken"),
    [
        (["a"], ["a"]),
        (["a", "b"], ["a", "X", "b"]),
        (["a", "b", "c"], ["a", "X", "b", "X2", "c"]),
        (["b"], []),
        (["a", "c"], []),
        (["a", "b", "c", "d"], []),
    ],
)
def test_letters_between_those_that_a_session_may_not_receive(letters: list[str], taken: list[str]) -> None:
    assert with_forbidden(["a", "X", "b", "X2", "c"], {"X", "X2"}, letters) == taken


def test_limits_of_an_address() -> None:
    admission = Admission()
    admission.limit_addresses(AddressLimits(connections=2, attempts=3.0))
    closed: list[str] = []

    def enter(address: str, now: float = 0.0) -> bool:
        before = len(closed)
        slots.append(admission.enter(address, lambda reason, code: closed.append(code), now))
        return len(closed) == before

    slots: list = []  # type: ignore[type-arg]
    assert [enter("a"), enter("a"), enter("a")] == [True, True, False]
    assert enter("b"), "another address has its own limits"
    assert not enter("a"), "too many attempts"
    assert closed == ["too-many-from-address"] * 2
    slots[0].proved(server=False)
    assert not enter("a", 5.0), "a known client still counts"
    slots[0].left()
    slots[1].proved(server=True)
    assert enter("a", 6.0)
    assert enter("a", 6.0), "a server does not count"
    for slot in slots:
        slot.left()
    assert admission.strangers == admission.clients == 0
    assert not admission._connected


def test_the_audit_file_has_a_bounded_size(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "audit.jsonl"
    file = AuditFile(path, ServerLog("s1"), bytes_max=100)
    for number in range(20):
        file.write(json.dumps({"number": number}))
    older = path.with_name("audit.jsonl.1").read_text()
    assert path.stat().st_size <= 100
    assert len(older) <= 100
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    numbers = [json.loads(line)["number"] for line in (older + path.read_text()).splitlines()]
    assert numbers == list(range(numbers[0], 20)), "the newest are kept"
    with caplog.at_level(logging.ERROR):
        broken = AuditFile(tmp_path / "no" / "folder", ServerLog("s1"))
        broken.write("1")
        broken.write("2")
    assert [record.message for record in caplog.records] == ["audit-failed"], "it is logged once"


def test_a_full_disk_leaves_whole_lines_in_the_audit_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    file = AuditFile(path, ServerLog("s1"))
    file.write('{"number": 1}')
    real = os.write
    with caplog.at_level(logging.ERROR), monkeypatch.context() as full:
        full.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:5]))
        file.write('{"number": 2}')
        full.setattr(os, "write", _no_space)
        file.write('{"number": 3}')
    assert [record.message for record in caplog.records] == ["audit-failed"], "it is logged once"
    assert "No space left" in caplog.records[0].fields["reason"]  # type: ignore[attr-defined]
    file.write('{"number": 4}')
    assert [json.loads(line)["number"] for line in path.read_text().splitlines()] == [1, 4]


def _no_space(descriptor: int, data: bytes) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


_edited = f"""# A comment.
[clients.alice]   # hers
# Her keys.
keys = [
  "{public_key(1)}",   # the first
]
send = ["orders"]  # only these
[clients."a.b"]
send = []
[clients.zeno]
keys = ["{public_key(5)}"]
"""


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_file_that_was_edited_by_hand_keeps_its_comments(tmp_path: Path, line_end: str) -> None:
    path = tmp_path / "access.toml"
    target = tmp_path / "elsewhere.toml"
    target.write_bytes(_edited.replace("\n", line_end).encode())
    target.chmod(0o640)
    path.symlink_to(target)
    text = AccessText(path)
    alice = find(text.access, "alice")
    text.set_keys(alice, (*alice.keys, Key(public_key(2), 1801353600.0)))
    text.set_keys(find(text.access, "client/a.b"), (Key(public_key(3)),))
    text.add(Identity("operator", "alice", (Key(public_key(4)),), operate=("*",)))
    text.write()
    assert path.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    written = path.read_bytes().decode()
    assert written.count("\n") == written.count(line_end)
    for kept in ("# A comment.", "# hers", "# Her keys.", "# only these"):
        assert kept in written
    access = parse_access(written)
    assert [key.public for key in access.clients["alice"].keys] == [public_key(1), public_key(2)]
    assert access.clients["alice"].keys[1].expires == 1801353600.0
    assert access.clients["alice"].send == ("orders",)
    assert [key.public for key in access.clients["a.b"].keys] == [public_key(3)]
    with pytest.raises(AccessError, match="several identities 'alice': expected client/alice or operator/alice"):
        find(access, "alice")
    with pytest.raises(AccessError, match="no identity 'zoe'"):
        find(access, "zoe")
    with pytest.raises(AccessError, match="client alice exists already"):
        text.add(alice)


def test_a_file_that_cannot_be_edited_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    path.write_text(f'[clients]\nalice = {{ keys = ["{public_key(1)}"] }}\n')
    text = AccessText(path)
    with pytest.raises(AccessError, match=r"cannot edit clients\.alice: set keys = \[\] by hand"):
        text.set_keys(find(text.access, "alice"), ())
    assert text.access.clients["alice"].keys


def test_a_table_is_read_as_it_was_written() -> None:
    identity = Identity("client", "a.b", (Key(public_key(1)),), ("spiffe://x/client/a.b",), send=("*",), call=("o.*",))
    assert parse_access(table(identity)).clients["a.b"] == identity

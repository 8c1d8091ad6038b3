"""Bugs planted into proofs, permissions and revocation, as they ship: the worlds with intruders must notice each."""

import pytest

from antecede import wire
from antecede.access import TOKEN, Answering, Authoriser, Keyring, Who, proof, signed
from antecede.channel import Senders
from antecede.server import Admission, Entry, Incoming, Rights
from helpers.planted import caught
from worlds.intruders import Intruded

Patch = pytest.MonkeyPatch
_intruders = Intruded(intruders=12, resets=2, seconds=0.3)


def test_nothing_is_found_without_a_bug() -> None:
    with pytest.raises(AssertionError, match="not caught in 15 schedules; seen instead: \\[\\]"):
        caught(15, faults=_intruders)


def test_a_signature_that_is_not_checked(monkeypatch: Patch) -> None:
    monkeypatch.setattr(
        Keyring, "proven_by", lambda self, identity, *_: identity.keys[0].public if identity and identity.keys else ""
    )
    caught(300, "an intruder was accepted: a server with another key", faults=_intruders)


def test_a_proof_without_the_nonce_of_the_server(monkeypatch: Patch) -> None:
    """And without the channel, which a repetition does not have either."""

    def unsalted(end: str, introduction: wire.Introduce, server: str, nonce: bytes, binding: bytes) -> bytes:
        return signed(end, introduction, server, b"", b"")

    monkeypatch.setattr(proof, "signed", unsalted)
    caught(300, "an intruder was accepted: a repeated proof", faults=_intruders)


def test_both_ends_sign_the_same(monkeypatch: Patch) -> None:
    """Then the server's own signature is a proof. The server itself is not among its peers, so a correct server refuses
    this one by the topology; without that rule it is accepted."""

    def alike(end: str, introduction: wire.Introduce, server: str, nonce: bytes, binding: bytes) -> bytes:
        return signed("end", introduction, server, nonce, binding)

    monkeypatch.setattr(proof, "signed", alike)
    checked: list[Who] = []
    real = Answering.check

    def check(self: Answering, part: wire.Proof) -> Who:
        who = real(self, part)
        if isinstance(who, Who) and who.role == "server" and self.introduction.name == self._keyring.name:
            checked.append(who)
            raise AssertionError("a server proved to be itself")
        return who  # type: ignore[return-value]

    monkeypatch.setattr(Answering, "check", check)
    caught(300, "a server proved to be itself", faults=_intruders)
    assert checked


def test_names_that_are_not_bound_to_identities(monkeypatch: Patch) -> None:
    real = Authoriser.allows
    monkeypatch.setattr(
        Authoriser, "allows", lambda self, who, action, name: action == "connect" or real(self, who, action, name)
    )
    caught(300, "an intruder was accepted: a client with another client's name", faults=_intruders)


def test_a_role_that_is_not_checked(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Incoming, "_identify", lambda self, role, token: self._who or TOKEN)
    monkeypatch.setattr(Authoriser, "allows", lambda self, who, action, name: True)
    caught(300, "a client as an operator", "a client as a server", faults=_intruders)


def test_a_hello_without_a_proof_that_is_accepted(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Authoriser, "token_refusal", lambda self, token: None)
    caught(300, "without a proof", faults=_intruders)


def test_decisions_that_survive_a_reload(monkeypatch: Patch) -> None:
    def forget(self: Rights) -> None:
        if not hasattr(self, "_granted"):
            real(self)

    real = Rights.forget
    monkeypatch.setattr(Rights, "forget", forget)
    caught(300, "may not send to any more", faults=_intruders)


def test_a_session_that_survives_the_revocation_of_its_key(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Entry, "review", lambda self: None)
    caught(300, "is still connected, although her key was revoked", faults=_intruders)


def test_an_address_that_has_any_number_of_connections(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Admission, "_excess", lambda self, address, now: "")
    caught(300, "connections from one address, which may have", faults=_intruders)


def test_letters_of_agents_that_live_elsewhere(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Senders, "permitted", lambda self, consumer, source, letters, faults: letters)
    caught(300, "of traitor@", faults=_intruders)

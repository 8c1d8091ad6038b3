"""The proof of identity: what each end signs, and what is worth nothing elsewhere."""

from random import Random
from typing import Any, cast

import msgspec
import pytest

from antecede import limits, wire
from antecede.access import Answering, Authoriser, Dialing, Identity, Key, Keyring, Refusal, Who
from antecede.errors import AntecedeError
from antecede.server import ClientLine, Connection, LineOwner
from antecede.simulator.servers.network import Identities, SimulatedKey


class _Channel:
    def __init__(self, binding: bytes = b"tls", certified: tuple[str, ...] = ()) -> None:
        self.binding = binding
        self.certified = certified


def _known(**of_alice: Any) -> Identities:
    known = Identities(Random(1))
    known.add("server", "s1")
    known.add("server", "s2")
    known.add("client", "alice")
    known.set(msgspec.structs.replace(known.access.clients["alice"], **of_alice))
    return known


def _prove(
    known: Identities,
    dialing: Keyring | None = None,
    *,
    to: str = "",
    near: _Channel | None = None,
    far: _Channel | None = None,
    introduced: dict[str, Any] | None = None,
    challenged: dict[str, Any] | None = None,
) -> Who | Refusal:
    """Let two ends prove their identities; return what the server finds, or the first refusal."""
    dialer = Dialing(dialing or known.keyring("client", "alice"), near or _Channel(), to)
    introduction = msgspec.structs.replace(dialer.introduction, **introduced or {})
    answerer = Answering(known.keyring("server", "s1"), Authoriser(known.access), far or _Channel(), introduction)
    challenge = answerer.challenge()
    if isinstance(challenge, Refusal):
        return challenge
    proof = dialer.answer(msgspec.structs.replace(challenge, **challenged or {}))
    return proof if isinstance(proof, Refusal) else answerer.check(proof)


def _code(found: Who | Refusal) -> str:
    return found.code if isinstance(found, Refusal) else "proven"


def test_both_ends() -> None:
    known = _known()
    who = _prove(known, to="s1")
    assert who == Who("client", "alice", known.access.clients["alice"].keys[0].public)


def test_another_channel() -> None:
    """A relay that ends TLS on both sides has two channels."""
    assert _code(_prove(_known(), far=_Channel(b"other"))) == "not-proven"


@pytest.mark.parametrize("field", ["role", "name", "nonce"])
def test_an_introduction_that_was_changed_on_the_way(field: str) -> None:
    other: Any = {"role": "operator", "name": "bob", "nonce": bytes(32)}[field]
    assert _code(_prove(_known(), introduced={field: other})) == "not-proven"


@pytest.mark.parametrize("field", ["server", "nonce", "signature"])
def test_a_challenge_that_was_changed_on_the_way(field: str) -> None:
    other: Any = {"server": "s2", "nonce": bytes(32), "signature": bytes(32)}[field]
    assert _code(_prove(_known(), challenged={field: other})) == "not-proven"


def test_another_server_than_was_dialed() -> None:
    assert _code(_prove(_known(), to="s2")) == "wrong-server"
    dialer = Dialing(_known().keyring("client", "alice"), _Channel(), "s2")
    assert _code(dialer.answer(wire.Challenge("s1", bytes(32), b""))) == "wrong-server"  # type: ignore[arg-type]


def test_parts_that_are_not_a_challenge() -> None:
    dialer = Dialing(_known().keyring("client", "alice"), _Channel())
    assert _code(dialer.answer(wire.Ping())) == "no-proof"  # type: ignore[arg-type]
    assert _code(_prove(_known(), introduced={"nonce": b"short"})) == "bad-introduction"
    assert _code(_prove(_known(), introduced={"role": "king"})) == "bad-introduction"


def test_a_server_that_the_client_does_not_know() -> None:
    known = _known()
    stranger = Keyring("client", "alice", known.new_key(), known.verify, lambda: bytes(32), lambda: 0.0, dict)
    assert _code(_prove(known, stranger)) == "not-proven"


def test_another_key_and_two_keys() -> None:
    known = _known()
    spare = known.new_key()
    assert _code(_prove(known, known.keyring("client", "alice", spare))) == "not-proven"
    old = known.access.clients["alice"].keys
    known.set(msgspec.structs.replace(known.access.clients["alice"], keys=(*old, Key(spare.public))))
    assert _code(_prove(known, known.keyring("client", "alice", spare))) == "proven"
    assert _code(_prove(known)) == "proven", "both are valid during a rotation"
    known.set(msgspec.structs.replace(known.access.clients["alice"], keys=(Key(spare.public),)))
    assert _code(_prove(known)) == "not-proven"


class _Both:
    """The owner of two keys."""

    def __init__(self, *keys: SimulatedKey) -> None:
        self._keys = keys

    def sign(self, content: bytes) -> bytes:
        return b"".join(key.sign(content) for key in self._keys)


def test_during_a_rotation_an_identity_is_proved_to_everybody_who_knows_one_of_its_keys() -> None:
    known, now = _known(), [0.0]
    old, new = known.new_key(), known.new_key()
    nonce = lambda: bytes(32)  # noqa: E731
    server = Keyring("server", "s1", _Both(new, old), known.verify, nonce, lambda: now[0], dict)

    def proved(*keys: Key) -> str:
        servers = {"s1": Identity("server", "s1", keys)}
        client = Keyring("client", "alice", known.new_key(), known.verify, nonce, lambda: now[0], lambda: servers)
        dialing = Dialing(client, _Channel())
        challenge = Answering(server, Authoriser(known.access), _Channel(), dialing.introduction).challenge()
        assert isinstance(challenge, wire.Challenge)
        assert len(challenge.signature) <= limits.proof_bytes_max
        dialing.answer(challenge)
        return "" if dialing.who is None else dialing.who.by

    assert proved(Key(old.public)) == old.public, "an earlier list of servers"
    assert proved(Key(old.public), Key(new.public)) == new.public, "it will be valid for longer"
    assert proved(Key(new.public)) == new.public, "the old key is revoked"
    assert proved(Key(known.new_key().public)) == ""
    now[0] = 10.0
    assert proved(Key(old.public, 9.0)) == "", "the old key has expired"
    assert proved(Key(old.public, 9.0), Key(new.public)) == new.public


class _Owner:
    """The owner of a line, and its connection."""

    name = "alice"
    binding, certified, full = b"", (), False

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.sent: list[wire.Part] = []

    def welcomed(self, address: str, last: int) -> None:
        pass

    def gone(self, error: AntecedeError) -> None:
        self.ended.append(str(error))

    def send(self, parts: list[wire.Part]) -> None:
        self.sent += parts

    def trust(self, *, server: bool) -> None:
        pass

    def close(self, reason: str, final: bool = False, code: str = "") -> None:
        pass


def _challenge(known: Identities, owner: _Owner) -> wire.Challenge:
    """Return the proof of server s1 for the client's last introduction."""
    introduction = owner.sent[-1]
    assert isinstance(introduction, wire.Introduce)
    answerer = Answering(known.keyring("server", "s1"), Authoriser(known.access), _Channel(b""), introduction)
    challenge = answerer.challenge()
    assert isinstance(challenge, wire.Challenge)
    return challenge


@pytest.mark.parametrize("welcomed", [False, True])
@pytest.mark.parametrize(
    "bye", [wire.Bye("refused", True, "replaced"), wire.Bye("moved", False, "moved", "tcp://192.0.2.1:1")]
)
def test_a_client_obeys_nothing_before_the_proof(bye: wire.Bye, welcomed: bool) -> None:
    """It obeys the same part from the real server."""
    known, owner = _known(), _Owner()
    keyring = known.keyring("client", "alice")
    line = ClientLine(cast(LineOwner, owner), "", lambda: None, lambda: 0.0, lambda: 0.5, keyring=keyring)

    def opened(now: float) -> None:
        assert line.dials(now)
        line.opened(cast(Connection, owner))

    line.start(0.0)
    if welcomed:
        opened(0.0)
        line.received([_challenge(known, owner)])
        line.received([wire.Welcome("s1", "alice@s1", 0)])
        line.closed("", 0.0)
    opened(100.0)
    line.received([bye])
    line.closed("", 100.0)
    assert (line.trouble, line.moved_to, owner.ended) == (bye.reason, "", [])
    if welcomed:
        opened(200.0)
        line.received([wire.Challenge("s1", bytes(32), bytes(64))])
        line.closed("", 200.0)
        assert owner.ended == []
    opened(300.0)
    line.received([_challenge(known, owner)])
    line.received([bye])
    line.closed("", 300.0)
    assert (line.moved_to, owner.ended) == (bye.at, [bye.reason] * bye.final)


@pytest.mark.parametrize("replaced", [True, False])
@pytest.mark.parametrize("code", ["not-proven", "revoked", "unproven-server"])
def test_a_client_whose_credentials_were_replaced_dials_again(code: str, replaced: bool) -> None:
    known, owner, renewals = _known(), _Owner(), [False, replaced]
    keyring = known.keyring("client", "alice")
    keyring.renew = lambda code: renewals.pop()
    line = ClientLine(cast(LineOwner, owner), "", lambda: None, lambda: 0.0, lambda: 0.5, keyring=keyring)
    line.start(0.0)

    def refused(now: float) -> None:
        assert line.dials(now)
        line.opened(cast(Connection, owner))
        if code == "unproven-server":
            # What follows such a part is ignored.
            line.received([wire.Challenge("s9", bytes(32), b"")])
            line.received([wire.Challenge("s9", bytes(32), b"")])
        else:
            line.received([_challenge(known, owner)])
            line.received([wire.Bye("refused", True, code)])
        line.closed("", now)

    refused(0.0)
    assert (line.dial_at is not None, len(owner.ended)) == ((True, 0) if replaced else (False, 1))
    if replaced:
        # They are the same now as when they were read.
        assert line.dial_at is not None
        refused(line.dial_at)
        assert (line.dial_at, len(owner.ended)) == (None, 1)
    else:
        assert renewals == [False]


def test_an_expired_key() -> None:
    known = _known()
    key = known.access.clients["alice"].keys[0].public
    for expires, code in ((0.0, "not-proven"), (0.1, "proven")):
        known.set(msgspec.structs.replace(known.access.clients["alice"], keys=(Key(key, expires),)))
        assert _code(_prove(known)) == code


def test_names_in_certificates() -> None:
    """A certificate that names somebody else is refused, even with the right key. Without keys, the certificate is the
    proof; without TLS there is none."""
    known = _known(certificates=("spiffe://shop/client/alice",))
    alice = _Channel(certified=("spiffe://shop/client/alice", "other"))
    bob = _Channel(certified=("spiffe://shop/client/bob",))
    assert _code(_prove(known, far=alice)) == "proven"
    assert _code(_prove(known, far=bob)) == "not-proven"
    assert _code(_prove(known)) == "proven", "without TLS, the key alone"
    known = _known(certificates=("spiffe://shop/client/alice",), keys=())
    assert _code(_prove(known, far=alice)) == "not-proven", "a revoked key is not replaced by the certificate"
    known = _known(certificates=("spiffe://shop/client/alice",), keys=(), certificate_alone=True)
    assert _prove(known, far=alice) == Who("client", "alice", "spiffe://shop/client/alice")
    assert _code(_prove(known, far=bob)) == "not-proven"
    assert _code(_prove(known)) == "not-proven"


def test_an_identity_without_anything() -> None:
    assert _code(_prove(_known(keys=()))) == "not-proven"
    keyring = _known().keyring("client", "alice")
    assert keyring.proven_by(None, b"", b"", _Channel()) == ""
    assert keyring.proven_by(Identity("client", "x"), b"", b"", _Channel()) == ""


def test_refusals_do_not_say_which_names_exist() -> None:
    known = _known()
    spare = known.new_key()
    refusals = [_prove(known, known.keyring("client", name, spare)) for name in ("alice", "zoe")]
    reasons = [one.reason for one in refusals if isinstance(one, Refusal)]
    assert reasons[0] == reasons[1].replace("zoe", "alice")
    assert "access file lists for this name" in reasons[0]

"""Incoming connections: strangers make way, clients and servers keep their places, unfinished frames are bounded."""

import resource
from typing import Any

import pytest

from antecede import limits
from antecede.access import AddressLimits
from antecede.errors import UsageError
from antecede.live import server
from antecede.server import Admission, ConnectionSlot


class _Dropped(list[tuple[int, str]]):
    """Which connections were closed, and the code."""

    def entered(self, admission: Admission, count: int, address: str | None = None) -> list[ConnectionSlot]:
        return [self._enter(admission, number, address or f"10.0.0.{number}") for number in range(count)]

    def _enter(self, admission: Admission, number: int, address: str) -> ConnectionSlot:
        return admission.enter(address, lambda reason, code: self.append((number, code)))


def test_the_oldest_stranger_makes_way() -> None:
    admission, dropped = Admission(), _Dropped()
    dropped.entered(admission, limits.strangers_max)
    assert not dropped
    dropped.entered(admission, 1, "elsewhere")
    assert dropped == [(0, "too-many-strangers")]
    assert admission.strangers == limits.strangers_max
    assert admission.dropped == 1


def test_one_address_uses_up_its_own_places() -> None:
    admission, dropped = Admission(), _Dropped()
    dropped.entered(admission, 100)
    dropped.entered(admission, limits.strangers_address_max, "here")
    assert not dropped
    dropped.entered(admission, 1, "here")
    assert dropped == [(0, "too-many-strangers")], "the oldest of that address"
    assert admission.strangers == 100 + limits.strangers_address_max


def test_an_ipv6_network_of_one_host_is_one_address() -> None:
    admission = Admission()
    admission.limit_addresses(AddressLimits(connections=2))
    closed: list[str] = []
    for address in (
        *("2001:db8::1", "2001:db8:0:0:1::1", "2001:db8::ffff", "2001:db8:0:1::1"),
        *("::ffff:192.0.2.1", "192.0.2.1", "::ffff:192.0.2.2", "192.0.2.1", "fe80::1%eth0"),
    ):
        admission.enter(address, lambda reason, code, address=address: closed.append(address))  # type: ignore[misc]
    assert closed == ["2001:db8::ffff", "192.0.2.1"]


def test_who_is_known_is_not_closed_for_a_stranger() -> None:
    admission, dropped = Admission(), _Dropped()
    known = dropped.entered(admission, 1_000, "here")[-limits.strangers_address_max :]
    dropped.clear()
    for slot in known:
        slot.proved(server=False)
    assert admission.clients == limits.strangers_address_max, "many clients of one host"
    dropped.entered(admission, 5_000, "here")
    assert len(dropped) == 5_000 - limits.strangers_address_max
    assert admission.clients == limits.strangers_address_max
    for slot in known:
        slot.left()
        slot.left()
    assert admission.clients == 0


def test_places_for_clients_are_bounded_and_servers_have_their_own() -> None:
    admission, dropped = Admission(connections_max=100, servers=10), _Dropped()
    assert (admission.strangers_max, admission.clients_max) == (25, 65)
    for number in range(65):
        assert not admission.full
        dropped.entered(admission, 1, f"client{number}")[0].proved(server=False)
    assert admission.full
    dropped.entered(admission, 1)[0].proved(server=True)
    assert admission.clients == 65
    assert not dropped


def test_unfinished_frames_are_bounded_for_each_address() -> None:
    admission, dropped = Admission(), _Dropped()
    slots = dropped.entered(admission, 4, "here")
    piece = limits.unfinished_address_bytes_max // 4
    for slot in slots:
        slot.set_unfinished(piece)
    assert not dropped
    slots[0].set_unfinished(piece + 1)
    assert dropped == [(0, "too-much-unfinished")], "the frame that began first"
    assert admission.unfinished_bytes == 3 * piece
    slots[1].set_unfinished(0)
    slots[1].set_unfinished(1)
    slots[3].set_unfinished(3 * piece + 1)
    assert dropped[1:] == [(2, "too-much-unfinished")], "not the one that began again"


def test_unfinished_frames_are_bounded_in_all() -> None:
    admission, dropped = Admission(), _Dropped()
    slots = dropped.entered(admission, 5)
    for slot in slots[:4]:
        slot.set_unfinished(limits.unfinished_bytes_max // 4)
    assert not dropped
    slots[4].proved(server=True)
    slots[4].set_unfinished(limits.frame_bytes_max)
    assert not dropped, "those of servers don't count"
    slots[3].set_unfinished(limits.unfinished_bytes_max // 4 + 1)
    assert dropped == [(0, "too-much-unfinished")]
    for slot in slots:
        slot.left()
    assert (admission.unfinished_bytes, admission.strangers) == (0, 0)


def test_connections_stay_below_the_limit_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = [1_024, 4_096]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(allowed))

    def set_(_: int, pair: Any) -> None:
        allowed[:] = pair

    monkeypatch.setattr(resource, "setrlimit", set_)
    assert server.connections_possible(4) == 1_024 - limits.descriptors_reserved - 4
    server.raise_limit()
    assert allowed == [4_096, 4_096]
    allowed[:] = [1_024, resource.RLIM_INFINITY]
    server.raise_limit()
    assert allowed[0] == limits.descriptors_wanted
    assert server.connections_possible(4) == limits.connections_max
    server.raise_limit()
    assert allowed[0] == limits.descriptors_wanted
    needed = limits.descriptors_reserved + 4 + 32
    allowed[:] = [needed, needed]
    assert server.connections_possible(4) == 32
    allowed[:] = [needed - 1, needed - 1]
    with pytest.raises(UsageError, match=f"may open only {needed - 1} files, but needs {needed}"):
        server.connections_possible(4)

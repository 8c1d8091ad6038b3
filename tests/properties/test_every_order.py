"""Every order, with every option that changes what it does, judged in four ways:

* **small scopes**: the explorer plays all runs of a few members and messages;
* **schedules**: random runs of larger groups, on the bare network and on links with losses, crashes and partitions;
* **the kit** that authors of orders use (:func:`antecede.testing.check_order`): stamps, snapshots and hostile bytes;
* **properties** of random runs: held messages have reasons, and lies of others break no step.

A new order needs one line in ``SCOPES``. ``ANTECEDE_SEEDS=100000`` makes the schedules a campaign.
"""

from random import Random
from typing import Any

import msgspec
import pytest

from antecede.errors import StampError
from antecede.messages import COPY, Effects, Message, Packet, Send, mask_of
from antecede.orders import Order, names, parse
from antecede.simulator.explorer import explore
from antecede.simulator.schedules import play
from antecede.testing import check_order

Scope = tuple[int, int, str, dict[str, bool]]


def _scope(processes: int, messages: int, mode: str = "unicast", **options: bool) -> Scope:
    return processes, messages, mode, options


_twice = _scope(3, 2, duplicates=True)
_in_sequence = _scope(3, 3, fifo_links=True)
_stamped = (
    _scope(3, 4, to_self=True),
    _scope(3, 4, "multicast"),
    _scope(3, 3, "multicast", to_self=True),
    _scope(4, 3),
)
"""Orders that send no packets of their own have few states."""
_talkative = (_scope(3, 3, to_self=True), _scope(3, 2, "multicast", to_self=True))

SCOPES: dict[str, tuple[Scope, ...]] = {
    "none": (*_stamped, _in_sequence),
    "fifo": (*_stamped, _twice),
    "matrix": (*_stamped, _twice, _in_sequence),
    "updates": (*_stamped, _twice, _in_sequence),
    "vector": (_scope(3, 4, "broadcast", to_self=True), _scope(4, 3, "broadcast")),
    "pruned": (*_stamped, _twice, _in_sequence),
    "direct": (*_stamped, _twice, _in_sequence),
    "buffer": (*_talkative, _in_sequence),
    "buffer:pipelined=true": (*_talkative, _twice),
    "buffer:multicast=hold-delivery": _talkative,
    "buffer:multicast=hold-delivery,pipelined=true": (*_talkative, _twice),
    "synchronous": (*_talkative, _twice),
    "coordinator": (*_talkative, _twice),
    "coordinator:member=1": (_twice,),
    "token": (*_talkative, _twice, _in_sequence),
    # Every message concerns everybody six times.
    "lamport": (_scope(3, 3), _scope(3, 2, "multicast", to_self=True)),
    "skeen": (*_talkative, _twice),
    "skeen:causal=true": _talkative,
    "objects": _talkative,
    "objects:clocks=asked": (_scope(3, 2, to_self=True),),
}

every_order = pytest.mark.parametrize("order", SCOPES)


def test_no_order_is_left_out() -> None:
    assert {order.partition(":")[0] for order in SCOPES} == set(names())


@pytest.mark.parametrize(("order", "scope"), [(order, scope) for order, scopes in SCOPES.items() for scope in scopes])
def test_no_run_of_a_small_scope_breaks_it(order: str, scope: Scope) -> None:
    processes, messages, mode, options = scope
    result = explore(order, processes, messages, mode, **options)
    assert result.violation is None, result.violation.scenario
    assert result.states > messages


@every_order
def test_random_schedules_do_not_break_it(order: str, seeds: int) -> None:
    # A schedule takes half a millisecond on the bare network, where most other tests' seeds take much longer.
    for seed in range(10 * seeds):
        outcome = play(parse(order), seed)
        assert not outcome.findings, str(outcome)


@every_order
def test_loss_crashes_and_partitions_do_not_break_it(order: str, seeds: int) -> None:
    for seed in range(1_000_000, 1_000_000 + seeds // 2):
        outcome = play(parse(order), seed, faults=True)
        assert not outcome.findings, str(outcome)


@every_order
def test_it_passes_the_kit(order: str) -> None:
    checked = check_order(order, schedules=3, states=1_000)
    assert checked.schedules == 3
    assert checked.packets > 100
    assert checked.snapshots
    if parse(order).name != "none":
        assert checked.forgeries > 1_000


class _Group:
    """Members of one order, and packets on their way that arrive in any sequence."""

    def __init__(self, order: str, members: int, seed: object) -> None:
        self.spec = parse(order)
        self.random = Random(f"{order} {seed}")
        self.orders: list[Order] = [self.spec.create(me, members) for me in range(members)]
        self.air: list[Packet] = []
        self.sent = 0

    def send(self) -> None:
        members = len(self.orders)
        source = self.random.randrange(members)
        to: list[int] = self.random.sample(range(members), self.random.randint(1, members))
        if "broadcast" in self.spec.kind.needs:
            to = list(range(members))
        elif self.spec.options.get("pipelined") and members > 3:
            # What is pipelined is what goes to one receiver, one after the other.
            to = [0]
        self.sent += 1
        self.take(self.orders[source].send(Message(f"m{self.sent}", source, mask_of(to))))

    def take(self, effects: Effects) -> None:
        self.air += [effect.packet for effect in effects if isinstance(effect, Send)]

    def packet(self) -> Packet:
        return self.air.pop(self.random.randrange(len(self.air)))


@every_order
@pytest.mark.parametrize("seed", range(8))
def test_every_held_message_has_a_reason(order: str, seed: int) -> None:
    group = _Group(order, 4, seed)
    held = unposted = 0
    while group.sent < 60 or group.air:
        if group.sent < 60 and (not group.air or group.random.random() < 0.4):
            group.send()
        else:
            packet = group.packet()
            group.take(group.orders[packet.target].receive(packet)[1])
        for one in group.orders:
            explained = list(one.explain_held())
            assert sorted(message.id for message, _ in explained) == sorted(message.id for message in one.held())
            for message, reasons in explained:
                assert reasons, f"{order} holds {message.id} and does not say why"
                assert all(0 <= member < 4 and what for member, what in reasons)
                held += 1
            if one.unposted():
                assert one.explain_unposted(), f"{order} lets messages wait and does not say why"
                unposted += 1
    assert not any(one.held() or one.unposted() for one in group.orders)
    if group.spec.name not in ("none", "synchronous", "buffer"):
        assert held, "nothing was held: this run shows nothing"
    if order in ("buffer", "token", "synchronous", "skeen:causal=true"):
        assert unposted, "nothing had to wait: this run shows nothing"


@every_order
def test_lies_about_stamps_break_no_step(order: str) -> None:
    """Whatever decoding lets through has one encoding, and can be received, saved and followed by honest packets."""
    refused = 0
    for seed in range(30):
        group = _Group(order, 3, seed)
        random = group.random
        for _ in range(25):
            group.send()
            for _ in range(min(random.randrange(3), len(group.air))):
                packet = group.packet()
                receiver = group.orders[packet.target]
                honest = group.orders[packet.source].encode(packet)
                kind = random.choice((COPY, packet.kind, *receiver.controls))
                refused += _read(receiver, packet, kind, random.randrange(3), _changed(honest, random)) is None
                source = packet.source if random.random() < 0.8 else random.randrange(3)
                data = bytearray(honest)
                if data and random.random() < 0.3:
                    data[random.randrange(len(data))] = random.choice((0, 1, 2, 3, 5, 127))
                arrived = _read(receiver, packet, packet.kind, source, bytes(data))
                if arrived is None:
                    continue
                group.take(receiver.receive(arrived)[1])
                group.orders[packet.target] = restored = group.spec.create(packet.target, 3)
                restored.restore(receiver.snapshot())
    assert refused


def _changed(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random.randint(1, 3)):
        at = random.randint(0, len(changed))
        changed[at : at + random.randint(0, 2)] = random.randbytes(random.randint(0, 2))
    return bytes(changed)


def _read(order: Order, packet: Packet, kind: str, source: int, data: bytes) -> Packet | None:
    """Return the packet with the stamp that these bytes are, or None if the order refuses them."""
    try:
        stamp: Any = order.decode(kind, source, data)
    except StampError:
        return None
    read = msgspec.structs.replace(packet, kind=kind, source=source, stamp=stamp)
    assert order.encode(read) == data, "two encodings of one stamp"
    assert order.size(read) == len(data)
    return read

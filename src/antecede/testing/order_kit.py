"""The conformance kit for orders: it checks everything that a server, the simulator and the explorer rely on.

    check_order(MyOrder)

An order passes if it keeps its own promises. The kit has several stages, each with one requirement. If an order breaks
a requirement, the error message states this requirement in one sentence. The stages are:

* **declaration**: the class has a name and a source (a paper), its guarantees and needs are among those that the kit
  knows, and an instance can be created.
* **effects**: a step (one call of the order) sends and delivers nothing before its changes are durable.
* **stamps**: a stamp (the order's control information on a packet) is hashable and never changes. It can be converted
  to bytes and back, and ``size`` is the length of these bytes.
* **hostile bytes**: for any bytes, ``decode`` raises :class:`~antecede.errors.StampError` or returns a stamp. The
  encoding of this stamp must be exactly these bytes, and no later step may fail because of the stamp.
* **clones**: ``load`` copies what ``dump`` returns, so that an order and its clone share nothing that changes.
* **snapshots**: an order that is restored in the middle of a run continues exactly as the original does.
* **small scopes** (:mod:`antecede.simulator.explorer`): in every possible run with few members and messages, the
  guarantees hold, and each message is delivered once. (A search of too many states ends early.) A
  failure is shown as a scenario file for ``antecede play``.
* **schedules** (:mod:`antecede.simulator.schedules`): the same requirement in random runs with larger groups, on
  networks that reorder and repeat packets, and on links with losses and crashes.

The project's tests run this kit on the project's own orders, which must pass. The tests also run it on orders with
deliberate errors, which must fail.
"""

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any, NoReturn

import msgspec

from antecede.errors import AntecedeError, ScopeTooLargeError, SnapshotError, StampError
from antecede.messages import COPY, Deliver, Effects, Message, Packet, Persist, Send, Verdict
from antecede.orders import OrderSpec, parse
from antecede.orders.contract import Order
from antecede.orders.encoding import Writer
from antecede.simulator.draws import stream
from antecede.simulator.explorer import explore
from antecede.simulator.explorer.machine import SHARED
from antecede.simulator.schedules import play

_guarantees = frozenset({"fifo", "causal", "total", "synchronous", "significant"})
_needs = frozenset({"broadcast", "timers", "control packets"})
_runs = 8
_group = 3


class Checked(msgspec.Struct):
    """The result of :func:`check_order`: the order, and how much was checked."""

    order: str
    guarantees: list[str]
    packets: int = 0
    """The number of packets whose stamps were encoded and decoded."""
    forgeries: int = 0
    """The number of forged stamps that were passed to ``decode``."""
    snapshots: int = 0
    states: int = 0
    """The number of states that the explorer visited."""
    schedules: int = 0

    def __str__(self) -> str:
        kept = f"keeps its guarantees ({', '.join(self.guarantees)})" if self.guarantees else "meets the contract"
        return (
            f"order {self.order} {kept}. Checked: {self.packets:,} packets, {self.forgeries:,} forged stamps, "
            f"{self.snapshots:,} snapshots, {self.states:,} explored states, {self.schedules:,} schedules"
        )


def check_order(
    order: type[Order] | OrderSpec | str,
    *,
    schedules: int = 200,
    seed: int = 0,
    states: int = 12_000,
    **options: object,
) -> Checked:
    """Run the kit on an order, which is given as a class, a spec, or the name of an installed order. Return how much
    was checked, or raise an AssertionError with the first broken requirement.

    ``options`` are passed to the order. ``schedules`` is the number of random schedules. The first schedule has the
    seed ``seed``, the second ``seed`` + 1, and so on. ``states`` bounds each search of a small scope.
    """
    __tracebackhide__ = True
    try:
        return _check(_spec(order, options), schedules, seed, states)
    except _BrokenError as broken:
        # One sentence, without the calls of this kit; an exception of the order itself keeps the calls of the order.
        cause, sentence = broken.__context__, str(broken)
    raise AssertionError(sentence) from _without_kit(cause)


class _BrokenError(Exception):
    """The error that is raised if an order breaks a requirement. Its text states the requirement."""


def _without_kit(error: BaseException | None) -> BaseException | None:
    """Remove the frames of this module from the start of the exception's traceback, and return the exception. Return
    None if there is no exception, or if its traceback has only frames of this module."""
    trace = None if error is None else error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return None if error is None or trace is None else error.with_traceback(trace)


def _check(spec: OrderSpec, schedules: int, seed: int, states: int) -> Checked:
    _check_declaration(spec)
    checked = Checked(str(spec), sorted(spec.guarantees()))
    for stage in (_check_stamps, _check_clones, _check_hostile_bytes, _check_snapshots):
        stage(spec, checked)
    _check_small_scopes(spec, checked, states)
    for number in range(seed, seed + schedules):
        outcome = play(spec, number)
        if outcome.findings:
            found = outcome.findings[0]
            _fail(
                spec,
                f"schedule {number} ({outcome.plan}): {found.kind}: {found.text}",
                f"check_order({spec.kind.__name__}, schedules=1, seed={number}) repeats it",
                _drawn(outcome.diagram),
            )
        checked.schedules += 1
    return checked


def _fail(spec: OrderSpec, sentence: str, *more: str) -> NoReturn:
    raise _BrokenError("\n".join([f"order {spec.name}: {sentence}", *filter(None, more)]))


def _drawn(draw: Callable[[], str]) -> str:
    try:
        return draw()
    except AntecedeError:
        return ""


def _spec(order: type[Order] | OrderSpec | str, options: dict[str, object]) -> OrderSpec:
    if isinstance(order, str):
        order = parse(order)
    if isinstance(order, OrderSpec):
        return OrderSpec(order.kind, order.options | options)
    if not (isinstance(order, type) and issubclass(order, Order)):
        raise _BrokenError(f"{order!r}: expected a subclass of antecede.orders.Order")
    for name in ("name", "source", "guarantees"):
        if not hasattr(order, name):
            raise _BrokenError(f"{order.__name__}: the class must have the attribute {name}")
    return OrderSpec(order, options)


def _check_declaration(spec: OrderSpec) -> None:
    kind = spec.kind
    if type(kind.name) is not str or not kind.name.isidentifier():
        _fail(spec, f"name {kind.name!r}: expected letters, digits and underscores")
    try:
        sample = spec.create(0, 2)
    except TypeError as error:
        _fail(spec, f"{kind.__name__} cannot be created: {error}")
    if not isinstance(sample.guarantees, frozenset) or sample.guarantees - _guarantees:
        _fail(spec, f"guarantees {sample.guarantees!r}: expected a frozenset of {', '.join(sorted(_guarantees))}")
    if not isinstance(kind.needs, frozenset) or kind.needs - _needs:
        _fail(spec, f"needs {kind.needs!r}: expected a frozenset of {', '.join(sorted(_needs))}")
    if COPY in kind.controls:
        _fail(spec, f"controls: {COPY!r} is the kind of messages, and cannot be that of control packets")


class _Run:
    """A random run of a small group, with one instance of the order for each member. Stamps travel as bytes, and
    packets arrive in any sequence. At the end of the run, some packets may still be in transit."""

    def __init__(self, spec: OrderSpec, seed: int, steps: int = 40) -> None:
        self.spec = spec
        self.random = stream(seed, "kit")
        self.orders = [spec.create(me, _group) for me in range(_group)]
        self.flying: list[Packet] = []
        self.sent: list[tuple[Packet, bytes]] = []
        """All packets that the members have sent, each with its stamp as bytes."""
        for step in range(steps):
            if step % 4 == 0 or not self.flying:
                source = self.random.randrange(_group)
                to = 0b111 if "broadcast" in spec.kind.needs else self.random.randint(1, 0b111)
                message = Message(f"m{step}", source, to, b"payload")
                self.take(self.step(f"send({message.id})", partial(self.orders[source].send, message)))
            else:
                packet = self.flying.pop(self.random.randrange(len(self.flying)))
                self.take(self.arrive(packet)[1])

    def step(self, what: str, call: Callable[[], Any]) -> Any:
        """Do one step (one call of an order), and return its result. Report an exception as a broken requirement.
        ``what`` describes the step."""
        __tracebackhide__ = True
        try:
            return call()
        except Exception as error:
            _fail(self.spec, f"{what} raises {type(error).__name__}: {error}")

    def arrive(self, packet: Packet) -> tuple[Verdict, Effects]:
        """Encode and decode a packet's stamp, then let the target receive the packet; return the target's answer."""
        __tracebackhide__ = True
        target = self.orders[packet.target]
        data = encoded(self, packet)
        what = f"decode of the stamp of {packet.kind} {packet.subject}"
        stamp = self.step(what, lambda: target.decode(packet.kind, packet.source, data))
        if stamp != packet.stamp:
            _fail(self.spec, f"{what} gives {stamp!r}: expected {packet.stamp!r}, as it was sent")
        arrived = msgspec.structs.replace(packet, stamp=stamp)
        answer = self.step(f"receive({packet.kind} {packet.subject})", lambda: target.receive(arrived))
        if not (type(answer) is tuple and len(answer) == 2 and isinstance(answer[0], Verdict)):
            _fail(self.spec, f"receive returns {answer!r}: expected a verdict and a list of effects")
        return answer[0], answer[1]

    def take(self, effects: Effects) -> None:
        """Check that ``effects`` contains ``Persist`` before the first ``Send`` or ``Deliver``. Put the sent packets
        into the lists ``sent`` and ``flying`` (the packets in transit)."""
        __tracebackhide__ = True
        durable = False
        for effect in effects:
            durable = durable or isinstance(effect, Persist)
            if not durable and isinstance(effect, Send | Deliver):
                rule = "before PERSIST: what others have seen must survive a crash"
                _fail(self.spec, f"a step returns {type(effect).__name__} {rule}")
            if isinstance(effect, Send):
                self.sent.append((effect.packet, encoded(self, effect.packet)))
                self.flying.append(effect.packet)


def encoded(run: _Run, packet: Packet) -> bytes:
    """Check that a packet's stamp is valid, and return the stamp as bytes."""
    order = run.orders[packet.source]
    named = f"the stamp of {packet.kind} {packet.subject}, {packet.stamp!r},"
    try:
        hash(packet.stamp)
    except TypeError:
        _fail(
            run.spec, f"{named} is not hashable: a stamp must be made of tuples, numbers and texts, which cannot change"
        )
    try:
        data = order.encode(packet)
    except Exception as error:
        _fail(run.spec, f"{named} cannot be written as bytes: {type(error).__name__}: {error}")
    if type(data) is not bytes:
        _fail(run.spec, f"encode gives {type(data).__name__}: expected bytes")
    size = run.step(f"size of {packet.kind} {packet.subject}", lambda: order.size(packet))
    if size != len(data):
        _fail(run.spec, f"size() of {named} is {size}: expected {len(data)}, the length of encode()")
    return data


def _check_stamps(spec: OrderSpec, checked: Checked) -> None:
    for seed in range(_runs):
        run, again = _Run(spec, seed), _Run(spec, seed)
        if [data for _, data in run.sent] != [data for _, data in again.sent]:
            _fail(
                spec, "two equal runs give different stamps: an order has no clock, no randomness and no shared state"
            )
        for packet, data in run.sent:
            if encoded(run, packet) != data:
                _fail(
                    spec,
                    f"the stamp of {packet.kind} {packet.subject} changed after it was sent: copy what it refers to",
                )
        checked.packets += len(run.sent)


def _check_clones(spec: OrderSpec, checked: Checked) -> None:
    """Check that a clone can receive and send, and that this does not change the original or another clone."""
    run = _Run(spec, 0)
    for order in run.orders:
        others = [order, run.step("clone", order.clone)]
        before = [one.snapshot() for one in others]
        clone = run.step("clone", order.clone)
        for packet in [one for one in run.flying if one.target == order.me]:
            run.step(f"receive({packet.kind} {packet.subject}) of a clone", partial(clone.receive, packet))
        run.step("send of a clone", partial(clone.send, Message("last", order.me, 0b111)))
        if [one.snapshot() for one in others] != before:
            _fail(spec, SHARED)


def _check_hostile_bytes(spec: OrderSpec, checked: Checked) -> None:
    for seed in range(_runs):
        run = _Run(spec, seed)
        for packet, data in run.sent[:24]:
            for forged in _forged(data, run.random):
                source = packet.source if run.random.random() < 0.8 else run.random.randrange(_group)
                _check_forged(run, packet, source, forged, bytes(data))
                checked.forgeries += 1
        for packet, data in run.sent:
            if packet.source == packet.target and packet.kind == COPY and data:
                fresh = spec.create(packet.target, _group)
                if _decoded(run, fresh, packet.kind, packet.source, data) is not None:
                    _fail(
                        spec,
                        f"decode trusts hostile bytes: a member that has sent nothing accepts {data!r} as the stamp of "
                        "a message from itself; compare counters with what this member knows, and raise StampError",
                    )


def _forged(data: bytes, random: Random) -> Iterator[bytes]:
    yield data + b"\0"
    yield data[:-1]
    yield random.randbytes(random.randint(1, 12))
    huge = Writer()
    huge.number(2**62)
    for _ in range(3):
        at = random.randint(0, len(data))
        yield data[:at] + huge.bytes() + data[at + 1 :]
        yield data[:at] + random.randbytes(random.randint(0, 2)) + data[at + random.randint(0, 2) :]


def _decoded(run: _Run, order: Order, kind: str, source: int, data: bytes) -> tuple[Any] | None:
    """Decode the bytes of a stamp. Return the stamp in a tuple, because a stamp may be None. If the order refuses the
    bytes with StampError, return None without a tuple."""
    try:
        return (order.decode(kind, source, data),)
    except StampError:
        return None
    except Exception as error:
        problem = f"decode trusts hostile bytes: {data!r} raises {type(error).__name__}: {error}; expected StampError"
        _fail(run.spec, problem)


def _check_forged(run: _Run, packet: Packet, source: int, data: bytes, honest: bytes) -> None:
    """Check that the order handles the forged bytes ``data`` safely. The order may refuse these bytes. If it decodes
    them to a stamp, three conditions must hold:

    * The stamp is encoded as exactly the same bytes.
    * ``data`` is at most 7 bytes longer than ``honest``, the real stamp. More bytes mean a number that is too large.
    * No later step fails because of this stamp.
    """
    order = run.orders[packet.target]
    found = _decoded(run, order, packet.kind, source, data)
    if found is None:
        return
    forged = msgspec.structs.replace(packet, source=source, stamp=found[0])
    again = run.step("encode", lambda: order.encode(forged))
    if again != data:
        _fail(
            run.spec,
            f"decode trusts hostile bytes: {data!r} is read as {found[0]!r}, whose bytes are {again!r}; refuse every "
            "other encoding with StampError",
        )
    if len(data) >= len(honest) + 8:
        _fail(
            run.spec,
            f"decode trusts hostile bytes: {data!r} has a number that is far too large, and is read as "
            f"{found[0]!r}; bound counters with Reader.counter, member numbers with Reader.member and numbers of "
            "entries with Reader.count",
        )
    clone = order.clone()
    what = f"receive of a forged stamp {found[0]!r} that decode lets through"
    run.step(what, lambda: clone.receive(forged))
    run.step(f"snapshot after {what}", lambda: run.spec.create(order.me, _group).restore(clone.snapshot()))


def _check_snapshots(spec: OrderSpec, checked: Checked) -> None:
    for seed in range(_runs):
        run = _Run(spec, seed, steps=20 + 5 * seed)
        for order in run.orders:
            data = run.step("snapshot", order.snapshot)
            fresh = spec.create(order.me, _group)
            run.step("restore of its own snapshot", partial(fresh.restore, data))
            if fresh.snapshot() != data:
                _fail(spec, "the snapshot forgets something: restored and saved again, it has other bytes")
            for packet in order.held_packets():
                fresh.hold_again(packet)
            _check_damaged(run, order, data)
            _compare(run, order, fresh)
            checked.snapshots += 1


def _compare(run: _Run, order: Order, fresh: Order) -> None:
    """Check that the original and the restored order hold the same messages, and react in the same way to the same
    inputs."""
    problem = "the snapshot forgets something: after restore, {} differs from the original"
    if [m.id for m in fresh.held()] != [m.id for m in order.held()]:
        _fail(run.spec, problem.format("held()"))
    if fresh.unposted() != order.unposted():
        _fail(run.spec, problem.format("unposted()"))
    # Not on a clone: that is made of a snapshot, too.
    for packet in [one for one in run.flying if one.target == order.me]:
        if order.receive(packet) != fresh.receive(packet):
            _fail(run.spec, problem.format(f"the answer to {packet.kind} {packet.subject}"))
    for number in range(2):
        message = Message(f"last{number}", order.me, 0b111)
        if order.send(message) != fresh.send(message):
            _fail(run.spec, problem.format("the next send"))


def _check_damaged(run: _Run, order: Order, data: bytes) -> None:
    for _ in range(10):
        damaged = bytearray(data)
        damaged[run.random.randrange(len(damaged))] = run.random.randrange(256)
        if run.random.random() < 0.5:
            del damaged[run.random.randrange(len(damaged)) :]
        try:
            run.spec.create(order.me, _group).restore(bytes(damaged))
        except SnapshotError:
            continue
        except Exception as error:
            _fail(run.spec, f"restore of damaged bytes raises {type(error).__name__}: {error}; expected SnapshotError")


def _broken(kind: str) -> str:
    """Return the words for a kind of violation, for example ``breaks causal order``. In the error message, these words
    come after "a shortest run"."""
    if kind == "undelivered":
        return "leaves a message undelivered"
    return "breaks the contract" if kind == "contract" else f"breaks {kind} order"


def _check_small_scopes(spec: OrderSpec, checked: Checked, states_max: int) -> None:
    broadcast = "broadcast" in spec.kind.needs
    mode = "broadcast" if broadcast else "multicast"
    repeats = spec.sample().recognises_repeats
    scopes: list[dict[str, Any]] = [
        {"messages": 3, "mode": "broadcast" if broadcast else "unicast"},
        {"messages": 2, "mode": mode, "to_self": True},
        {"messages": 2, "mode": mode, "duplicates": repeats},
    ]
    for scope in scopes:
        try:
            result = explore(spec, 3, **scope, states_max=states_max)
        except ScopeTooLargeError:
            # The scope is too large for this kit; the schedules follow.
            checked.states += states_max
            continue
        checked.states += result.states
        if result.violation is not None:
            text = f"a shortest run {_broken(result.violation.kind)}: {result.violation.text}"
            _fail(spec, text, "as a scenario for antecede play:", result.violation.scenario.rstrip())

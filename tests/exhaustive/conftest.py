"""A second explorer without any cunning, to judge the first one by.

``naive_search`` plays every interleaving one input at a time, on clones of real orders, tells states apart by
everything that ever happened in them, and asks the plain oracle about each. It is hopeless beyond a few messages, and
obviously complete: what the explorer finds must be what this finds.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from antecede.messages import Deliver, Effects, Message, Packet, Send, Sent, members_of
from antecede.orders import Order
from antecede.simulator.explorer import Program
from antecede.simulator.explorer.machine import Scope
from antecede.trace import Event, judge

Histories = tuple[tuple[tuple[str, str], ...], ...]


class State(NamedTuple):
    """The whole world."""

    orders: tuple[Order, ...]
    flying: tuple[Packet, ...]
    accepted: tuple[tuple[int, ...], ...]
    histories: Histories
    """(kind, message) of each event."""

    def key(self) -> object:
        states = tuple((order.snapshot(), tuple(order.held_packets())) for order in self.orders)
        return (states, tuple(sorted(self.flying, key=repr)), self.histories)


class Naive(NamedTuple):
    """What the search found."""

    states: int
    shortest: int | None
    """Inputs of a shortest run that breaks something."""
    kinds: frozenset[str]
    """All that some run of that length breaks."""
    outcomes: frozenset[tuple[tuple[str, ...], ...]]
    """Joint delivery orders, by ids, in quiet states in which all was sent."""


def _carried_out(state: State, scope: Scope, member: int, order: Order, effects: Effects) -> State:
    history = list(state.histories[member])
    flying = list(state.flying)
    for effect in effects:
        if isinstance(effect, Send):
            flying += [effect.packet] * (2 if scope.duplicates else 1)
        elif isinstance(effect, Sent):
            history.append(("send", effect.message.id))
        elif isinstance(effect, Deliver):
            history.append(("deliver", effect.message.id))
    return state._replace(
        orders=(*state.orders[:member], order, *state.orders[member + 1 :]),
        flying=tuple(flying),
        histories=(*state.histories[:member], tuple(history), *state.histories[member + 1 :]),
    )


def _following(state: State, scope: Scope) -> list[State]:
    following = []
    sent = sum(map(len, state.accepted))
    for member, order in enumerate(state.orders):
        number = len(state.accepted[member])
        if scope.program is not None:
            delivered = sum(kind == "deliver" for kind, _ in state.histories[member])
            send = scope.next_send(member, number, delivered)
            choices = [] if send is None else [send.to]
        else:
            choices = scope.destinations(member) if sent < scope.messages else []
        for to in choices:
            twin = order.clone()
            after = _carried_out(state, scope, member, twin, twin.send(scope.message(member, number, to)))
            accepted = (*state.accepted[:member], (*state.accepted[member], to), *state.accepted[member + 1 :])
            following.append(after._replace(accepted=accepted))
    for packet in dict.fromkeys(state.flying):
        at = state.flying.index(packet)
        earlier = [
            other for other in state.flying[:at] if (other.source, other.target) == (packet.source, packet.target)
        ]
        if scope.fifo_links and earlier:
            continue
        twin = state.orders[packet.target].clone()
        taken = state._replace(flying=state.flying[:at] + state.flying[at + 1 :])
        following.append(_carried_out(taken, scope, packet.target, twin, twin.receive(packet)[1]))
    return following


def _messages(state: State, scope: Scope) -> dict[str, Message]:
    return {
        message.id: message
        for source, sends in enumerate(state.accepted)
        for message in (scope.message(source, number, to) for number, to in enumerate(sends))
    }


def _broken(state: State, scope: Scope, guarantees: frozenset[str]) -> set[str]:
    messages = _messages(state, scope)
    events = []
    broken = set()
    for member, history in enumerate(state.histories):
        if len(set(history)) < len(history):
            return {"contract"}
        for index, (kind, id_) in enumerate(history):
            to = tuple(f"P{target}" for target in members_of(messages[id_].to)) if kind == "send" else None
            events.append(Event(f"P{member}", index, kind, id_, to))
    verdict = judge(events, tuple(guarantees))
    broken |= {guarantee for guarantee in guarantees if verdict.holds(guarantee) is False}
    if "causal" in guarantees:
        # A late delivery is reported once, by the stronger of the two.
        broken.discard("fifo")
    if not state.flying:
        sent = sum(kind == "send" for history in state.histories for kind, _ in history)
        waiting = any(order.held() or order.unposted() or order.held_packets() for order in state.orders)
        if verdict.undelivered or sent < len(messages) or waiting:
            broken.add("undelivered")
    return broken


@pytest.fixture(scope="session")
def naive_search() -> Callable[..., Naive]:
    """Search a scope naively."""

    def search(
        create: Callable[[int, int], Order],
        processes: int = 3,
        messages: int = 2,
        mode: str = "unicast",
        *,
        program: Program | None = None,
        guarantee: frozenset[str] = frozenset(),
        **options: Any,
    ) -> Naive:
        if program is not None:
            processes, messages = len(program), max(map(len, program))
        scope = Scope(processes, messages, mode, program=program, **options)
        orders = tuple(create(me, processes) for me in range(processes))
        guarantees = orders[0].guarantees | guarantee
        start = State(orders, (), ((),) * processes, ((),) * processes)
        depth = {start.key(): 0}
        waiting = deque([start])
        outcomes = set()
        shortest, kinds = None, set[str]()
        while waiting:
            state = waiting.popleft()
            at = depth[state.key()]
            broken = _broken(state, scope, guarantees)
            if broken and (shortest is None or at == shortest):
                shortest, kinds = at, kinds | broken
            if shortest is not None and at >= shortest:
                continue
            wanted = 0 if program is None else sum(map(len, program))
            if not state.flying and program is not None and sum(map(len, state.accepted)) == wanted:
                outcomes.add(
                    tuple(tuple(id_ for kind, id_ in history if kind == "deliver") for history in state.histories)
                )
            for after in _following(state, scope):
                key = after.key()
                if key not in depth:
                    depth[key] = at + 1
                    waiting.append(after)
        return Naive(len(depth), shortest, frozenset(kinds), frozenset(outcomes))

    return search

"""The state of one process: the state of its order, and everything that is needed to judge its next delivery.

Happened-before is computed with bit masks, one event at a time, as in :mod:`antecede.trace.oracle`. ``past`` is the set
of messages whose sends happened before the present state of the process. Each message carries the set ``past`` that its
sender had at the send (``befores``). ``covered`` is the union of the sets that were carried by the messages delivered
here. **A delivery is late iff its message is covered.** If only FIFO order is checked, a message carries only messages
of its own sender. Data that no checked guarantee needs is not kept, because it would only increase the number of
states.
"""

from collections.abc import Mapping
from typing import NamedTuple

from antecede.simulator.explorer.machine import Machine, Step
from antecede.simulator.explorer.scope import Scope

UNSENT = -1


class Local(NamedTuple):
    """The whole state of one process."""

    state: int
    """The state of its order, by number."""
    accepted: tuple[int, ...]
    """The destinations of the messages that its application handed to the order."""
    befores: tuple[int, ...]
    """The set that each of these messages carries; ``UNSENT`` until its send event has taken place."""
    past: int
    covered: int
    delivered: int
    history: tuple[int, ...]
    """The deliveries of the process, as bits, and its send events, as complements of bits; empty if not needed."""


class Finding(NamedTuple):
    """A condition that does not hold."""

    kind: str
    """``fifo``, ``causal``, ``total``, ``synchronous``, ``undelivered`` or ``contract``."""
    process: int
    bit: int
    """The message in question, −1 for none."""
    text: str
    """The description, with ``{process}`` and ``{message}`` for the names of the process and the message,
    ``{overtaker}`` for the name of the message that overtook a late one, and ``[bit]`` for the names of other
    messages."""


class Judgement:
    """The transition of one process from one state to the next, with the check that its deliveries break no
    guarantee."""

    def __init__(self, machine: Machine, scope: Scope, guarantees: frozenset[str], histories: bool) -> None:
        self._machine = machine
        self._scope = scope
        self._causal = "causal" in guarantees
        self._carries = bool(guarantees & {"fifo", "causal"})
        self._histories = histories
        self._sends_in_histories = "synchronous" in guarantees

    def initial(self, process: int) -> Local:
        return Local(self._machine.initial[process], (), (), 0, 0, 0, ())

    def send(self, process: int, local: Local, to: int) -> tuple[Local | Finding, Step]:
        """Let the application of a process send its next message. Return the new state of the process, or a finding;
        and the step."""
        step = self._machine.send(local.state, len(local.accepted), to)
        grown = local._replace(accepted=(*local.accepted, to), befores=(*local.befores, UNSENT))
        return self._experience(process, grown, step, {}), step

    def receive(
        self, process: int, local: Local, packet: int, incoming: Mapping[int, int]
    ) -> tuple[Local | Finding, Step]:
        """Let a packet arrive. Return the new state of the process, or a finding; and the step. ``incoming``: for each
        message to this process, by bit, the set that the message carries."""
        step = self._machine.receive(local.state, packet)
        return self._experience(process, local, step, incoming), step

    def _experience(self, me: int, local: Local, step: Step, incoming: Mapping[int, int]) -> Local | Finding:
        state, events, _, failure = step
        if failure:
            return Finding("contract", me, -1, f"the order of {{process}} fails: {failure}")
        if not events:
            return local._replace(state=state)
        _, accepted, befores, past, covered, delivered, history = local
        first = self._scope.bit(me, 0)
        for is_send, bit in events:
            if is_send:
                number = bit - first
                if befores[number] != UNSENT:
                    return Finding("contract", me, bit, "{message} is sent twice")
                befores = (*befores[:number], past, *befores[number + 1 :])
                if self._carries:
                    past |= 1 << bit
                if self._sends_in_histories:
                    history = (*history, ~bit)
                continue
            own = 0 <= bit - first < len(befores)
            before = befores[bit - first] if own else incoming.get(bit, UNSENT)
            if delivered >> bit & 1:
                return Finding("contract", me, bit, "{process} delivers {message} twice")
            if before == UNSENT:
                return Finding("contract", me, bit, "{process} delivers {message}, which was not sent")
            if covered >> bit & 1:
                return self._late(me, bit)
            delivered |= 1 << bit
            if self._carries:
                covered = (covered | before) & ~delivered
                if self._causal:
                    past |= before | 1 << bit
            if self._histories:
                history = (*history, bit)
        return Local(state, accepted, befores, past, covered, delivered, history)

    def _late(self, me: int, bit: int) -> Finding:
        if self._causal:
            causally = "{process} delivers {message} after {overtaker}, which was sent causally after {message}"
            return Finding("causal", me, bit, causally)
        later = "{process} delivers {message} after {overtaker}, which the same process sent after {message}"
        return Finding("fifo", me, bit, later)

"""The state of one process: the state of its order, and everything that is needed to judge its next delivery.

Happened-before is computed with bit masks, one event at a time, as in :mod:`antecede.trace.oracle`. ``past`` is the set
of messages that were sent before the present state of the process, in the sense of happened-before. Each message
carries a set: the ``past`` that its sender had at the send event. The sender keeps these sets in ``befores``.
``covered`` contains the messages that the process has not delivered, although it has delivered a message that was sent
after them. It is the union of the sets of all delivered messages, without the delivered messages themselves. A delivery
is *late* if and only if its message is in ``covered``.

If only FIFO order is checked, the set that a message carries contains only messages of the same sender. Data that no
checked guarantee needs is not kept, because it would only increase the number of states.
"""

from collections.abc import Mapping
from typing import NamedTuple

from antecede.simulator.explorer.machine import Machine, Step
from antecede.simulator.explorer.scope import Scope

UNSENT = -1


class Local(NamedTuple):
    """The whole state of one process."""

    state: int
    """The number of the state of the process's order."""
    accepted: tuple[int, ...]
    """For each message that the application has handed to the order, in sequence: the mask of its destinations."""
    befores: tuple[int, ...]
    """For each message in ``accepted``: the messages that were sent before it, as a bit mask. This is the value that
    ``past`` had at the send event of the message. Until the send event has taken place, the entry is ``UNSENT``."""
    past: int
    covered: int
    delivered: int
    history: tuple[int, ...]
    """The events of the process, in sequence. A delivery is stored as the bit number of its message (the position of
    the message in bit masks). A send event is stored as the bitwise complement of this number. Events that no check
    needs are left out."""


class Finding(NamedTuple):
    """A guarantee or another condition that a run breaks."""

    kind: str
    """``fifo``, ``causal``, ``total``, ``synchronous``, ``undelivered`` or ``contract``."""
    process: int
    bit: int
    """The message that the finding is about, given as the number of its bit in a bit mask of messages. The value is −1
    if the finding is not about one message."""
    text: str
    """The description, with placeholders for names: ``{process}`` for the process, ``{message}`` for the message,
    ``{overtaker}`` for the message that was delivered too early, before ``{message}``, and ``[bit]`` for the message
    with this bit number (for example ``[3]``)."""


class Judgement:
    """Computes the next state of a process after an input, and checks that the deliveries of this step break no
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
        """Let the application of a process send its next message. Return a pair: first the new state of the process, or
        a finding if the step breaks a guarantee or the order's contract; second the step."""
        step = self._machine.send(local.state, len(local.accepted), to)
        grown = local._replace(accepted=(*local.accepted, to), befores=(*local.befores, UNSENT))
        return self._apply(process, grown, step, {}), step

    def receive(
        self, process: int, local: Local, packet: int, incoming: Mapping[int, int]
    ) -> tuple[Local | Finding, Step]:
        """Let a packet arrive at a process. Return the same kind of pair as ``send``. ``incoming``: the messages from
        other processes to this process that this process has not delivered yet. A key is the position of a message
        in bit masks. Its value is a bit mask of the messages that were sent before this message."""
        step = self._machine.receive(local.state, packet)
        return self._apply(process, local, step, incoming), step

    def _apply(self, me: int, local: Local, step: Step, incoming: Mapping[int, int]) -> Local | Finding:
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

"""One simulated process: its order, a link to each peer, and what of both has reached the disk.

A step hands one input to the order and turns its effects into **outputs** for the driver: a frame or an
acknowledgement for a peer, a send event, a delivery. The driver decides what becomes of them: it may lose a frame, or
crash the process before or after the step's commit.

**What a crash loses.** The links commit with every step. The order commits only where it says ``Persist``. So a crash
loses exactly what no ``Persist`` covered, and an order that forgets to say it is caught: its links remember packets
that its state does not. Effects before ``Persist`` are carried out even if the step is never committed, as they would
be on a real machine.

**Acknowledging.** A packet is accepted by its link in the step that takes it: with a verdict of ``DELIVER``, or when
the order says ``Accept`` of one that it held. Packets merely held are not on disk and not acknowledged; after a crash
the peer brings them again.
"""

from typing import Any

import msgspec

from antecede.link import Ack, Arrival, Frame, Link
from antecede.messages import Accept, Deliver, Effects, Message, Packet, Persist, Send, Sent, Verdict
from antecede.orders import OrderSpec
from antecede.orders.contract import Order


class ToPeer(msgspec.Struct, frozen=True, gc=False):
    """A frame or an acknowledgement that leaves for a peer."""

    peer: int
    content: Frame | Ack


Output = ToPeer | Sent | Deliver


class Step(msgspec.Struct):
    """What one step did, in two parts: before its commit and after it."""

    verdict: Verdict | None
    leaked: list[Output]
    outputs: list[Output]
    packet: Packet | None = None


class Node:
    """One process of a world in which frames are lost and machines crash."""

    def __init__(self, spec: OrderSpec, me: int, members: int, *, resend_after: float = 0.5) -> None:
        self.spec = spec
        self.me = me
        self.members = members
        self.up = True
        self._resend_after = resend_after
        self.order: Order = spec.create(me, members)
        self.links: dict[int, Link] = {peer: self._link() for peer in range(members)}
        self._held: dict[int, tuple[Packet, int, int]] = {}
        """Packets that the order holds and no link has accepted: identity → (packet, peer, frame number)."""
        self._saved_order = self.order.snapshot()
        self._saved_links: dict[int, Any] = {peer: link.dump() for peer, link in self.links.items()}

    def _link(self) -> Link:
        return Link(self.me + 1, resend_after=self._resend_after, resend_cap=16 * self._resend_after)

    # Steps.

    def send(self, message: Message, now: float) -> Step:
        """The application sends."""
        return self._finish(None, self.order.send(message), now)

    def receive(self, peer: int, frame: Frame, now: float) -> Step:
        """A frame arrives from a peer; a duplicate has no packet and at most an acknowledgement."""
        link = self.links[peer]
        if link.receive(frame) is not Arrival.FRESH:
            return self._finish(Verdict.DUPLICATE, [], now)
        packet: Packet = frame.body
        verdict, effects = self.order.receive(packet)
        if verdict is Verdict.HOLD:
            self._held[id(packet)] = (packet, peer, frame.number)
        else:
            link.accept(frame.number)
        step = self._finish(verdict, effects, now)
        step.packet = packet
        return step

    def acknowledged(self, peer: int, ack: Ack, now: float) -> None:
        """An acknowledgement arrives from a peer."""
        self.links[peer].on_ack(ack, now)
        self._saved_links[peer] = self.links[peer].dump()

    def tick(self, now: float) -> Step:
        """Time has passed: resend what is overdue."""
        step = self._finish(None, self.order.tick(now), now)
        for peer, link in self.links.items():
            step.outputs += [ToPeer(peer, frame) for frame in link.tick(now)]
        return step

    def deadline(self) -> float | None:
        """When ``tick`` is wanted next."""
        return min((due for link in self.links.values() if (due := link.deadline()) is not None), default=None)

    def _finish(self, verdict: Verdict | None, effects: Effects, now: float) -> Step:
        """Carry the effects over to the links, commit, and say what leaves."""
        leaked: list[Output] = []
        outputs: list[Output] = leaked
        persisted = False
        for effect in effects:
            if isinstance(effect, Send):
                target = effect.packet.target
                outputs.append(ToPeer(target, self.links[target].send(effect.packet, now)))
            elif isinstance(effect, Accept):
                _, peer, number = self._held.pop(id(effect.packet))
                self.links[peer].accept(number)
            elif isinstance(effect, Persist):
                persisted = True
                outputs = []
            else:
                outputs.append(effect)
        if not persisted:
            outputs = []
        self._commit(persisted)
        outputs += self._acknowledgements()
        return Step(verdict, leaked, outputs)

    def _commit(self, persisted: bool) -> None:
        self._before = (self._saved_order, self._saved_links)
        if persisted:
            self._saved_order = self.order.snapshot()
        self._saved_links = {peer: link.dump() for peer, link in self.links.items()}

    def _acknowledgements(self) -> list[Output]:
        return [ToPeer(peer, ack) for peer, link in self.links.items() if (ack := link.ack()) is not None]

    # Crashes.

    def undo_commit(self) -> None:
        """The crash came before the last step's commit: its durable outcome never was."""
        self._saved_order, self._saved_links = self._before

    def crash(self) -> None:
        """Lose everything that is not on disk."""
        self.up = False
        self._held.clear()

    def restart(self, now: float) -> Step:
        """Come back from what is on disk, and resend what was never acknowledged."""
        self.up = True
        self.order = self.spec.create(self.me, self.members)
        self.order.restore(self._saved_order)
        self.links = {}
        for peer in range(self.members):
            self.links[peer] = self._link()
            self.links[peer].load(self._saved_links[peer], now)
        return self.tick(now)

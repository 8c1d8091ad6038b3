"""What a schedule of a campaign looks like from outside: its events, and what cannot be an event.

The plain oracle judges well-formed events only. Whatever a broken order does, what is recorded here is well formed: a
second delivery, a delivery of something unsent or at somebody who is not addressed is a finding, and no event.
"""

import msgspec

from antecede.messages import Message, Packet, members_of
from antecede.simulator.recorder import process_names
from antecede.trace import ARRIVE, DELIVER, SEND, Event

NAMES = process_names(8)
"""The processes of a schedule; there are at most this many."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that should not have happened."""

    kind: str
    """A guarantee, or ``undelivered``, ``twice``, ``stray``, ``needless``, ``duplicate``, ``error``."""
    text: str


class Watcher:
    """The events of one schedule, well formed whatever the order does: what cannot be an event is a finding."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.findings: list[Finding] = []
        self._indices = [0] * len(NAMES)
        self._sent: set[str] = set()
        self._delivered: set[tuple[int, str]] = set()

    def sent(self, process: int, message: Message, packets: list[Packet], now: float) -> None:
        if message.id in self._sent:
            self.findings.append(Finding("stray", f"{message.id} is sent twice"))
            return
        self._sent.add(message.id)
        self._add(process, SEND, message.id, tuple([NAMES[member] for member in members_of(message.to)]))

    def arrived(self, process: int, packet: Packet, now: float) -> None:
        # A stop on a detour is no event of the application.
        if packet.message is not None and packet.message.to >> process & 1 and packet.subject in self._sent:
            self._add(process, ARRIVE, packet.subject)

    def delivered(self, process: int, message: Message, now: float) -> None:
        if message.id not in self._sent or not message.to >> process & 1:
            self.findings.append(Finding("stray", f"{message.id} is delivered at {NAMES[process]}"))
        elif (process, message.id) in self._delivered:
            self.findings.append(Finding("twice", f"{message.id} at {NAMES[process]}"))
        else:
            self._delivered.add((process, message.id))
            self._add(process, DELIVER, message.id)

    def _add(self, process: int, kind: str, message: str, to: tuple[str, ...] | None = None) -> None:
        index = self._indices[process]
        self._indices[process] = index + 1
        self.events.append(Event(NAMES[process], index, kind, message, to))

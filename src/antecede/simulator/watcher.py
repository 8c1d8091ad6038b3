"""The recorder of a campaign, which records events and findings.

The oracle (:mod:`antecede.trace.oracle`) can judge valid events only. So if a send or a
delivery is not valid, the recorder records a finding instead of an event. Examples are a second delivery of a message,
the delivery of a message that was not sent, and a delivery at a process that is not a destination.
"""

from typing import ClassVar

import msgspec

from antecede.messages import Message
from antecede.simulator.recorder import Recorder, process_names
from antecede.trace import Event

NAMES = process_names(8)
"""The names of the processes; a schedule has at most 8 processes."""


class Finding(msgspec.Struct, frozen=True):
    """Something that an order did wrong in one schedule of a campaign."""

    kind: str
    """The name of the guarantee that was violated, or the name of another error: ``undelivered`` (a message was not
    delivered), ``twice`` (a second delivery), ``stray`` (a second send, or a delivery of a message that was not sent to
    this process), ``needless`` (a message was held longer than necessary), ``duplicate`` (the order accepted a repeated
    packet) or ``error`` (an exception)."""
    text: str


class Watcher(Recorder):
    """Records the valid events of one schedule, without times and sizes. A send or delivery that is not
    valid is recorded as a finding."""

    weighs: ClassVar[bool] = False

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.findings: list[Finding] = []
        super().__init__(NAMES, self.events.append)
        self._sent: set[str] = set()
        self._delivered: set[tuple[int, str]] = set()

    def sent(self, process: int, message: Message, sizes: list[int], now: float | None) -> None:
        if message.id in self._sent:
            self.findings.append(Finding("stray", f"{message.id} is sent twice"))
            return
        self._sent.add(message.id)
        super().sent(process, message, sizes, None)

    def arrived(self, process: int, message: Message, size: int | None, now: float | None) -> None:
        if message.id in self._sent:
            super().arrived(process, message, size, None)

    def delivered(self, process: int, message: Message, now: float | None) -> None:
        if message.id not in self._sent or not message.to >> process & 1:
            self.findings.append(
                Finding("stray", f"{message.id} is delivered at {NAMES[process]}, to which it was not sent")
            )
        elif (process, message.id) in self._delivered:
            self.findings.append(Finding("twice", f"{message.id} is delivered again at {NAMES[process]}"))
        else:
            self._delivered.add((process, message.id))
            super().delivered(process, message, None)

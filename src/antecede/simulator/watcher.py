"""The recorder of a campaign: if an action of an order is not a valid event, it becomes a finding.

The plain oracle judges well-formed events only. So a second delivery, a delivery of an unsent message, or a delivery at
a process that is not a destination becomes a finding instead of an event.
"""

from typing import ClassVar

import msgspec

from antecede.messages import Message
from antecede.simulator.recorder import Recorder, process_names
from antecede.trace import Event

NAMES = process_names(8)
"""The names of the processes; a schedule has at most 8 processes."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that should not have happened."""

    kind: str
    """A guarantee, or ``undelivered``, ``twice``, ``stray``, ``needless``, ``duplicate``, ``error``."""
    text: str


class Watcher(Recorder):
    """Records the well-formed events of one schedule, without times and sizes, and the findings."""

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

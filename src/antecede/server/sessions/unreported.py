"""The letters that clients have received and not yet reported as handled. For some time, these letters must not expire.

A letter that was handed to a client stays in the client's mailbox until the client has reported the letter as handled.
Before this report, the client may already have handled the letter, so the letter must not expire. But it may expire if
the client is disconnected for too long, or if the mailbox holds too much and the client reports nothing for too long.
"""

from collections.abc import Container, Iterable
from typing import Final

from antecede import limits
from antecede.engine.quotas import Quotas


class Unreported:
    """Records which clients may have received letters that they have not reported as handled yet. Each server has one
    such object."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._moved: dict[str, float] = {}
        """For each client that may have unreported letters, the time of its last event: the client received a letter,
        reported a letter as handled, or disconnected."""

    def begin(self, mailboxes: Iterable[str], now: float) -> None:
        """After the start of the server, record that each client has received the first letters of its mailbox (one
        full batch). The server may have handed out these letters before it was restarted."""
        for address in mailboxes:
            if not self._quotas.is_agent(address):
                self.take(address, limits.reactions_together_max, now)

    def take(self, address: str, letters: int, now: float, more: bool = False) -> None:
        """Record that a client has received this number of letters and not yet reported them as handled. If ``more`` is
        true, the number is added to the recorded number. Otherwise it replaces the recorded number."""
        self._moved[address] = now
        handed = self._quotas.handed
        handed[address] = letters + (handed.get(address, 0) if more else 0)

    def moved(self, address: str, now: float) -> None:
        """Record that a client has reported a letter as handled, or has disconnected."""
        if address in self._moved:
            self._moved[address] = now

    def given_up(self, now: float, connected: Container[str]) -> list[str]:
        """Give up some clients: allow their letters to expire. A client is given up if two conditions hold. First, more
        than ``client_return_seconds`` have passed since the client's last event (it received a letter, reported a
        letter, or disconnected). Second, the client is disconnected now, or its mailbox holds too much. Return the
        clients that were given up and are still connected."""
        stalled: list[str] = []
        quotas = self._quotas
        for address, since in list(self._moved.items()):
            if address not in quotas.handed:
                del self._moved[address]
            elif now - since > limits.client_return_seconds and (address not in connected or address in quotas.crowded):
                self._give_up(address)
                if address in connected:
                    stalled.append(address)
        return stalled

    def _give_up(self, address: str) -> None:
        del self._moved[address]
        self._quotas.handed.pop(address, None)


STALLED: Final = (f"no letter was handled for {limits.client_return_seconds:g} s, and the mailbox is full", "stalled")
"""A reason and a code. The server ends a client's session with them if the client has reported no letter as handled for
too long, and the client's mailbox is full."""

"""One end of a connection, as the sans-I/O classes see it: TCP in a live server, simulated in the simulator."""

from collections.abc import Sequence
from typing import Protocol

from antecede.wire import AnyPart, Part


class Connection(Protocol):
    """One end of a connection."""

    remote: str
    """The other end's address, for logs."""
    spoke: float
    """When something was last written."""
    code: str
    """The rule for which this end closed it; empty: none."""

    @property
    def heard(self) -> float:
        """When something was last received; while reading is paused, now."""
        ...

    @property
    def full(self) -> bool:
        """Whether so much waits to be read by the other end that nothing more should be written."""
        ...

    def send(self, parts: Sequence[Part]) -> None:
        """Write parts; lost if the connection is closed."""
        ...

    def close(self, reason: str, final: bool = False, code: str = "") -> None:
        """Tell the other end why (``final``: it need not try again; ``code``: the rule that it broke), and close.
        ``closed`` follows."""
        ...

    def trust(self, *, server: bool) -> None:
        """The other end has proven to be a server, or a client: longer frames are read from now on."""
        ...

    def speak(self, version: int) -> None:
        """Both ends have agreed on a wire version; before that the oldest is spoken."""
        ...

    def hold(self, held: bool) -> None:
        """Stop reading for a while, or go on."""
        ...

    def busy(self, busy: bool) -> None:
        """Stop reading while parts that have arrived are still to be handled, or go on; independent of ``hold``."""
        ...

    def expect_a_reader(self, expected: bool) -> None:
        """Read nothing while the connection is full: who does not read what it is told is not listened to. Not between
        servers, two of which might wait for each other."""
        ...


class Receiver(Protocol):
    """What a connection calls."""

    def received(self, parts: list[AnyPart]) -> None:
        """Parts arrived. A :class:`antecede.errors.WireError` closes the connection with its text as the reason."""
        ...

    def closed(self, reason: str, now: float) -> None:
        """The connection ended, by either end; called once. ``reason`` is empty if the other end closed it."""
        ...

    def writable(self) -> None:
        """A connection that was full is not any more."""
        ...

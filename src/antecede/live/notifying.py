"""Notifications to a service manager (systemd, ``Type=notify``): the server is ready, it works, it stops.

The manager gives the address of a datagram socket in ``NOTIFY_SOCKET``. Each notification is one datagram with lines
``NAME=value``. ``WATCHDOG_USEC`` is a number of microseconds. If it is set, the manager expects at least one sign of
life in every period of this length. The event loop sends signs of life, but only while the server works
(:mod:`antecede.live.pulse`). So the manager restarts a server for the same reasons for which the page ``/live``
(:mod:`antecede.live.metrics`) reports a failure. Without ``NOTIFY_SOCKET`` nothing is sent. If the manager does not
read the notifications, this is not an error.
"""

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import suppress

from antecede.live.pulse import Pulse


class ServiceManager:
    """The service manager that started this process, if there is one."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._seconds = _watchdog_seconds(environment)
        self._handle: asyncio.TimerHandle | None = None

    def ready(self, pulse: Pulse) -> None:
        """Report that the server has recovered and listens. Then send signs of life, if the manager expects them."""
        self._notify(f"READY=1\nSTATUS=running\nMAINPID={os.getpid()}")
        if self._seconds and self._address:
            self._beat(pulse)

    def stopping(self, reason: str) -> None:
        """Report that the server stops, with the reason in one line."""
        self._notify(f"STOPPING=1\nSTATUS={' '.join(reason.split())}")

    def _beat(self, pulse: Pulse) -> None:
        if not pulse.trouble():
            self._notify("WATCHDOG=1")
        # Twice as often as needed, because one datagram may be late.
        self._handle = asyncio.get_running_loop().call_later(self._seconds / 2, self._beat, pulse)

    def _notify(self, text: str) -> None:
        if self._address[:1] not in ("/", "@"):
            return
        # A name that begins with @ is not a file: it exists only in the kernel, and begins with a zero byte there.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.connect(address)
            sender.send(text.encode())


def _watchdog_seconds(environment: Mapping[str, str]) -> float:
    """Return the longest time (in seconds) that the manager accepts between two signs of life. Return 0 if the manager
    expects no signs of life from this process."""
    for_process = environment.get("WATCHDOG_PID", "")
    if for_process and for_process != str(os.getpid()):
        return 0.0
    digits = environment.get("WATCHDOG_USEC", "")
    return int(digits) / 1e6 if digits.isascii() and digits.isdecimal() and len(digits) <= _digits_max else 0.0


_digits_max = 18

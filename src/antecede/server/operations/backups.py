"""A server's part in a backup of the whole system: take part in a consistent cut, then send its files to the operator.

**The cut.** A server's durable state is a prefix of its log. Copies of several logs form a working system if two
conditions hold:

1. if a receiver's log shows a frame as accepted, the sender's log contains this frame (otherwise the sender would give
   the number of this frame to another frame); and
2. if a sender has deleted a frame because the frame was acknowledged, the receiver's log shows this frame as accepted.

(Frames that were sent and not accepted are in transit: the sender's copy sends them again.) Copies that are made at
different moments can break both conditions. The state of all servers at one *instant* fulfils both, because frames and
acknowledgements leave a server only when their records are durable. Several servers cannot be copied in one instant,
but two rounds are enough (:mod:`antecede.server.operations.cutting`):

- ``backup`` **holds** a server: from now on nothing that peers send is accepted (:meth:`Peering.pause`). Agents, timers
  and clients continue, and the log grows. The operator begins the second round only when *all* servers are held.
- ``backup-cut`` takes the **cut**: the records that are durable now, with the newest snapshot. Then the server accepts
  messages from peers again.

The first condition: if the receiver's cut shows a frame as accepted, the receiver accepted the frame before the
receiver was held. So the frame was durable at the sender before the first cut. The second condition: if the sender has
already deleted a frame at its cut, the frame was acknowledged before the sender was held. So the frame was durable at
the receiver before the first cut. A server that was restarted, or that waited too long for the cut, is not held any
more, and refuses the cut.

Afterwards the operator reads the files of the cut, page by page (``backup-read``), and ends the backup
(``backup-end``). The adapter (the code that does the server's I/O) keeps these files as they were at the cut, although
the log grows.
"""

from base64 import b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from antecede import limits
from antecede.errors import MissingError, OverloadError, UsageError
from antecede.server import AgentServer
from antecede.server.driver import Driver

if TYPE_CHECKING:
    from antecede.server.peering import Peering


class Frozen(Protocol):
    """The files of a server as they were at one moment."""

    position: int
    """The number of the last record that was durable at this moment, or 0 if no record was durable."""
    files: dict[str, int]
    """Name and length of each file."""

    def read(self, name: str, offset: int, count: int) -> bytes:
        """Return ``count`` bytes of a file from ``offset`` on, or fewer if the file ends earlier."""
        ...

    def end(self) -> None:
        """Release the files: they are not needed any more."""
        ...


class Backups:
    """The operators' commands with which one server takes part in a backup."""

    def __init__(self, machine: AgentServer, driver: Driver, peering: "Peering") -> None:
        self._machine = machine
        self._driver = driver
        self._peering = peering
        self.freeze: Callable[[], Frozen] | None = None
        """A function that returns the files as they are at the time of the call, and keeps them unchanged. The adapter
        (the code that does the server's I/O) sets this function. It is None if this server has no files."""
        self._id = ""
        """The name of the backup in which this server takes part now, or an empty string if it takes part in no
        backup."""
        self._until = 0.0
        """The time at which this server gives up the backup if no further command of this backup comes."""
        self._frozen: Frozen | None = None
        self.commands: dict[str, tuple[int, Callable[..., Any]]] = {
            "backup": (1, self.hold),
            "backup-cut": (1, self.cut),
            "backup-read": (3, self.read),
            "backup-end": (1, self.end),
        }
        """The commands, each with the number of its arguments."""
        self.audited = ("backup", "backup-cut", "backup-end")
        """The commands that are written to the audit log even if they change nothing."""

    def hold(self, id_: str) -> dict[str, Any]:
        """Begin a backup: accept nothing from peers until the command ``backup-cut``. If this command does not come
        within ``backup_hold_seconds_max``, the server gives up the backup."""
        name = self._machine.name
        if self.freeze is None or not self._machine.kept:
            raise UsageError(f"server {name} keeps no log: with --durability memory there is nothing to back up")
        if self._driver.behind:
            raise OverloadError(f"server {name} cannot write its log: {self._driver.trouble}")
        if self._id and self._id != id_:
            seconds = max(0.0, self._until - self._driver.now)
            raise OverloadError(
                f"server {name} is part of another backup: try again later (if no command of that backup comes, the "
                f"server gives it up in {seconds:.0f} s)"
            )
        if not 0 < len(id_) <= _id_chars_max:
            raise UsageError(f"the name of the backup has {len(id_)} characters: expected 1 to {_id_chars_max}")
        self._id, self._until = id_, self._driver.now + limits.backup_hold_seconds_max
        self._peering.pause()
        return {"server": name}

    def cut(self, id_: str) -> dict[str, Any]:
        """Keep the files as they are at this moment, and accept messages from peers again. Return the names and lengths
        of the files."""
        self._check(id_)
        if not self._peering.paused or self.freeze is None:
            raise MissingError(f"server {self._machine.name} no longer waits for the cut: start the backup again")
        try:
            self._frozen = self.freeze()
        finally:
            self._peering.resume()
        if not self._frozen.position:
            raise OverloadError(f"server {self._machine.name} has no durable record in its log yet: try again later")
        self._until = self._driver.now + limits.backup_idle_seconds_max
        frozen = self._frozen
        incarnation = f"{self._machine.incarnation:016x}"
        return {
            "server": self._machine.name,
            "incarnation": incarnation,
            "position": frozen.position,
            "files": frozen.files,
        }

    def read(self, id_: str, name: str, offset: str) -> dict[str, Any]:
        """Return the bytes of a file from ``offset`` on, at most one page."""
        self._check(id_)
        frozen = self._frozen
        size = None if frozen is None else frozen.files.get(name)
        if frozen is None or size is None:
            raise UsageError(f"the backup has no file {name[:100]!r}")
        if not (offset.isascii() and offset.isdecimal() and len(offset) <= _digits_max):
            raise UsageError(
                f"offset {offset[:_digits_max]!r}: expected a whole number of at most {_digits_max} digits"
            )
        self._until = self._driver.now + limits.backup_idle_seconds_max
        count = min(limits.backup_page_bytes, max(0, size - int(offset)))
        return {"bytes": b64encode(frozen.read(name, int(offset), count)).decode()}

    def end(self, id_: str) -> dict[str, Any]:
        """End the backup: the files of the cut are not needed any more."""
        self._check(id_)
        self._leave()
        return {"server": self._machine.name}

    def watch(self, now: float) -> None:
        """Give up the backup if its operator has sent no command for too long. Call this about once per second."""
        if self._id and now > self._until:
            self._leave()

    def _check(self, id_: str) -> None:
        if not self._id or id_ != self._id:
            raise MissingError(
                f"server {self._machine.name} is not part of this backup any more: start the backup again"
            )

    def _leave(self) -> None:
        self._id = ""
        if self._peering.paused:
            self._peering.resume()
        frozen, self._frozen = self._frozen, None
        if frozen is not None:
            frozen.end()


_id_chars_max = 64
_digits_max = 18

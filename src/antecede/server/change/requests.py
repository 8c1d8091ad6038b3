"""The commands with which an operator's process makes a change, and their answers
(:mod:`antecede.server.change.participation`). Servers do not trust the content of a command: every number, text and
list in it has a bound.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from antecede import limits
from antecede.errors import TopologyError, UsageError
from antecede.server.items import ChangeNumber, ClockMs, History, Mark, Name, Since, TopologyText

Names = Annotated[list[Name], Meta(max_length=limits.topology_servers_max)]
"""The names of servers."""


class Command(msgspec.Struct, frozen=True):
    """A command to one server."""

    server: str
    name: str
    arguments: tuple[str, ...] = ()
    patient: bool = False
    """True if the command is sent again until the server answers, without a time limit. This is the case only for
    ``change-commit``, and only if the server must take part in the change."""

    @property
    def seconds_max(self) -> float:
        """The longest time that the answer may take."""
        quick = self.name in ("change-look", "change-lesson", "change-abandon")
        return limits.change_look_seconds_max if quick else limits.change_command_seconds_max

    @property
    def begins(self) -> int:
        """The number of the change, if this command is ``change-pause``, ``change-stage`` or ``change-commit``;
        otherwise 0."""
        if self.name == "change-stage":
            return read_stage(self.arguments[0]).change
        return read_attempt(self.arguments[0])[0] if self.name in ("change-pause", "change-commit") else 0


class Stage(msgspec.Struct, frozen=True):
    """The content of the command ``change-stage``: the new topology, and how to change to it."""

    system: Mark
    change: ChangeNumber
    topology: TopologyText
    since: Since
    coordinator: Name
    clock_ms: ClockMs
    attempt: Mark = ""
    pausing: Names = []
    """The servers that must be paused, so that letters wait there. A server that is not paused refuses the change."""
    drop: bool = False
    """True if letters of removed agents and clients may be lost."""
    absent: Names = []
    """The servers that do not take part."""
    basis: Mark = ""
    """The epoch of the topology in force (a hash of the topology)."""
    members: Names = []
    """The servers of the topology in force; the change adds all other servers of the new topology."""
    history: History = []
    """The last topologies that were in force (at most ``limits.changes_kept_max``), oldest first. Only servers that the
    change adds use this field."""


class View(msgspec.Struct, frozen=True):
    """A server's answer to ``change-look``, the first command of a change: the state of the server, and the obstacles
    to the change."""

    server: str
    system: Mark
    change: ChangeNumber
    epoch: Mark
    topology: TopologyText
    removed: bool = False
    staged: ChangeNumber = 0
    """The number of the change that the server has staged, or for which the server pauses. It is 0 if there is no
    such change."""
    coordinator: Name = ""
    attempt: Mark = ""
    """The name of the attempt in which the server takes part, or an empty text if it takes part in no attempt. An
    attempt is one try to make a change."""
    idle: float | None = None
    """The seconds since the last command of ``attempt``. It is None if there is no attempt, or if the server does not
    count the seconds."""
    since: Since = {}
    obstacles: list[str] = []
    leaving: dict[str, int] = {}
    """The agents and clients that will leave the server, each with the number of its letters."""
    history: History = []
    """The last topologies that were in force (at most ``limits.changes_kept_max``), the present one included, oldest
    first."""
    restored: Mark = ""
    """The id of the restored system that the server belongs to. It is empty if the server does not belong to a restored
    system."""


def attempt_of(change: int, attempt: str) -> str:
    """Return the argument that names an attempt in a command, such as ``7:ab12`` for change 7 and attempt ``ab12``."""
    return f"{change}:{attempt}"


def read_attempt(text: str) -> tuple[int, str]:
    """Return the number of the change, and the name of the attempt, from an argument such as ``7:ab12``."""
    number, mark, id_ = text.partition(":")
    if not mark or len(id_) > limits.mark_chars_max:
        raise UsageError(f"{text[:32]!r}: expected the number and the attempt of a change, such as 7:ab12")
    return read_number(number, limits.change_number_max), id_


def read_stage(given: str) -> Stage:
    """Read the content of ``change-stage``."""
    try:
        return msgspec.json.decode(given, type=Stage)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"unreadable change: {error}") from None


def read_view(server: str, answer: object) -> View:
    """Read the answer of a server to ``change-look``."""
    try:
        return msgspec.convert(answer, View)
    except msgspec.ValidationError as error:
        raise TopologyError(f"unreadable answer of server {server}: {error}") from None


def read_number(text: str, most: int = limits.counter_max) -> int:
    """Return the number in a text. Raise UsageError if the text is not a number from 0 to ``most``."""
    if not text.isdecimal() or len(text) > len(str(most)) or int(text) > most:
        raise UsageError(f"{text[:32]!r}: expected a number, at most {most}")
    return int(text)

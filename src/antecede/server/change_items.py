"""The items of a log that are about changes of the topology; see :mod:`antecede.server.organisation`.

The numbers and texts here have bounds, because operators and other servers send them as JSON, and JSON does not limit
the length of a number or a text.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from antecede import limits
from antecede.engine import Belongings

ChangeNumber = Annotated[int, Meta(ge=0, le=limits.change_number_max)]
ClockMs = Annotated[int, Meta(ge=0, le=limits.clock_ms_max)]
Mark = Annotated[str, Meta(max_length=limits.mark_chars_max)]
"""The random name of a system or of an attempt to change the topology, or the epoch (hash) of a topology."""
Name = Annotated[str, Meta(max_length=limits.name_chars_max)]
"""The name of a server or a domain."""
TopologyText = Annotated[str, Meta(max_length=limits.topology_bytes_max)]
Since = Annotated[dict[Name, ChangeNumber], Meta(max_length=limits.topology_servers_max)]
"""Domain → the number of the last change that started or restarted this domain."""


class Epoch(msgspec.Struct, frozen=True, array_like=True):
    """A topology that is or was in force."""

    change: ChangeNumber
    epoch: Mark
    clock_ms: ClockMs
    """The wall clock when the topology came into force, or 0 if this time is not known."""
    attempt: Mark = ""
    """The name of the attempt that made the change, or an empty string if it is not known."""
    guarantee: Literal["", "none", "fifo", "causal"] = ""
    """The weakest guarantee among the domains of this topology, or an empty string if it is not known."""


History = Annotated[list[Epoch], Meta(max_length=limits.changes_kept_max)]
"""The last topologies of the system (at most ``limits.changes_kept_max``), oldest first."""


class Organised(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=41):
    """The topology in force at the beginning of a log."""

    topology: str
    """The text of a topology file."""


class Staged(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=42):
    """This server is ready for a change of the topology. It does not know yet whether the change will be made."""

    system: str
    """The random name of the whole system, which was chosen at the first change of its topology."""
    change: int
    topology: str
    since: dict[str, int]
    """Domain → the number of the last change that started or restarted this domain."""
    coordinator: str
    """The server whose log decides whether the change is made."""
    leaving: list[str]
    """Agents and clients that leave this server. From this item on, everything that belongs to them is stored
    separately, until the change is committed or abandoned."""
    clock_ms: int
    attempt: str = ""
    """The random name of the attempt to make this change. An abandoned change and the next change have the same number,
    but their attempts have different names."""
    absent: list[str] = []
    """The servers that do not take part. They do not know the new topology before it is in force, so this server does
    not connect with them until the change is decided."""
    history: list[Epoch] = []
    """The last topologies of the system, oldest first, if the change adds this server. Otherwise the list is empty."""


class Received(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=43):
    """Agents and clients that will live on this server after the change that is staged."""

    change: int
    belongings: list[Belongings]


class Committed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=44):
    """The change that was staged is in force."""

    change: int
    clock_ms: int
    attempt: str = ""
    """The name of the attempt that made the change. If it is empty, the previous :class:`Staged` item in the log names
    the attempt."""


class Abandoned(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=45):
    """The change that was staged will not be made."""

    change: int
    attempt: str = ""
    """The name of the attempt that is abandoned. If it is empty, the attempt in progress on this server is
    abandoned."""


class Paused(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=46):
    """The start of a pause, which ends when the change is committed or abandoned. During the pause, two kinds of
    letters wait: letters that would enter ``domains`` from outside, and letters from this server to ``agents``. These
    agents leave their servers in this change, and do not react during the pause. If they reacted, their messages would
    wait on the old server, and later messages from the new server could overtake the waiting messages."""

    change: int
    domains: list[str]
    agents: list[str]
    whole: bool = False
    """True if the change removes this server. In this case, during the pause, none of its agents reacts and its clients
    are refused."""
    attempt: str = ""
    """The name of the attempt to make this change."""
    clients: list[str] = []
    """The clients that are connected at this moment, if the change removes this server. They move with their addresses
    to another server, even if they have published nothing so far and have no letters."""


class Learned(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=47):
    """This server has learned changes that were made without it (:mod:`antecede.server.peering.learning`). They are now
    in force here, too. They change nothing for the domains, agents and clients of this server."""

    system: str
    change: int
    topology: str
    since: dict[str, int]
    history: list[Epoch]
    """The last topologies of the system, oldest first, including those that this server already knew."""

"""The items of a log that are about changes of the topology; see :mod:`antecede.server.organisation`.

The types of numbers and texts here have bounds, because operators and other servers send them as JSON, in which a
number may have any number of digits.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from antecede import limits
from antecede.engine.belongings import Belongings

ChangeNumber = Annotated[int, Meta(ge=0, le=limits.change_number_max)]
ClockMs = Annotated[int, Meta(ge=0, le=limits.clock_ms_max)]
Mark = Annotated[str, Meta(max_length=limits.mark_chars_max)]
"""The random name of a system or of an attempt, or the epoch of a topology."""
Name = Annotated[str, Meta(max_length=limits.name_chars_max)]
"""The name of a server or a domain."""
TopologyText = Annotated[str, Meta(max_length=limits.topology_bytes_max)]
Since = Annotated[dict[Name, ChangeNumber], Meta(max_length=limits.topology_servers_max)]
"""For each domain the number of the change that began it."""


class Epoch(msgspec.Struct, frozen=True, array_like=True):
    """A topology that is or was in force."""

    change: ChangeNumber
    epoch: Mark
    clock_ms: ClockMs
    """The wall clock when the topology came into force; 0: not known."""
    attempt: Mark = ""
    """The name of the attempt that made the change; empty: not known."""
    guarantee: Literal["", "none", "fifo", "causal"] = ""
    """The weakest guarantee of all its domains; empty: not known."""


History = Annotated[list[Epoch], Meta(max_length=limits.changes_kept_max)]
"""The topologies so far, oldest first."""


class Organised(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=41):
    """The topology that is in force, recorded when a log is begun. A log that an older version began gets this item at
    the next start."""

    topology: str
    """The text of a topology file."""


class Staged(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=42):
    """This server is ready for a change of the topology. It does not know yet whether the change will be made."""

    system: str
    """The identity of the whole system, chosen at its first change."""
    change: int
    topology: str
    since: dict[str, int]
    """For each domain the number of the change that began it."""
    coordinator: str
    """The server whose log decides whether the change is made."""
    leaving: list[str]
    """Agents and clients that leave this server. From here on, everything that belongs to them is stored separately,
    until the change is decided."""
    clock_ms: int
    attempt: str = ""
    """The random name of the attempt. A change that was abandoned and the next one have the same number, but different
    attempts."""
    absent: list[str] = []
    """The servers that do not take part. They do not know the new topology before it is in force, so this server does
    not connect with them until the change is decided."""
    history: list[Epoch] = []
    """The topologies so far, oldest first, if the change adds this server; otherwise empty."""


class Received(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=43):
    """Agents and clients that will live on this server after the change that is staged."""

    change: int
    belongings: list[Belongings]


class Committed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=44):
    """The change that was staged is in force."""

    change: int
    clock_ms: int
    attempt: str = ""
    """The name of the attempt that made the change; empty: the attempt that is staged here."""


class Abandoned(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=45):
    """The change that was staged will not be made."""

    change: int
    attempt: str = ""
    """The name of the attempt that is abandoned; empty: the attempt in progress here."""


class Paused(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=46):
    """The start of a pause, which ends when the change is committed or abandoned. Until then, two kinds of letters
    wait: those that would enter these domains from outside, and those that are sent from this server to these agents.
    The agents do not react until then. Otherwise messages that they send would wait on their old server, and messages
    that they send later from their new server could overtake these."""

    change: int
    domains: list[str]
    agents: list[str]
    whole: bool = False
    """Whether the change removes this server: none of its agents reacts, and its clients are refused for the moment."""
    attempt: str = ""
    """The name of the attempt."""
    clients: list[str] = []
    """The clients that are connected at this moment, if the change removes this server. They move with their addresses
    to another server, even if they have published nothing so far and have no letters."""


class Learned(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=47):
    """Changes that were made without this server are in force here now, too (:mod:`antecede.server.peering.learning`).
    For this server itself nothing is different: its domains, agents and clients continue."""

    system: str
    change: int
    topology: str
    since: dict[str, int]
    history: list[Epoch]
    """The topologies so far, oldest first, also those that this server knows already."""

"""The inputs of a server's step, except those that are items of records, and the outputs of a step."""

from typing import Any, ClassVar, Final, Protocol

import msgspec

from antecede import limits
from antecede.channel import Outgoing
from antecede.engine import React
from antecede.link import Ack, Frame, Hello
from antecede.orders import OrderSpec
from antecede.topology import Mailboxes, Topology, TopologyFile

OPERATOR: Final = "dead-letters"
"""The client name under which dead letters are sent again, on every server."""


class Plan(msgspec.Struct, frozen=True):
    """The configuration of a server: the topology, each domain's order, and the server of each named agent."""

    topology: Topology
    orders: dict[str, OrderSpec]
    homes: dict[str, str]
    resend_after: float = limits.link_resend_first_seconds
    """The seconds without an acknowledgement after which a frame is resent. The time may be longer if frames are lost
    only when a connection breaks, because lost frames are resent after the next hello."""
    mailboxes: Mailboxes = Mailboxes()
    """How much may wait in mailboxes."""
    file: TopologyFile | None = None
    """The topology with its addresses and classes, if it comes from a file."""

    @property
    def moved(self) -> dict[str, str]:
        """For each removed server the server that has its addresses now."""
        return {} if self.file is None else self.file.moved

    def holding(self, server: str) -> list[str]:
        """Return the agents of a server for which letters that depend on a dead letter are held."""
        return sorted(agent for agent in self.mailboxes.hold if self.homes.get(agent) == server)


class FromPeer(msgspec.Struct, frozen=True, gc=False):
    """A frame, an acknowledgement or a hello from a peer of a domain."""

    domain: str
    peer: str
    content: Frame | Ack | Hello


class Replay(msgspec.Struct, frozen=True, gc=False):
    """An operator's request to send a dead letter again. It becomes two items of one record, so a letter leaves the
    list of dead letters exactly when it is sent again."""

    key: str
    to: tuple[str, ...]
    client: str
    """The client name under which the letter is sent. The publish gets its number when this request is processed."""


class ReplayMany(msgspec.Struct, frozen=True, gc=False):
    """An operator's request to send several dead letters again, all in one step."""

    letters: tuple[Replay, ...]
    bytes: int
    """The total size of the letters' notifications in bytes."""


class Drop(msgspec.Struct, frozen=True, gc=False):
    """A request to remove the first letters of a client's mailbox; they cannot be restored."""

    address: str
    letters: int
    """The largest number of letters to remove."""
    reason: str


class OnBehalf(msgspec.Struct, frozen=True, gc=False):
    """An operator's request to send a notification in the name of a client."""

    source: str
    """The client's address."""
    to: tuple[str, ...]
    type: str
    body: bytes
    client: str
    """The client name under which the operator sends it."""


class Look(msgspec.Struct, frozen=True, gc=False):
    """A request to check the bounds of all mailboxes, and the bounds for dead letters."""


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """The reply that a client's publishes up to this number are accepted: each will be delivered exactly once, or
    become a dead letter."""

    client: str
    number: int
    unhurried: bool = False
    """Whether this reply may be sent a little later, because the answer to a call will follow and shows that the call
    was accepted."""


class Refused(msgspec.Struct, frozen=True, gc=False):
    """The reply that one publish of a client, or several in a row, were refused, with the reason. The server skips the
    publishes that follow them. Unless ``retry`` is set, the client sends the skipped ones again with new numbers."""

    unhurried: ClassVar[bool] = False
    client: str
    number: int
    reason: str
    count: int = 1
    retry: bool = False
    """Whether the same publish may be accepted later."""
    code: str = ""
    """The reason in one word, for programs."""


class Denied(msgspec.Struct, frozen=True, gc=False):
    """Publishes of a client that its permissions or its limits do not allow. The machine refuses them when it has
    processed all earlier publishes of the client; no record contains them."""

    client: str
    number: int
    count: int
    reason: str
    retry: bool
    code: str

    def replies(self, last: int) -> "list[Accepted | Refused]":
        """Return the reply, if any is due: ``last`` is the number of the client's last publish that was accepted."""
        known = last + 1 - self.number
        if known >= self.count:
            return [Accepted(self.client, last)]
        if known < 0:
            # An earlier publish was refused: the client returns with new numbers.
            return []
        return [Refused(self.client, last + 1, self.reason, self.count - known, self.retry, self.code)]


class Step(msgspec.Struct, gc=False):
    """The result of a step: its record, the output that may leave once the record is durable, and the letters to hand
    out."""

    record: bytes | None
    outgoing: list[Outgoing]
    replies: list[Accepted | Refused]
    due: list[React]
    faults: list[tuple[str, str, str]]
    """(domain, peer, reason): what peers did wrong. The driver closes the connection of the peer and logs the
    reason."""


class Outputs(Protocol):
    """The receiver of the output that the gate lets leave, and of the driver's reports."""

    def send(self, outgoing: list[Outgoing]) -> None:
        """Write frames and acknowledgements to peers; called by the gate only."""
        ...

    def reply(self, replies: list[Accepted | Refused]) -> None:
        """Send replies to clients' publishes. Called by the gate, and by ``Driver.hand_out`` for replies whose records
        are durable."""
        ...

    def deliver(self, due: React) -> None:
        """Hand out letters for a client; they must leave through the gate. (The gate lets some answers leave early, see
        :mod:`antecede.server.driver.gate`.)"""
        ...

    def fault(self, domain: str, peer: str, reason: str) -> None:
        """Report that a peer did something wrong."""
        ...

    def hold(self, held: bool) -> None:
        """Stop reading from all connections, or continue."""
        ...

    def organised(self, due: list[React]) -> None:
        """Process a step that has applied an item about a change of the topology. ``due``: the letters that the step
        has handed out; the receiver may remove some of them."""
        ...


class Log(Protocol):
    """The log messages of a server's classes, for operators. Each call logs one event with its fields."""

    def info(self, event: str, **fields: Any) -> None:
        """Log something that an operator may want to know."""
        ...

    def warning(self, event: str, *, raised: BaseException | None = None, **fields: Any) -> None:
        """Log something that an operator should look at. ``raised``: an exception to log with its traceback."""
        ...

    def error(self, event: str, **fields: Any) -> None:
        """Log an error because of which the server cannot do its work."""
        ...

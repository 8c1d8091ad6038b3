"""The inputs and outputs of a server's step. Inputs that are also items of a record are defined in
:mod:`antecede.server.items`."""

from typing import Any, ClassVar, Final, Protocol

import msgspec

from antecede import limits
from antecede.channel.consumer import Outgoing
from antecede.engine import React
from antecede.link import Ack, Frame, Hello
from antecede.orders import OrderSpec
from antecede.topology import Mailboxes, Topology, TopologyFile

OPERATOR: Final = "dead-letters"
"""The client name under which dead letters are sent again. It is the same on every server."""


class Plan(msgspec.Struct, frozen=True):
    """The configuration of a server: the topology, each domain's order, and the server of each named agent."""

    topology: Topology
    orders: dict[str, OrderSpec]
    homes: dict[str, str]
    resend_after: float = limits.link_resend_first_seconds
    """The time in seconds after which a frame is resent if it is not acknowledged. If connections lose frames only when
    they break, this time may be long: lost frames are always resent after the next hello."""
    mailboxes: Mailboxes = Mailboxes()
    """The settings of the mailboxes, for example how much may wait in them."""
    file: TopologyFile | None = None
    """The topology with its addresses and classes, if it comes from a file."""

    @property
    def moved(self) -> dict[str, str]:
        """Removed server → the server that now has the clients of the removed server. The clients keep their
        addresses."""
        return {} if self.file is None else self.file.moved

    def holding(self, server: str) -> list[str]:
        """Return the names of the agents that are on this server and use holding. A letter to such an agent is held if
        the letter depends on a dead letter."""
        return sorted(agent for agent in self.mailboxes.hold if self.homes.get(agent) == server)


class FromPeer(msgspec.Struct, frozen=True, gc=False):
    """A frame, an acknowledgement or a hello that has come from a peer in a domain."""

    domain: str
    peer: str
    content: Frame | Ack | Hello


class Replay(msgspec.Struct, frozen=True, gc=False):
    """An operator's request to send a dead letter again. The request becomes two items of one record: one sends the
    letter, the other removes it from the dead letters. So both happen, or neither."""

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
    """The address of the client in whose name the notification is sent."""
    to: tuple[str, ...]
    type: str
    body: bytes
    client: str
    """The client name under which the server numbers the operator's publishes."""


class Look(msgspec.Struct, frozen=True, gc=False):
    """A request to check the bounds of all mailboxes, and the bounds for dead letters."""


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """A reply to a client: the server has accepted the client's publishes up to this number. Each of them will be
    delivered exactly once, or become a dead letter."""

    client: str
    number: int
    unhurried: bool = False
    """Whether this reply may be sent a little later, because the answer to a call will follow and shows that the call
    was accepted."""


class Refused(msgspec.Struct, frozen=True, gc=False):
    """A reply to a client: the server has refused one of its publishes, or several consecutive ones. The reply contains
    the reason. The server also skips all publishes that the client sent after the refused ones. If ``retry`` is true,
    the client sends all of them again later, with the same numbers. If ``retry`` is false, the client sends only the
    skipped publishes again, with new numbers."""

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
    """A client's publishes that are forbidden by the client's permissions or limits. The server's state machine refuses
    them after it has processed all earlier publishes of the client. No record contains them."""

    client: str
    number: int
    count: int
    reason: str
    retry: bool
    code: str

    def replies(self, last: int) -> "list[Accepted | Refused]":
        """Return a list with the reply to these publishes. ``last``: the number of the client's last publish that was
        accepted. Publishes up to this number are not refused. The list is empty if an earlier publish of the client was
        refused, because the reply to the earlier publish also applies to these publishes (see :class:`Refused`)."""
        known = last + 1 - self.number
        if known >= self.count:
            return [Accepted(self.client, last)]
        if known < 0:
            # An earlier publish was refused: the client returns with new numbers.
            return []
        return [Refused(self.client, last + 1, self.reason, self.count - known, self.retry, self.code)]


class Step(msgspec.Struct, gc=False):
    """The result of a step: its record, the output that may leave when the record is durable, and the letters to hand
    out to agents and clients."""

    record: bytes | None
    outgoing: list[Outgoing]
    replies: list[Accepted | Refused]
    due: list[React]
    faults: list[tuple[str, str, str]]
    """The errors of peers, each as (domain, peer, reason). The driver reports each error with ``Outputs.fault``, so
    that the connection to the peer is closed and the reason is logged."""


class Outputs(Protocol):
    """The methods that a driver calls to report events, and to send output that has passed the gate
    (:mod:`antecede.server.driver`)."""

    def send(self, outgoing: list[Outgoing]) -> None:
        """Write frames and acknowledgements to peers; called by the gate only."""
        ...

    def reply(self, replies: list[Accepted | Refused]) -> None:
        """Send replies to clients' publishes. The gate calls this method. ``Driver.hand_out`` calls it, too, for
        replies whose records are durable."""
        ...

    def deliver(self, due: React) -> None:
        """Hand out letters to a client. They must leave through the gate. (The gate lets some answers leave early, see
        :mod:`antecede.server.driver`.)"""
        ...

    def fault(self, domain: str, peer: str, reason: str) -> None:
        """Report that a peer did something wrong."""
        ...

    def hold(self, held: bool) -> None:
        """Stop reading from all connections if ``held`` is true. Otherwise, continue to read."""
        ...

    def check_marks(self) -> None:
        """Check the high-water marks, because many letters have come since the last check."""
        ...

    def organised(self, due: list[React]) -> None:
        """Report that a step has applied an item about a change of the topology. ``due``: the letters that the step
        hands out; this method may remove some of them from the list."""
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
        """Log an error that prevents the server from doing its work."""
        ...

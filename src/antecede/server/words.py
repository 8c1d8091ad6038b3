"""What goes into a server's step besides records' items, and what comes out of it."""

from typing import Any, Protocol

import msgspec

from antecede import limits
from antecede.channel import Outgoing
from antecede.engine import React
from antecede.link import Ack, Frame, Hello
from antecede.orders import OrderSpec
from antecede.topology import Topology


class Plan(msgspec.Struct, frozen=True):
    """What a server knows of the world: the organisation, each domain's order, where the named agents live."""

    topology: Topology
    orders: dict[str, OrderSpec]
    homes: dict[str, str]
    resend_after: float = limits.link_resend_first_seconds
    """How long a frame may go unacknowledged. Where the network beneath loses nothing but whole connections, longer."""


class FromPeer(msgspec.Struct, frozen=True, gc=False):
    """Something arrives from a peer of a domain."""

    domain: str
    peer: str
    content: Frame | Ack | Hello


class Replay(msgspec.Struct, frozen=True, gc=False):
    """An operator wants a dead letter to be sent again. It becomes two items of one record: what was sent again is
    dead no more, and nothing is taken off the list that was not sent."""

    key: str
    to: tuple[str, ...]
    client: str
    """As whom; the number is given when its turn has come."""


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """A client's publishes up to this number are on disk: from here delivery exactly once is promised."""

    client: str
    number: int


class Refused(msgspec.Struct, frozen=True, gc=False):
    """A client's publish, or several in a row, was not taken, and why; nor is any after it under its old number."""

    client: str
    number: int
    reason: str
    count: int = 1
    retry: bool = False
    """The same publish may be taken later."""


class Step(msgspec.Struct):
    """What a step did: its record, what may leave once that is durable, what may be run at once."""

    record: bytes | None
    outgoing: list[Outgoing]
    replies: list[Accepted | Refused]
    due: list[React]
    faults: list[tuple[str, str, str]]
    """(domain, peer, reason): what peers did wrong. The driver closes that connection and logs the reason."""


class Log(Protocol):
    """Where a server's classes write what operators should know: one event with its fields per call."""

    def info(self, event: str, **fields: Any) -> None:
        """Log something that an operator may want to know."""
        ...

    def warning(self, event: str, *, raised: BaseException | None = None, **fields: Any) -> None:
        """Log something that an operator should look at; ``raised``: with its traceback."""
        ...

    def error(self, event: str, **fields: Any) -> None:
        """Log something that keeps the server from doing its work."""
        ...

"""The types of the statements in a scenario file. Each statement has its line number.

Other modules read the text (:mod:`antecede.simulator.scenario`) and play the statements
(:mod:`antecede.simulator.player`).
"""

from collections.abc import Collection

import msgspec

from antecede.errors import ScenarioError
from antecede.messages import COPY
from antecede.orders import OrderSpec

GUARANTEES = ("fifo", "causal", "total", "synchronous", "significant")


class Parcel(msgspec.Struct, frozen=True):
    """The packet that an ``arrive`` or ``lose`` line names: a copy of a message, or a control packet.

    For a copy, ``source`` is empty. For a control packet, ``source`` is its sender, and ``message`` is empty if the
    packet belongs to no message.
    """

    kind: str
    message: str
    source: str = ""

    def __str__(self) -> str:
        return self.message if self.kind == COPY else f"{self.kind}({self.message},{self.source})"


class Statement(msgspec.Struct, frozen=True):
    """One line of a scenario: an action or an expectation."""

    line: int


class SendLine(Statement, frozen=True):
    """The statement ``send M FROM -> TO,TO``: process FROM sends message M to these processes."""

    message: str
    source: str
    to: tuple[str, ...]


class ArriveLine(Statement, frozen=True):
    """The statement ``arrive M AT [again]``: packet M arrives at process AT. With ``again``, the packet has already
    arrived there, and arrives a second time."""

    parcel: Parcel
    at: str
    again: bool = False


class LoseLine(Statement, frozen=True):
    """The statement ``lose M AT``: packet M is lost on its way to process AT."""

    parcel: Parcel
    at: str


class ReceiveLine(Statement, frozen=True):
    """The statement ``receive P [from Q]``: the program of process P takes a message. With ``from Q``, the program
    takes only a message from process Q."""

    process: str
    source: str | None


class DrainLine(Statement, frozen=True):
    """The statement ``drain``: all copies arrive, the oldest copy first."""


class WaitLine(Statement, frozen=True):
    """The statement ``wait SECONDS``: this time passes, and links send overdue copies again."""

    seconds: float


class CrashLine(Statement, frozen=True):
    """The statement ``crash P``: process P loses everything that is not on its disk."""

    process: str


class RestartLine(Statement, frozen=True):
    """The statement ``restart P``: a crashed process P starts again from its disk."""

    process: str


class Under(msgspec.Struct, frozen=True):
    """``under NAME,NAME`` at the end of an expectation: the expectation applies only under these orders, or under
    orders with these guarantees. Without names, the expectation always applies."""

    guarantees: tuple[str, ...] = ()
    orders: tuple[OrderSpec, ...] = ()

    def counts(self, specs: Collection[OrderSpec], kept: Collection[str]) -> bool:
        """Return whether the expectation applies in a world with the orders ``specs``. ``kept``: the guarantees that
        the world keeps between all senders and receivers.

        The expectation applies if it has no names, if all orders of the world match one of the named orders, or if the
        world keeps one of the named guarantees. There is one exception: the name ``fifo`` has no effect in a world
        that keeps causal order. Without this exception, ``fifo`` would apply under every causal order, because causal
        order includes FIFO order.
        """
        if not self.guarantees and not self.orders:
            return True
        if any(name in kept and not (name == "fifo" and "causal" in kept) for name in self.guarantees):
            return True
        return any(all(_includes(named, spec) for spec in specs) for named in self.orders)


def _includes(named: OrderSpec, played: OrderSpec) -> bool:
    """Return whether an order of the world (``played``) has the name and the options of the order ``named``."""
    if named.name != played.name:
        return False
    wanted, settings = named.sample().settings, played.sample().settings
    return all(settings[option] == wanted[option] for option in named.options)


class Expectation(Statement, frozen=True):
    """``expect …``: a condition that must hold at this line of the file."""

    under: Under


class ExpectDelivered(Expectation, frozen=True):
    """``expect P delivered a b c``: exactly these messages were delivered at P so far, in this sequence."""

    process: str
    messages: tuple[str, ...]


class ExpectHolds(Expectation, frozen=True):
    """``expect P holds m``: message m has arrived at P, and is not delivered yet. The expectation is also met if the
    line ``arrive m P`` comes earlier in the file, but the copy still waits at its sender."""

    process: str
    messages: tuple[str, ...]


class ExpectNotSent(Expectation, frozen=True):
    """``expect M not sent``: no copy of M has left its sender."""

    message: str


class ExpectRefused(Expectation, frozen=True):
    """``expect M refused``: the order refused to send M."""

    message: str


class ExpectStuck(Expectation, frozen=True):
    """``expect stuck``: nothing more can arrive, but a held message, an unsent copy or a program still waits."""


class DomainLine(msgspec.Struct, frozen=True):
    """The declaration ``domain A S1 S2 S3 [order]``: a domain of servers, which may have its own order."""

    line: int
    name: str
    servers: tuple[str, ...]
    order: OrderSpec | None


class Scenario(msgspec.Struct, frozen=True):
    """The content of a scenario file, checked as far as this is possible without playing the file."""

    file: str
    processes: tuple[str, ...]
    domains: tuple[DomainLine, ...]
    order: OrderSpec | None
    order_line: int
    manual: bool
    """Whether each control packet waits for its ``arrive`` line (declaration ``control manual``)."""
    statements: tuple[Statement, ...]
    text: tuple[str, ...]
    """The lines of the file, for messages that show them."""

    def error(self, line: int, reason: str) -> ScenarioError:
        return ScenarioError(self.file, line, reason)

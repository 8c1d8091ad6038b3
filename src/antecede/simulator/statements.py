"""The statements of a scenario file, typed, each with its line number.

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
    """The packet in ``arrive`` and ``lose``: a copy of a message; or a control packet, with its sender and the message
    that it is about, if any."""

    kind: str
    message: str
    source: str = ""

    def __str__(self) -> str:
        return self.message if self.kind == COPY else f"{self.kind}({self.message},{self.source})"


class Statement(msgspec.Struct, frozen=True):
    """One line of a scenario: an action or an expectation."""

    line: int


class SendLine(Statement, frozen=True):
    """``send M FROM -> TO,TO``."""

    message: str
    source: str
    to: tuple[str, ...]


class ArriveLine(Statement, frozen=True):
    """``arrive M AT [again]``; ``again``: a packet that has arrived arrives a second time."""

    parcel: Parcel
    at: str
    again: bool = False


class LoseLine(Statement, frozen=True):
    """``lose M AT``."""

    parcel: Parcel
    at: str


class ReceiveLine(Statement, frozen=True):
    """``receive P [from Q]``."""

    process: str
    source: str | None


class DrainLine(Statement, frozen=True):
    """``drain``."""


class WaitLine(Statement, frozen=True):
    """``wait SECONDS``."""

    seconds: float


class CrashLine(Statement, frozen=True):
    """``crash P``."""

    process: str


class RestartLine(Statement, frozen=True):
    """``restart P``."""

    process: str


class Under(msgspec.Struct, frozen=True):
    """``under NAME,NAME``: the orders or guarantees for which an expectation applies. Without names, it always
    applies."""

    guarantees: tuple[str, ...] = ()
    orders: tuple[OrderSpec, ...] = ()

    def counts(self, specs: Collection[OrderSpec], kept: Collection[str]) -> bool:
        """Return whether the expectation applies in a world of these orders with these guarantees end to end.

        ``fifo`` means FIFO order *and nothing stronger*: otherwise ``under none,fifo`` would include the causal orders.
        """
        if not self.guarantees and not self.orders:
            return True
        if any(name in kept and not (name == "fifo" and "causal" in kept) for name in self.guarantees):
            return True
        return any(all(_includes(named, spec) for spec in specs) for named in self.orders)


def _includes(named: OrderSpec, played: OrderSpec) -> bool:
    """Return whether the played order is the named order, and has the named options."""
    if named.name != played.name:
        return False
    wanted, settings = named.sample().settings, played.sample().settings
    return all(settings[option] == wanted[option] for option in named.options)


class Expectation(Statement, frozen=True):
    """``expect …``: a condition that must hold at this line of the file."""

    under: Under


class ExpectDelivered(Expectation, frozen=True):
    """``expect P delivered a b c``: the whole sequence so far."""

    process: str
    messages: tuple[str, ...]


class ExpectHolds(Expectation, frozen=True):
    """``expect P holds m``: the message has arrived at P, and waits there; or ``arrive m P`` waits until the copy is
    posted."""

    process: str
    messages: tuple[str, ...]


class ExpectNotSent(Expectation, frozen=True):
    """``expect M not sent``: no copy has left."""

    message: str


class ExpectRefused(Expectation, frozen=True):
    """``expect M refused``: the order refused to send M."""

    message: str


class ExpectStuck(Expectation, frozen=True):
    """``expect stuck``: nothing is in transit, and something waits."""


class DomainLine(msgspec.Struct, frozen=True):
    """``domain A S1 S2 S3 [order]``."""

    line: int
    name: str
    servers: tuple[str, ...]
    order: OrderSpec | None


class Scenario(msgspec.Struct, frozen=True):
    """A whole file, checked as far as possible without playing it."""

    file: str
    processes: tuple[str, ...]
    domains: tuple[DomainLine, ...]
    order: OrderSpec | None
    order_line: int
    manual: bool
    """Whether control packets wait for an explicit ``arrive``."""
    statements: tuple[Statement, ...]
    text: tuple[str, ...]
    """The lines of the file, for messages that show them."""

    def error(self, line: int, reason: str) -> ScenarioError:
        return ScenarioError(self.file, line, reason)

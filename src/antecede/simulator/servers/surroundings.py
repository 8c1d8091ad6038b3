"""The interfaces of a simulated world that its servers and clients use."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from antecede.channel import Letter
from antecede.engine import React
from antecede.engine.agents import Agent
from antecede.errors import AntecedeError
from antecede.simulator.servers.keys import Identities
from antecede.simulator.servers.network import Loop

if TYPE_CHECKING:
    from antecede.simulator.servers.server import SimulatedServer


class Surroundings(Loop, Protocol):
    """The interface of its world that a server uses."""

    identities: Identities | None

    def dial(self, server: "SimulatedServer", peer: str) -> None: ...

    def handed_out(self, due: React) -> None: ...

    def fails(self, due: React) -> bool: ...

    def snapshot_fails(self) -> bool: ...

    def version(self) -> int: ...

    def born(self, kind: str, agent: type[Agent]) -> None: ...

    def class_of(self, kind: str) -> type[Agent]: ...

    def went(self, server: "SimulatedServer") -> None: ...

    def logged(self, server: "SimulatedServer", event: str, fields: dict[str, Any]) -> None: ...


class ClientWorld(Loop, Protocol):
    """The interface of its world that a client uses."""

    identities: Identities | None

    def may_refuse(self, address: str, to: tuple[str, ...], error: AntecedeError) -> bool: ...

    def wrong(self, where: str, reason: str) -> None: ...

    def client_gone(self, address: str, error: AntecedeError) -> None:
        """Report that a client cannot continue."""
        ...

    def version(self) -> int:
        """Draw the newest wire version of a process."""
        ...

    def client_fails(self, letter: Letter) -> bool:
        """Whether the handler of this letter fails now."""
        ...

    def unless(self, stale: Callable[[], bool], time: float, call: Callable[[], None]) -> None:
        """Call a function at a time, unless it is no longer needed by then."""
        ...

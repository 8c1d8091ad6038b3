"""The interface of a simulated world that its servers use."""

from typing import TYPE_CHECKING, Any, Protocol

from antecede.engine import React
from antecede.engine.agents import Agent
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

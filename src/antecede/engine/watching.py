"""The observers of reactions while they run: spans for tracing, and the names of the calls in progress."""

from typing import Any, Protocol

from antecede.engine.context import Context


class Watch(Protocol):
    """An observer of reactions, for example for tracing."""

    def begin(self, context: Context) -> Any:
        """Called when a reaction begins; its result is passed to ``end``."""
        ...

    def end(self, begun: Any, dead: str, failure: BaseException | None) -> None:
        """Called when it has ended: successfully, with a dead letter for that reason, or with an exception."""
        ...


class Progress(Protocol):
    """Names the calls in progress, batch by batch, for the next life (:mod:`antecede.server.progress`)."""

    @property
    def running(self) -> tuple[str, str] | None: ...

    @property
    def number(self) -> int: ...

    def call(self, agent: str, letter: str) -> None: ...

    def then(self, letter: str) -> None: ...

    def begin(self, agent: str) -> int: ...

    def at(self, slot: int, letter: str) -> None: ...

    def on(self, slot: int) -> None: ...

    def off(self) -> None: ...

    def end(self, slot: int) -> None: ...

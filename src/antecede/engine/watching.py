"""Interfaces of objects that observe how agents handle letters: for tracing, and to record the calls in progress."""

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from antecede.engine.context import Context

_Result = TypeVar("_Result")


class Watch(Protocol):
    """An observer of reactions, for example for tracing."""

    def begin(self, context: Context) -> Any:
        """Observe that a reaction begins. The returned value is passed to ``end`` as ``begun``."""
        ...

    def end(self, begun: Any, dead: str, failure: BaseException | None) -> None:
        """Observe that the reaction has ended. ``dead``: the reason why the letter became a dead letter, or an empty
        text if it did not. ``failure``: the exception of the reaction, or ``None``."""
        ...


class Progress(Protocol):
    """Records the handler calls in progress. After a crash, the server starts again and reads which calls were in
    progress (:mod:`antecede.server.progress`)."""

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


class Stepwise(Generic[_Result]):
    """Awaits the coroutine that handles a batch, and records in ``progress`` when this coroutine runs. It calls
    ``progress.on`` each time that the coroutine starts or continues, and ``progress.off`` each time that the coroutine
    pauses or ends."""

    def __init__(self, batch: Coroutine[Any, Any, _Result], progress: Progress, slot: int) -> None:
        self._batch = batch
        self._progress = progress
        self._slot = slot

    def __await__(self) -> Generator[Any, Any, _Result]:
        batch, progress, slot = self._batch, self._progress, self._slot
        go_on: Callable[[], Any] = partial(batch.send, None)
        while True:
            progress.on(slot)
            try:
                awaited = go_on()
            except StopIteration as end:
                outcome: _Result = end.value
                return outcome
            finally:
                progress.off()
            try:
                go_on = partial(batch.send, (yield awaited))
            except BaseException as error:
                go_on = partial(batch.throw, error)

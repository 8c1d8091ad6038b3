"""Calls of replicated objects at one server: from the caller's letter to the answer in the caller's mailbox.

A call is a letter to an address that ends in ``()``, such as ``account()``. The type of the letter is the operation;
its body has the time limit and the arguments. The letter does not leave this server. In the same step, this server's
*site* (the code that executes operations, :mod:`antecede.objects.replicas`) begins a *root*: an operation instance that
makes the call. The root's messages are messages of the domain's order. When the root has ended, the caller gets a
letter with a :class:`~antecede.engine.agents.Returned`. This letter does not leave the server either.

**Exactly once** follows from the records of the log. A call begins with a publish (a message from a client) or with the
reaction of an agent. This publish or reaction is in one record. Later records contain the packets of the call, and the
moment at which its time limit ends. Everything else can be computed again from these records, so a crash loses nothing
of a call. A repeated publish is recognised by its number.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from antecede import limits
from antecede.channel import Channel, Letter
from antecede.engine import Returned, name_of
from antecede.errors import OverloadError, StoreError, UsageError
from antecede.messages import Effects
from antecede.objects.instances import Answered
from antecede.objects.replicas import Called, Replicas, Row, parted
from antecede.objects.state import is_deep

Body = tuple[int, list[Any]]
"""The time limit of a call in milliseconds, and its arguments."""

_decode = msgspec.msgpack.Decoder(Body).decode
_timeout_ms_max = limits.call_seconds_max * 1000


def is_call(to: tuple[str, ...]) -> bool:
    """Return whether a letter to these addresses is a call."""
    return len(to) == 1 and to[0].endswith("()")


def unfit(body: bytes) -> str:
    """Return the reason why these bytes are not a valid body of a call, or an empty text if they are valid."""
    try:
        timeout_ms, arguments = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return f"unreadable call: {error}"
    if not 0 < timeout_ms <= _timeout_ms_max:
        return f"time limit of {timeout_ms} ms for a call: expected 1 to {_timeout_ms_max}"
    if is_deep(arguments):
        return f"arguments of a call are nested deeper than {limits.call_depth_max}"
    return ""


def deadline_of(body: bytes, clock_ms: int) -> int:
    """Return the deadline (in milliseconds) of a call that begins at the time ``clock_ms``."""
    timeout_ms: int = _decode(body)[0]
    return clock_ms + timeout_ms


class Calls:
    """All calls that clients and agents of one server make. ``site`` is the server's member of the order ``objects``,
    or None if no domain of the server has objects."""

    def __init__(self, channel: Channel, prefix: str) -> None:
        self._channel = channel
        self.domain = ""
        """The name of the server's domain that has objects; empty if no domain has objects."""
        self._prefix = prefix
        self.site: Replicas | None = None
        self.sure: set[str] = set()
        """The ids of some answers of this step: these answers may be sent before they are in the log. If a crash loses
        such an answer, the server gives the same answer again after its restart."""
        for name, consumer in channel.consumers.items():
            if isinstance(consumer.order, Replicas):
                self.domain, self.site = name, consumer.order
                consumer.order.named(prefix.split(".")[-2])

    def call(
        self, source: str, letter: str, to: str, operation: str, body: bytes, ask: str, when: tuple[int, float]
    ) -> None:
        """Begin a call. ``letter``: the id of the call's letter. ``when``: the deadline of the call in server time, and
        the time of the step."""
        assert self.site is not None
        called = Called(source, letter, ask, to.removesuffix("()"), operation)
        self._perform(self.site.call(called, _decode(body)[1], when[0]), when[1])

    @property
    def open(self) -> int:
        """The number of unfinished calls of this server's clients and agents, including calls that wait to begin."""
        return 0 if self.site is None else self.site.open_calls

    def computing(self) -> tuple[tuple[str, str] | None, int]:
        """Return two values: the object and operation that are being computed (None if nothing is being computed), and
        a number that changes with each computation. A watchdog calls this method from another thread."""
        if self.site is None:
            return None, 0
        live = self.site.execution.intentions.live
        running = live.running
        return (parted(running) if running else None), live.runs

    def check(self, bodies: list[bytes]) -> None:
        """Check the calls in one message that a client gives to its server. ``bodies``: the bodies of these calls.
        Raise an error if there is more than one call, if the call is not valid, or if ``limits.calls_open_max`` calls
        are unfinished."""
        if self.open >= limits.calls_open_max:
            raise OverloadError(f"this server has {self.open} unfinished calls to objects: try again later")
        if fault := unfit(bodies[0]) if len(bodies) == 1 else "several calls in one publish: expected one":
            raise UsageError(fault)

    def alarm_ms(self) -> int | None:
        """Return the earliest deadline of all calls, or None if no call has one."""
        due = None if self.site is None else self.site.deadline()
        return None if due is None else int(due)

    def expire(self, clock_ms: int, now: float) -> None:
        """Abort the calls whose deadline has passed."""
        assert self.site is not None
        self._perform(self.site.tick(clock_ms), now)

    def settle(self, now: float) -> None:
        """End a step. First start each waiting call that may start now. Then send the time of this server's logical
        clock to the other servers that still need it. Call this method at the end of every step: all other messages of
        the step must already have their stamps (the control information of the order)."""
        while self.site is not None and (effects := self.site.settle()):
            self._perform(effects, now)

    def _perform(self, effects: Effects, now: float) -> None:
        self._channel.consumers[self.domain].perform(effects, now)

    def answers(self, life: int) -> list[Letter]:
        """Return one letter with the answer for each call that has ended since the last use of this method. If the
        caller does not wait for an answer, there is no letter. ``life``: a number that increases with each restart of
        the server; the ids of the letters contain it."""
        if self.site is None or not self.site.ended:
            return []
        ended, self.site.ended = self.site.ended, []
        return [self._letter(called, answered, life) for called, answered in ended if called.ask]

    def report(self, error: Callable[..., None]) -> None:
        """Log each call that failed at this replica after another server had committed it. (The server where a call
        begins may commit and answer the call without waiting for the other replicas.) The cause of such a failure is a
        conflict that is not declared, or code that is not deterministic."""
        while self.site is not None and self.site.failed:
            failed = self.site.failed.pop(0)
            error("replica-differs", operation=failed.operation, instance=failed.instance, reason=failed.reason)

    def are_sure(self, letters: Iterable[Letter]) -> bool:
        """Return whether these letters may be sent to clients before they are in the log, because all of them are in
        ``sure``."""
        return bool(self.sure) and all(letter.id in self.sure for letter in letters)

    def resumed(self) -> None:
        """After a start of the server, remove the deadlines of some unfinished calls; see :meth:`Replicas.resumed`."""
        if self.site is not None:
            self.site.resumed()

    def _letter(self, called: Called, answered: Answered, life: int) -> Letter:
        # The id is derived from that of the call's letter: it is not a message, and obeys no order. A crash may lose an
        # answer, and then the next one may be another. So it must have another id.
        assert self.site is not None
        id_ = f"{self._prefix}c{called.letter.removeprefix(self._prefix)}-{life}"
        returned = Returned(
            object=called.object,
            operation=called.operation,
            ok=answered.ok,
            value=answered.answer if answered.ok else None,
            reason="" if answered.ok else str(answered.answer),
            late=answered.late,
            tries=answered.tries,
        )
        if answered.ok and self.site.is_sure(called.object, called.operation):
            self.sure.add(id_)
        body = msgspec.msgpack.encode(returned)
        return Letter(id_, called.object, (called.caller,), name_of(Returned), body, answers=called.ask)

    def record(self) -> tuple[dict[str, list[list[str]]] | None, list[Row]]:
        """Return the data about objects for a step's record in the log: the table of conflicts (None if the log already
        has it), and the rows of the step. Each row is one event. If the step has no rows, return None and an empty
        list."""
        site = self.site
        if site is None or not site.rows:
            return None, []
        conflicts = None if site.logged == site.conflicts else site.conflicts
        site.logged = site.conflicts
        rows, site.rows = site.rows, []
        return conflicts, rows

    def recorded(self, conflicts: dict[str, list[list[str]]]) -> None:
        """Record that the log has this table of conflicts."""
        if self.site is not None:
            self.site.logged = conflicts

    def compare(self, kept: list[Row]) -> None:
        """Compare the rows (events) in the log (``kept``) with the rows that a recovery has computed again. Raise
        StoreError if they differ."""
        done: list[Row] = []
        if self.site is not None:
            done, self.site.rows = self.site.rows, []
            self.site.failed.clear()
        self.sure.clear()
        if done == kept:
            return
        one, other = next(
            ((one, other) for one, other in zip(kept, done, strict=False) if one != other), (kept[-1:], done[-1:])
        )
        raise StoreError(
            "operations gave different results when the log was replayed "
            f"({_shown(other)} instead of {_shown(one)}): they are not deterministic, or their code was changed after "
            "a crash; start the server with the previous code, stop it, then change the code"
        )


def _shown(row: Any) -> str:
    if not isinstance(row, Row):
        return "nothing" if not row else _shown(row[0])
    return f"{row.kind} {row.type} of {row.operation} {row.instance} at {row.process}"

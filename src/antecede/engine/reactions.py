"""Batches of letters that the engine hands out to agents and clients, and the outcome of each letter."""

from collections.abc import Callable

import msgspec

from antecede import limits
from antecede.channel.letters import Letter
from antecede.engine.agents import Unanswered, name_of
from antecede.engine.context import Alarm, Birth, Outbound
from antecede.errors import UsageError
from antecede.whereabouts import writable


class React(msgspec.Struct, frozen=True, gc=False):
    """A batch: the next letters of an agent or a client, in the sequence in which they must be handled."""

    agent: str
    letters: tuple[Letter, ...]
    handlers: tuple[str, ...]
    """For each letter, the name of the handler to call. If the letter is an answer, the agent chose this handler when
    it asked the question. If the name is empty, the type of the letter decides which handler is called. If the name is
    ``STALE``, the letter is an answer, but no question waits for it, so no handler is called."""
    state: bytes | None
    """The agent's saved state; ``None`` if the agent has no saved state yet."""
    durable: bool = False
    """Whether all letters are known to be durable. A durable letter keeps its id after a crash."""


STALE = "-"


class Reaction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The outcome of one letter. The outcome is committed when the log record that contains it is durable."""

    letter: str
    outbound: tuple[Outbound, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    births: tuple[Birth, ...] = ()
    dead: str = ""
    """The reason why the letter is dead; empty if it is not dead."""
    expired: bool = False
    """Whether the letter is dead because it expired (:mod:`antecede.engine.quotas`). Letters that depend on an expired
    letter do not have to wait for an operator's decision (:mod:`antecede.engine.following`)."""


def died(letter: Letter, reason: str, check: Callable[[tuple[str, ...]], object], expired: bool = False) -> Reaction:
    """Return the outcome of a letter that is dead for this reason. If the letter is a question, its sender gets a
    notice: the outcome contains an :class:`Unanswered` with the reason. ``check``: a function that raises an error if
    the sender's address does not exist. If it raises an error, the outcome contains no notice."""
    reason = writable(reason[: limits.reason_chars_max])
    replies: tuple[Outbound, ...] = ()
    if letter.ask:
        try:
            check((letter.source,))
        except UsageError:
            pass
        else:
            body = msgspec.msgpack.encode(Unanswered(ask=letter.ask, reason=reason))
            replies = (Outbound((letter.source,), name_of(Unanswered), body, answers=letter.ask),)
    return Reaction(letter.id, replies, dead=reason, expired=expired)

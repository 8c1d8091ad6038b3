"""The batches of letters that the engine hands out for reactions, and the outcome of each letter."""

from collections.abc import Callable

import msgspec

from antecede import limits
from antecede.channel.letters import Letter
from antecede.engine.agents import Unanswered, name_of
from antecede.engine.context import Alarm, Birth, Outbound
from antecede.errors import UsageError
from antecede.whereabouts import writable


class React(msgspec.Struct, frozen=True, gc=False):
    """The next letters of an agent, in this sequence."""

    agent: str
    letters: tuple[Letter, ...]
    handlers: tuple[str, ...]
    """For each letter, the handler to call. For an answer, it is the handler that the question named, if any. Empty:
    the letter's type decides. ``STALE``: no question waits for this answer."""
    state: bytes | None
    """The agent's saved state; ``None`` if it has none yet."""
    durable: bool = False
    """Whether the letters are known to be durable, so that they keep their ids."""


STALE = "-"


class Reaction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The outcome of one letter. It is committed when its record is durable."""

    letter: str
    outbound: tuple[Outbound, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    births: tuple[Birth, ...] = ()
    dead: str = ""
    """The reason why the letter is dead; empty: it is not dead."""
    expired: bool = False
    """Whether the letter is dead because of a quota. Letters that follow from such a letter are not held."""


def died(letter: Letter, reason: str, check: Callable[[tuple[str, ...]], object], expired: bool = False) -> Reaction:
    """Return the outcome of a letter that is dead for this reason. If the letter is a question, its sender is notified.
    ``check`` raises an error for an address that does not exist; then the sender is not notified."""
    reason = writable(reason[: limits.reason_chars_max])
    told: tuple[Outbound, ...] = ()
    if letter.ask:
        try:
            check((letter.source,))
        except UsageError:
            pass
        else:
            body = msgspec.msgpack.encode(Unanswered(ask=letter.ask, reason=reason))
            told = (Outbound((letter.source,), name_of(Unanswered), body, answers=letter.ask),)
    return Reaction(letter.id, told, dead=reason, expired=expired)

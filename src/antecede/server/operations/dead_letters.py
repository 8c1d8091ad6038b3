"""Operators' commands about dead letters: list them, show one, send letters again, and remove letters from the list.
Some commands are about one letter, others about many letters.

Commands about many letters work on one page at a time (:func:`antecede.engine.page_of`). Each page is one request, one
step and one record of limited size, so the server's other work waits at most a few milliseconds. An operator's program
repeats the request with the number at which the last page ended. If the program is interrupted, the operator can simply
start it again.
"""

import json
from collections.abc import Callable
from typing import Any

import msgspec

from antecede import limits
from antecede.engine import Choice, Dead, Page, Range, page_of
from antecede.errors import MissingError, OverloadError, UsageError
from antecede.labels import label_in
from antecede.server import AgentServer, Input
from antecede.server.inputs import OPERATOR, Replay, ReplayMany
from antecede.server.items import Buried, BuriedMany


class DeadLetters:
    """The commands about the dead letters of one server."""

    def __init__(self, machine: AgentServer, change: Callable[[Input], None]) -> None:
        """``change``: a function that gives an input to the server. It raises an error if the server cannot write its
        log now."""
        self._machine = machine
        self._change = change
        self.commands: dict[str, tuple[int, Callable[..., Any]]] = {
            "dead-list": (0, self.list),
            "dead-page": (7, self.page),
            "dead-show": (1, self.show),
            "dead-replay": (1, self.replay),
            "dead-bury": (1, self.bury),
            "dead-replay-page": (7, self.replay_page),
            "dead-bury-page": (7, self.bury_page),
        }
        """The commands, each with the number of its arguments."""

    def list(self) -> list[dict[str, Any]]:
        """Return all dead letters, oldest first."""
        return [self._shown(dead) for dead in self._machine.engine.dead.values()]

    def show(self, id_: str) -> dict[str, Any]:
        """Return one dead letter, with the fields of its message in ``fields``. ``fields`` is None if the message is
        too long to be shown, or if JSON cannot express it."""
        dead = self._find(id_)
        letter = dead.letter
        try:
            text = msgspec.json.encode(msgspec.msgpack.decode(letter.body))
            fields = json.loads(text) if len(text) <= limits.dead_shown_bytes_max else None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError, ValueError):
            # MessagePack can contain what JSON cannot: a key that is a list, an extension type.
            fields = None
        shown = {**self._shown(dead), "to": list(letter.to[:_to_max]), "destinations": len(letter.to)}
        return {**shown, "fields": fields, "bytes": letter.body.hex()[:4_000], "length": len(letter.body)}

    def replay(self, id_: str) -> dict[str, Any]:
        """Send a dead letter again, as a new letter, and remove the dead letter from the list. Usually a dead letter
        belongs to one agent or client, which did not handle the letter. Then the new letter goes only to this agent
        or client. But if a server could not forward the letter to any agent or client, the new letter goes to all
        destinations of the old letter. The new letter keeps the original sender. If the letter was a question and its
        sender still waits, the sender gets the answer."""
        dead = self._find(id_)
        to = self._destinations(dead)
        self._check_load()
        if self._machine.engine.is_frozen(dead.agent):
            raise OverloadError(f"agent {dead.agent} is being moved or removed: try again later")
        self._change(Replay(dead.key, to, OPERATOR))
        return {"replayed": dead.letter.id, "agent": dead.agent, "from": dead.letter.source}

    def bury(self, id_: str) -> dict[str, Any]:
        """Remove a dead letter from the list permanently."""
        dead = self._find(id_)
        self._change(Buried(dead.key))
        return {"buried": dead.letter.id, "agent": dead.agent}

    # Many at once. The arguments are those of ``_page``.

    def page(self, *arguments: str) -> dict[str, Any]:
        """Return one page of dead letters, oldest first."""
        page = self._page(*arguments, letters_max=limits.dead_page_letters_max, size=_shown_bytes)
        return {**self._page_fields(page), "letters": [self._shown(dead) for dead in page.letters]}

    def replay_page(self, *arguments: str) -> dict[str, Any]:
        """Send the dead letters of one page again. Letters without a valid destination, or for an agent that is being
        moved or removed, stay on the list."""
        self._check_load()
        page = self._page(*arguments, letters_max=limits.dead_page_letters_max, size=_body_bytes)
        replays, size = [], 0
        for dead in page.letters:
            if self._machine.engine.is_frozen(dead.agent):
                continue
            try:
                replays.append(Replay(dead.key, self._destinations(dead), OPERATOR))
            except UsageError:
                continue
            size += len(dead.letter.body)
        if replays:
            self._change(ReplayMany(tuple(replays), size))
        return {**self._page_fields(page), "replayed": len(replays), "skipped": len(page.letters) - len(replays)}

    def bury_page(self, *arguments: str) -> dict[str, Any]:
        """Remove the dead letters of one page permanently."""
        page = self._page(*arguments, letters_max=limits.drop_letters_max, size=lambda dead: 0)
        if page.letters:
            self._change(BuriedMany([dead.key for dead in page.letters]))
        return {**self._page_fields(page), "buried": len(page.letters)}

    def _page(
        self,
        after: str,
        last: str,
        first: str,
        agent: str,
        type_: str,
        reason: str,
        before_ms: str,
        *,
        letters_max: int,
        size: Callable[[Dead], int],
    ) -> Page:
        """Return one page of the dead letters that meet all these conditions. The letter's number is larger than
        ``after``, and at most ``last``. Its agent is ``agent``, and its type is ``type_``. Its reason contains the text
        ``reason``. It became a dead letter before the wall clock time ``before_ms``. The page has at most
        ``letters_max`` letters, and at most ``first`` letters. An empty text or the number 0 sets no condition.
        ``size``: a function that returns the size of a letter. The total size of a page is limited."""
        wanted = _number("first", first)
        within = Range(
            _number("after", after),
            _number("last", last),
            min(wanted or letters_max, letters_max),
            limits.dead_page_bytes_max,
            limits.dead_page_examined_max,
        )
        # An operator's times are those of the wall clock.
        before = _number("before_ms", before_ms)
        choice = Choice(agent, type_, reason, before and max(1, before - self._machine.clock.times.ahead_ms))
        return page_of(self._machine.engine.dead, choice, within, size)

    def _page_fields(self, page: Page) -> dict[str, Any]:
        engine = self._machine.engine
        return {
            "server": self._machine.name,
            "upto": page.upto,
            "more": page.more,
            "dead": len(engine.dead),
            "last": engine.deaths,
        }

    def _destinations(self, dead: Dead) -> tuple[str, ...]:
        # A letter that died at a server, not at an agent, goes to its destinations.
        machine = self._machine
        return machine.channel.check(dead.letter.to if dead.agent == machine.name else (dead.agent,))

    def _check_load(self) -> None:
        if self._machine.overloaded:
            raise OverloadError(f"server {self._machine.name} is catching up: try again later")
        if self._machine.organisation.closed:
            raise OverloadError(self._machine.organisation.closed)

    def _find(self, id_: str) -> Dead:
        dead = self._machine.engine.dead
        if id_ in dead:
            return dead[id_]
        found = [one for one in dead.values() if one.letter.id == id_]
        if not found:
            raise MissingError(f"no dead letter {id_[:200]!r} on {self._machine.name}")
        if len(found) > 1:
            raise UsageError(
                f"several dead letters have the id {id_[:200]!r} on {self._machine.name}: give a key (dead list --json)"
            )
        return found[0]

    def _shown(self, dead: Dead) -> dict[str, Any]:
        letter, following = dead.letter, self._machine.engine.following
        held = len(following.held.get(dead.agent, ())) if dead.key in following.blocks.get(dead.agent, ()) else 0
        return {
            "key": dead.key,
            "id": letter.id,
            "server": self._machine.name,
            "agent": dead.agent,
            "from": letter.source,
            "type": letter.type,
            "label": label_in(letter.context),
            "reason": dead.reason,
            "place": f"{self._machine.name}:{dead.number}",
            "since_ms": dead.since_ms and dead.since_ms + self._machine.clock.times.ahead_ms,
            "holds": held,
            "undecided": following.undecided(dead.agent) if held else 0,
        }


def _number(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > _digits_max or not text.isascii():
        raise UsageError(f"{name} {text[:32]!r}: expected a whole number of at most {_digits_max} digits")
    return int(text)


def _shown_bytes(dead: Dead) -> int:
    letter = dead.letter
    return _line_bytes + len(dead.reason) + 2 * len(dead.agent) + len(letter.source) + len(letter.type)


def _body_bytes(dead: Dead) -> int:
    return len(dead.letter.body)


_line_bytes = 300
_to_max = 1_000
"""The largest number of destinations that are shown for one letter."""
_digits_max = 19

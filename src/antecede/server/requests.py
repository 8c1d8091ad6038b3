"""Requests that a step turns into items of its record: what operators want done with letters.

Each function returns the items one after the other. The machine applies an item before it asks for the next one, so
that each sees the effects of those before it. A replay of the log applies the same items and needs none of this.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from antecede.engine import Engine, Reaction
from antecede.server.items import Buried, BuriedMany, Item, Reacted, sent_again
from antecede.server.words import Drop, Replay, ReplayMany

Change = Replay | ReplayMany | Drop


def _replay(engine: Engine, clients: dict[str, int], given: Replay, clock_ms: int) -> Iterator[Item]:
    dead = engine.dead.get(given.key)
    if dead is not None:
        # Otherwise another operator has already removed the letter.
        yield sent_again(dead.letter, given.client, clients.get(given.client, 0) + 1, given.to)
        yield Buried(given.key)


def _replay_many(engine: Engine, clients: dict[str, int], given: ReplayMany, clock_ms: int) -> Iterator[Item]:
    sent: list[str] = []
    for one in given.letters:
        dead = engine.dead.get(one.key)
        if dead is not None:
            yield sent_again(dead.letter, one.client, clients.get(one.client, 0) + 1, one.to)
            sent.append(one.key)
    if sent:
        yield BuriedMany(sent)


def _drop(engine: Engine, clients: dict[str, int], given: Drop, clock_ms: int) -> Iterator[Item]:
    letters = [letter.id for letter in islice(engine.mailboxes.get(given.address, ()), given.letters)]
    if letters:
        yield Reacted(given.address, tuple([Reaction(letter, dead=given.reason) for letter in letters]), None, clock_ms)
        yield BuriedMany([f"{letter} {given.address}" for letter in letters])


CHANGES: dict[type, Callable[[Engine, dict[str, int], Any, int], Iterator[Item]]] = {
    Replay: _replay,
    ReplayMany: _replay_many,
    Drop: _drop,
}
"""For each kind of request, the function that returns its items."""

"""Functions that turn a request into items. The log record of the current step contains these items. Requests come from
operators, from the regular check of quotas, and from changes of the topology.

Each function yields items one after the other. The machine applies an item before it asks for the next one, so that the
function sees the effects of the earlier items. A replay of the log applies the same items, and does not call these
functions.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from antecede import limits
from antecede.channel.letters import Letter, plain_bytes
from antecede.engine import Engine, Reaction, died
from antecede.engine.dead import Dead
from antecede.engine.quotas import Excess
from antecede.server.inputs import Drop, Look, OnBehalf, Replay, ReplayMany
from antecede.server.items import (
    Acknowledged,
    Buried,
    BuriedMany,
    Committed,
    Holding,
    Item,
    Learned,
    Organised,
    Published,
    Reacted,
    Seen,
    Tried,
    Truncated,
    sent_again,
)
from antecede.server.progress import ENDED_WELL, Interrupted

if TYPE_CHECKING:
    from antecede.server import AgentServer

Request = Replay | ReplayMany | Drop | Look | OnBehalf | Acknowledged


def _replay(machine: "AgentServer", given: Replay, clock_ms: int) -> Iterator[Item]:
    dead = machine.engine.dead.get(given.key)
    if dead is not None and _may_send_again(machine, dead):
        # Otherwise another operator has already removed the letter.
        yield sent_again(dead.letter, given.client, machine.clients.get(given.client, 0) + 1, given.to)
        yield Buried(given.key)


def _may_send_again(machine: "AgentServer", dead: Dead) -> bool:
    """Return whether a dead letter may be sent again now. It must not be sent in two cases. (1) This server is being
    removed. Then the letter would wait forever. (2) The letter's agent is moving to another server. Then the letter
    would wait here until the move is finished, and this server would send it to the other server. There the letter
    would look forged, because its sender does not belong to this server."""
    return not machine.organisation.closed and not machine.engine.is_frozen(dead.agent)


def _replay_many(machine: "AgentServer", given: ReplayMany, clock_ms: int) -> Iterator[Item]:
    sent: list[str] = []
    for one in given.letters:
        dead = machine.engine.dead.get(one.key)
        if dead is not None and _may_send_again(machine, dead):
            yield sent_again(dead.letter, one.client, machine.clients.get(one.client, 0) + 1, one.to)
            sent.append(one.key)
    if sent:
        yield BuriedMany(sent)


def _drop(machine: "AgentServer", given: Drop, clock_ms: int) -> Iterator[Item]:
    mailbox = machine.engine.mailboxes.get(given.address, ())
    letters = [letter.id for letter in islice(mailbox, given.letters)]
    if letters:
        yield Reacted(given.address, tuple([Reaction(letter, dead=given.reason) for letter in letters]), None, clock_ms)
        yield BuriedMany([f"{letter} {given.address}" for letter in letters])


def _send_for(machine: "AgentServer", given: OnBehalf, clock_ms: int) -> Iterator[Item]:
    number = machine.clients.get(given.client, 0) + 1
    if not machine.organisation.closed:
        yield Published(given.client, number, given.to, given.type, given.body, source=given.source)


def _commit(machine: "AgentServer", given: Committed | Learned, clock_ms: int) -> Iterator[Item]:
    """Let a change of the topology come into force. From now on, the settings ``dead_follow = "hold"`` of the new
    topology are used. If a letter to an agent with this setting becomes a dead letter, the agent's letters that depend
    on the dead letter are held."""
    yield given
    holding = machine.plan.holding(machine.name)
    if holding != sorted(machine.engine.following.agents) and not machine.organisation.removed:
        yield Holding(holding)


def _look(machine: "AgentServer", given: Look, clock_ms: int) -> Iterator[Item]:
    """Let letters expire, and drop the oldest dead letters if there are too many."""
    engine = machine.engine
    quotas, mailboxes = engine.quotas, engine.mailboxes
    held, since = engine.following.held, engine.following.since
    unseen = quotas.unseen(mailboxes, clock_ms) + (quotas.unseen_held(held, since) if held else [])
    if unseen:
        yield Seen(list(dict.fromkeys(unseen)), clock_ms)
    numbers = engine.following.numbers
    crowds = quotas.look_held(held, mailboxes, numbers, since, engine.is_reacting, clock_ms) if held else ()
    for excess, letters in list(crowds):
        if not engine.is_frozen(excess.agent):
            yield _expired(machine, excess, letters, clock_ms)
    for excess in list(quotas.look(mailboxes, engine.is_reacting, clock_ms, engine.footprint.bytes)):
        # An asker is notified of the end of its question. Sent by an agent that moves, this notice would wait on the
        # server that the agent leaves, and letters that it sends from its new server would overtake it.
        if not engine.is_frozen(excess.agent):
            yield _expired(machine, excess, mailboxes[excess.agent], clock_ms)
    oldest = _too_many(engine)
    if oldest:
        engine.forgotten += len(oldest)
        yield BuriedMany(oldest)


def _expired(machine: "AgentServer", excess: Excess, letters: Iterable[Letter], clock_ms: int) -> Item:
    agent, expired = excess.agent, machine.engine.quotas.expired
    check = machine.channel.check
    dead = [died(letter, excess.reason, check, expired=True) for letter in islice(letters, excess.letters)]
    expired[agent] = expired.get(agent, 0) + len(dead)
    return Reacted(agent, tuple(dead), None, clock_ms)


def _too_many(engine: Engine) -> list[str]:
    """Return the keys of the dead letters to drop, oldest first, so that the number and the bytes of the remaining dead
    letters are within their limits. The result has at most ``drop_letters_max`` keys, even if more dead letters must be
    dropped."""
    count = len(engine.dead) - limits.dead_letters_max
    size = engine.dead_footprint.bytes - limits.dead_letter_bytes_max
    keys: list[str] = []
    for key, dead in engine.dead.items():
        if (count <= len(keys) and size <= 0) or len(keys) >= limits.drop_letters_max:
            break
        keys.append(key)
        size -= plain_bytes((dead.letter,)) or len(dead.letter.body)
    return keys


def settings_items(
    machine: "AgentServer", ended: Interrupted = ENDED_WELL, cuts: Iterable[Truncated] = ()
) -> list[Item]:
    """Return items for the server's first record after a start. They contain the settings that have changed, the
    handler calls that were in progress when the server's previous process ended (``ended``), the interrupted writes
    that were removed from the log (``cuts``), and the time."""
    engine = machine.engine
    holding = machine.plan.holding(machine.name)
    items: list[Item] = [Holding(holding)] if holding != sorted(engine.following.agents) else []
    if machine.plan.file is not None and not machine.organisation.topology:
        items.append(Organised(machine.plan.file.text()))
    if ended.calls and ended.life != engine.tries.life:
        items.append(Tried(ended.life, ended.calls))
    return [*items, *cuts, *machine.clock.first]


REQUESTS: dict[type, Callable[[Any, Any, int], Iterator[Item]]] = {
    Replay: _replay,
    ReplayMany: _replay_many,
    Drop: _drop,
    Look: _look,
    OnBehalf: _send_for,
    Committed: _commit,
    Learned: _commit,
}
"""For each kind of request, the function that returns its items."""

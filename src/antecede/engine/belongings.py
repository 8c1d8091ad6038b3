"""Everything that a server keeps for one agent or client, to hand it over to another server.

``take_out`` removes these belongings from an engine, ``put_in`` adds them to one. They are complete: the saved state,
the letters that wait, the open questions and the dead letters. Timers, the number of a client's last publish and the
next index in the trace belong to other parts of the server, which add them. The age of a letter counts again from its
arrival at the new server.

Letters that are held because they follow from a dead letter cannot be handed over, because the stamps that decide about
them are those of the old server's domains. The plan of a change refuses to move such an agent (:func:`holds`).
"""

import msgspec

from antecede.channel.letters import Letter
from antecede.engine import Engine, Question
from antecede.engine.dead import Dead


class Belongings(msgspec.Struct, frozen=True, array_like=True):
    """The belongings of one agent or client."""

    address: str
    state: bytes | None = None
    born: str = ""
    """The class of an agent that was created at run time."""
    letters: list[Letter] = []
    asks: dict[str, Question] = {}
    dead: list[Dead] = []
    timers: list[tuple[int, Letter]] = []
    """For each timer the time at which it fires, by the wall clock in milliseconds, and its letter."""
    published: int | None = None
    """The number of a client's last publish."""
    index: int = 0
    """The next index in the trace."""
    tries: dict[str, int] = {}
    """For each letter, how often a process ended while it handled the letter. Letters with the count 0 are left out."""
    read: str = ""
    """The last letter that the client has begun to handle, if a record says so."""

    @property
    def client(self) -> str:
        """The name of the client, if it has letters in its mailbox or has published something; empty for other clients,
        and for agents."""
        name = self.address.rpartition("@")[0]
        return name if not self.born and (self.letters or self.published is not None) else ""


def addresses_in(engine: Engine) -> list[str]:
    """Return all agents and clients that have anything in an engine."""
    found = [*engine.states, *engine.born, *engine.mailboxes, *engine.following.held]
    found += [dead.agent for dead in engine.dead.values()]
    found += [question.agent for question in engine.asks.values()]
    return list(dict.fromkeys(found))


def holds(engine: Engine, address: str) -> bool:
    """Return whether an agent has held letters, or has a dead letter that causes later letters to be held."""
    return bool(engine.following.blocks.get(address) or engine.following.held.get(address))


def take_out(engine: Engine, address: str) -> Belongings:
    """Remove everything of an agent or client from an engine, and return it."""
    letters = engine.clear(address)
    tries = {letter.id: engine.tries.of(address, letter.id) for letter in letters}
    for letter in letters:
        engine.tries.settled(address, letter.id)
    asks = {ask: question for ask, question in engine.asks.items() if question.agent == address}
    for ask in asks:
        del engine.asks[ask]
    dead = [one for one in engine.dead.values() if one.agent == address]
    engine.bury_all([one.key for one in dead])
    state, born = engine.states.pop(address, None), engine.born.pop(address, "")
    tried = {letter: count for letter, count in tries.items() if count}
    return Belongings(address, state, born, letters, asks, dead, tries=tried, read=engine.read.pop(address, ""))


def put_in(engine: Engine, belongings: Belongings) -> None:
    """Add everything of an agent or client to an engine. The engine has nothing of it yet, except perhaps letters that
    came earlier; these are put behind the letters that are added."""
    address = belongings.address
    came = engine.clear(address)
    if belongings.state is not None:
        engine.states[address] = belongings.state
    if belongings.born:
        engine.born[address] = belongings.born
    engine.asks.update(belongings.asks)
    if belongings.read:
        engine.note_read(address, belongings.read)
    for dead in belongings.dead:
        engine.set_aside(address, dead.letter, dead.reason, dead.since_ms)
    for tried, count in belongings.tries.items():
        engine.tries.counts[f"{tried} {address}"] = count
        engine.tries.suspect(address, tried)
    for letter in (*belongings.letters, *came):
        engine.deliver(address, letter)

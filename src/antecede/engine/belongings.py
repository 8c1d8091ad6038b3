"""The belongings of an agent or client: all data that a server stores for it, and that moves with it to another server.

``take_out`` removes the belongings from the engine of the old server, and ``put_in`` adds them to the engine of the new
server. The engine stores the saved state, the letters that wait, the open questions and the dead letters. Other parts
of the server store the timers, the number of a client's last publish and the next index in the trace; these parts add
them to the belongings. On the new server, the age of a letter is measured from the letter's arrival there.

A letter is *held* if it may depend on a dead letter (:mod:`antecede.engine.dead`). Held letters cannot be moved.
The reason: to find out whether a later letter depends on a held letter, the server compares the *stamps* of the two
letters. (A stamp shows on which messages a letter may depend.) These stamps are valid only in the domains of the old
server. So a change of the topology is refused if it would move an agent that has held letters. The change is also
refused if the agent has a dead letter that may cause new letters to be held (:func:`holds`).
"""

import msgspec

from antecede.channel.letters import Letter
from antecede.engine import Engine, Question
from antecede.engine.dead import Dead


class Belongings(msgspec.Struct, frozen=True, array_like=True):
    """Everything that a server stores for one agent or client."""

    address: str
    state: bytes | None = None
    born: str = ""
    """The class of an agent that was created at run time; empty for other agents and for clients."""
    letters: list[Letter] = []
    asks: dict[str, Question] = {}
    dead: list[Dead] = []
    timers: list[tuple[int, Letter]] = []
    """The timers, each as (time at which it fires, its letter). The time is in milliseconds, by the wall clock."""
    published: int | None = None
    """The number of a client's last publish; ``None`` for agents, and for clients that have published nothing."""
    index: int = 0
    """The index in the trace for the next event of this agent or client."""
    tries: dict[str, int] = {}
    """Letter id → how many times a server process ended during a handler call for this letter. Letters with the count 0
    are left out."""
    read: str = ""
    """The id of the last letter that the client has begun to handle; empty if the log does not contain this id."""

    @property
    def client(self) -> str:
        """The name of the client; empty for an agent. The name is also empty for a client that has no letters in its
        mailbox and has published nothing."""
        name = self.address.rpartition("@")[0]
        return name if not self.born and (self.letters or self.published is not None) else ""


def addresses_in(engine: Engine) -> list[str]:
    """Return the addresses of all agents and clients for which an engine stores anything."""
    found = [*engine.states, *engine.born, *engine.mailboxes, *engine.following.held]
    found += [dead.agent for dead in engine.dead.values()]
    found += [question.agent for question in engine.asks.values()]
    return list(dict.fromkeys(found))


def holds(engine: Engine, address: str) -> bool:
    """Return True if the agent has held letters. Also return True if it has a dead letter that may cause new letters
    to be held."""
    return bool(engine.following.blocks.get(address) or engine.following.held.get(address))


def take_out(engine: Engine, address: str) -> Belongings:
    """Remove all belongings of an agent or client from an engine, and return them."""
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
    """Add all belongings of an agent or client to an engine. If letters for this address have already come to the
    engine, they are put behind the letters in ``belongings``."""
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

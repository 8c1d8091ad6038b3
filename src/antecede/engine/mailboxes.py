"""The Engine: mailboxes, and the reactions that empty them (Laumay et al. §3).

The algorithm for each agent: *get* the next letter, *react*, then in one transaction *dispatch* the messages of the
reaction, *save* the agent, and *remove the letter* from the mailbox. The engine does not run handlers. It *hands out*
letters: it returns the letters to which agents must react now (:class:`React`). Later it receives the outcomes
(:class:`Reaction`). It keeps everything that must survive a crash. An agent handles one letter after the other, in the
sequence of its mailbox, even if it gets several letters in one batch.

A reaction that fails is tried again with growing pauses (:mod:`antecede.server.driver` decides when).
Meanwhile, the other letters of the mailbox wait. After the last try the letter is *dead*: the server keeps the letter
with the reason, and the letter waits for an operator. A dead letter counts as delivered. If a dead letter is a
question, the sender gets the reason as an answer (:func:`died`), unless the letter died because the channel
(:mod:`antecede.channel`) could not forward it.

For the engine, a client is like an agent that reacts in another process.
"""

from collections import deque
from collections.abc import Container, Sequence
from itertools import islice

import msgspec

from antecede import limits
from antecede.channel.letters import Footprint, Letter, Past, answers_of, id_of
from antecede.engine.agents import (
    STALE,
    React,
    Reaction,
    State,
    changed,
)
from antecede.engine.dead import Dead, Following, SavedFollowing, Tries
from antecede.engine.quotas import Counting, Quotas
from antecede.errors import AgentError, MailboxFullError
from antecede.topology import Mailboxes


class Question(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A question without an answer so far: the agent that asked it, and the handler of this agent for the answer."""

    agent: str
    handler: str


class Belongings(msgspec.Struct, frozen=True, array_like=True):
    """Everything that a server stores for one agent or client, and that moves with it to another server. The engine
    fills in the state, the letters, the open questions and the dead letters. Other parts of the server add the timers,
    the number of a client's last publish and the next index in the trace. On the new server, the age of a letter is
    measured from the letter's arrival there."""

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


class SavedEngine(msgspec.Struct, frozen=True, array_like=True):
    """The durable state of an :class:`Engine`. Each field is explained at an attribute of :class:`Engine`, or of
    the engine's objects ``quotas``, ``following`` and ``tries``."""

    mailboxes: dict[str, list[Letter]]
    states: dict[str, bytes]
    born: dict[str, str]
    dead: dict[str, Dead]
    asks: dict[str, Question]
    deaths: int
    clock_ms: int
    ages: dict[str, list[tuple[int, int]]]
    following: SavedFollowing
    tries: dict[str, int]
    tried_life: int
    careful: list[str]
    read: dict[str, str]


_no_settings = Mailboxes()
_by_type = ("",)


class Engine:
    """The mailboxes of one server, the saved states and open questions of its agents, and its dead letters."""

    def __init__(self, settings: Mailboxes = _no_settings, homes: Container[str] = ()) -> None:
        """``settings``: the quotas of the mailboxes. ``homes``: all agents that the topology names."""
        self.homes = homes
        self.mailboxes: dict[str, deque[Letter]] = {}
        """Agent → its letters that were delivered and are not handled yet. An agent without such letters has no
        entry."""
        self.came = 0
        """The number of letters that came into mailboxes since the server last checked its high-water marks."""
        self.states: dict[str, bytes] = {}
        self.born: dict[str, str] = {}
        """Address → class, for each agent that was created at run time."""
        self.read: dict[str, str] = {}
        """For each client, the id of the last letter that the client has begun to handle, as far as this server knows.
        The client can send this id with a publish (:mod:`antecede.server`)."""
        self.dead: dict[str, Dead] = {}
        """Dead letters, in the sequence in which they died. The key contains the id of the letter and the agent."""
        self.deaths = 0
        """The number of letters that ever died on this server. The newest dead letter has this number."""
        self.clock_ms = 0
        """The server time of the last reactions (:mod:`antecede.server.clock`)."""
        self.forgotten = 0
        """The number of dead letters that were dropped since the server started, because there were more of them than
        the limits allow."""
        self.asks: dict[str, Question] = {}
        """Id of a question → the question, for each question without an answer so far."""
        self._counting = Counting()
        self._changed = self._counting.changed
        self.footprint = self._counting.footprint
        """The memory of held letters, of timers, and of the letters that the last :meth:`count` found in mailboxes."""
        self.dead_footprint = Footprint()
        """The memory of dead letters."""
        self.quotas = Quotas(settings, lambda address: address in self.homes or address in self.born)
        self.following = Following()
        self.tries = Tries()
        self._reacting: set[str] = set()
        self.ready: dict[str, None] = {}
        """Agents that have letters and are not reacting."""
        self.frozen: frozenset[str] | None = None
        """Agents and clients that must not do anything, because they will move to another server. An empty set means
        all agents and clients; None means that no agent or client is frozen."""

    def deliver(self, agent: str, letter: Letter) -> None:
        """Put a letter into an agent's mailbox. But if the letter may depend on a dead letter of this agent, hold it
        until an operator has decided about the dead letter (:mod:`antecede.engine.dead`)."""
        if agent in self.following.agents:
            self.following.came(agent, letter)
            if self.following.holds(agent, letter):
                self.footprint.add(letter)
                return
        self._put(agent, (letter,))

    def _put(self, agent: str, letters: Sequence[Letter]) -> None:
        mailbox = self.mailboxes.get(agent)
        if mailbox is None:
            mailbox = self.mailboxes[agent] = deque()
        mailbox.extend(letters)
        self.came += len(letters)
        self._changed.add(agent)
        if agent not in self._reacting:
            self.ready[agent] = None

    def deliver_all(self, arrived: list[tuple[str, list[Letter]]]) -> None:
        """Deliver these letters in this sequence. ``arrived``: pairs of an agent and its letters."""
        for agent, letters in arrived:
            if agent in self.following.agents:
                for letter in letters:
                    self.deliver(agent, letter)
            else:
                self._put(agent, letters)

    @property
    def too_many_dead(self) -> bool:
        """Whether the number or the bytes of the dead letters exceed the limits."""
        many = len(self.dead) > limits.dead_letters_max
        return many or self.dead_footprint.bytes > limits.dead_letter_bytes_max

    def check_room(self, to: tuple[str, ...], bodies: list[bytes]) -> None:
        """Raise :class:`MailboxFullError` if these letters do not fit into a mailbox with the setting
        ``full = "refuse"``."""
        if reason := self.quotas.refusal(to, bodies, self.mailboxes, self.following.held):
            raise MailboxFullError(reason)

    def seen(self, agents: list[str], clock_ms: int) -> None:
        """Record that the new letters of these agents began to wait at the time ``clock_ms``. A letter is new if it
        came after the last call of this method for its agent."""
        for agent in agents:
            if agent in self.mailboxes:
                self.quotas.seen(agent, len(self.mailboxes[agent]), clock_ms)
            self.following.seen(agent, clock_ms)

    def count(self) -> Footprint:
        """Count the letters in mailboxes; return the memory of these letters, of held letters and of timers."""
        self._counting.look(self.mailboxes)
        return self.footprint

    def set_aside(self, agent: str, letter: Letter, reason: str, since_ms: int | None = None) -> None:
        """Turn a letter that cannot be handled into a dead letter, and keep it until an operator decides about it.
        ``since_ms``: the server time when the letter died. If it is None, the letter died at the time ``clock_ms`` of
        this engine."""
        self.deaths += 1
        dead = Dead(agent, letter, reason, self.deaths, self.clock_ms if since_ms is None else since_ms)
        self.bury(dead.key)
        self.dead[dead.key] = dead
        self.dead_footprint.add(letter)

    def bury(self, key: str) -> None:
        """Forget a dead letter, if it exists. Letters that were held only because of it go to the mailbox."""
        dead = self.dead.pop(key, None)
        if dead is not None:
            self.dead_footprint.remove(dead.letter)
            if self.following.blocks:
                self._release(dead.agent, self.following.unblock(dead.agent, key))

    def bury_all(self, keys: list[str]) -> None:
        """Call :meth:`bury` for each of these dead letters."""
        for key in keys:
            self.bury(key)

    def _release(self, agent: str, letters: list[Letter]) -> None:
        for letter in letters:
            self.footprint.remove(letter)
            self._put(agent, (letter,))

    def hold_for(self, agents: list[str]) -> tuple[set[str], dict[str, Past]]:
        """From now on, when a letter to one of ``agents`` dies, hold the agent's letters that may depend on the dead
        letter. Release the held letters of all other agents. Return two objects for the channel
        (:mod:`antecede.channel`): the set of ``agents``, and a dictionary. For each letter to one of these agents, the
        channel must add the letter's :class:`Past` to the dictionary."""
        following = self.following
        following.agents.clear()
        following.agents.update(agents)
        for agent in [agent for agent in following.blocks if agent not in following.agents]:
            for key in list(following.blocks[agent]):
                self._release(agent, following.unblock(agent, key))
        return following.agents, following.pasts

    def _block(self, agent: str, key: str, letter: Letter, mailbox: deque[Letter]) -> None:
        """Move the letters that may depend on this dead letter from the mailbox to the held letters."""
        letters, following = list(mailbox), self.following
        self._taken(agent, letters)
        self._changed.add(agent)
        free = following.block(agent, key, letter, letters)
        mailbox.clear()
        mailbox.extend(free)
        kept = {one.id for one in free}
        for one in letters:
            if one.id not in kept:
                self.footprint.add(one)

    def due(self) -> list[React]:
        """Return a batch of letters for each agent that has letters and is neither reacting nor frozen. From now on,
        these agents are reacting."""
        ready, self.ready = self.ready, {}
        if self.frozen is not None:
            self.ready = {agent: None for agent in ready if self.is_frozen(agent)}
            ready = {agent: None for agent in ready if agent not in self.ready}
        return list(map(self._hand_out, ready))

    def freeze(self, agents: list[str] | None) -> None:
        """Stop these agents and clients: :meth:`due` returns no letters for them, and the outcomes of their reactions
        are ignored. An empty list stops all agents and clients. None lets all of them continue."""
        before, self.frozen = self.frozen, None if agents is None else frozenset(agents)
        for agent in [] if before is None else before or list(self.mailboxes):
            self.abandon(agent)

    def is_frozen(self, agent: str) -> bool:
        """Return whether :meth:`freeze` has stopped an agent or a client."""
        return self.frozen is not None and (not self.frozen or agent in self.frozen)

    def _hand_out(self, agent: str) -> React:
        mailbox = self.mailboxes[agent]
        self._reacting.add(agent)
        if len(mailbox) == 1:
            letter = mailbox[0]
            handlers = (self._handler(letter, set()),) if letter.answers else _by_type
            return React(agent, (letter,), handlers, self.states.get(agent))
        # Behind a letter that dies, others may have to be held: they are handed out one at a time.
        most = 1 if agent in self.following.agents else self.tries.together(agent, mailbox)
        letters = tuple(islice(mailbox, most))
        settled: set[str] = set()
        if any(map(answers_of, letters)):
            several = tuple([self._handler(letter, settled) if letter.answers else "" for letter in letters])
        else:
            several = _by_type * len(letters)
        return React(agent, letters, several, self.states.get(agent))

    def _handler(self, letter: Letter, settled: set[str]) -> str:
        """Return the name of the handler for a letter that is an answer. Return ``STALE`` if the question already has
        an answer. ``settled``: the ids of questions that were answered by earlier letters of the same batch. (A batch
        may contain both the answer and the timeout of one question.) If the result is not ``STALE``, the id of the
        letter's question is added to ``settled``."""
        question = self.asks.get(letter.answers)
        if question is None or letter.answers in settled:
            return STALE
        settled.add(letter.answers)
        return question.handler

    def expects(self, agent: str, letters: list[str]) -> bool:
        """Return whether ``letters`` are the ids of the next letters in the mailbox. If the agent is frozen or its
        mailbox is empty, return True only for an empty list. The letters of a client may already have been removed from
        the mailbox, by an operator or by an earlier session of the client. Then the result is False."""
        mailbox = self.mailboxes.get(agent)
        if mailbox is None or (self.frozen is not None and self.is_frozen(agent)):
            return not letters
        if len(letters) == 1:
            return mailbox[0].id == letters[0]
        return list(map(id_of, islice(mailbox, len(letters)))) == letters

    def finish(
        self, agent: str, reactions: tuple[Reaction, ...], state: State | None, clock_ms: int = 0
    ) -> list[Letter]:
        """Remove handled letters from the mailbox and save the agent's new state. Return the removed letters."""
        self.clock_ms = clock_ms
        mailbox, holding = self.mailboxes.get(agent), self.following.agents
        if agent in holding and reactions and self.following.is_held(agent, reactions[0].letter):
            return self._expire_held(agent, reactions)
        letters = []
        died: list[tuple[str, Letter]] = []
        for reaction in reactions:
            if not mailbox or mailbox[0].id != reaction.letter:
                raise AgentError(f"agent {agent} reacted to {reaction.letter}, which is not its next letter")
            letter = mailbox.popleft()
            letters.append(letter)
            if letter.answers:
                self.asks.pop(letter.answers, None)
            if reaction.dead:
                self.set_aside(agent, letter, reaction.dead)
            if agent in holding:
                key = f"{letter.id} {agent}"
                if reaction.dead and not reaction.expired:
                    died.append((key, letter))
                else:
                    self.following.gone(key)
        self._removed(agent, letters)
        for key, letter in died:
            self._block(agent, key, letter, mailbox or deque())
        self._finished(agent, mailbox, state)
        return letters

    def finish_plainly(self, agent: str, ids: list[str], state: State | None, clock_ms: int) -> None:
        """Do the same as :meth:`finish`, but faster. Call this method only if all letters were handled, and no reaction
        sent a message, set a timer or created an agent. ``ids``: the ids of the handled letters."""
        mailbox = self.mailboxes.get(agent)
        if mailbox is None or agent in self.following.agents:
            self.finish(agent, tuple(map(Reaction, ids)), state, clock_ms)
            return
        self.clock_ms = clock_ms
        if len(ids) >= len(mailbox):
            letters = list(mailbox)
            mailbox.clear()
        else:
            letters = [mailbox.popleft() for _ in ids]
        if letters[0].id != ids[0] or (len(ids) > 1 and list(map(id_of, letters)) != ids):
            raise AgentError(f"agent {agent} reacted to {ids[0]} and others, which are not its next letters")
        for letter in letters if self.asks else ():
            if letter.answers:
                self.asks.pop(letter.answers, None)
        self._removed(agent, letters)
        self._finished(agent, mailbox, state)

    def _removed(self, agent: str, letters: list[Letter]) -> None:
        self._taken(agent, letters)
        if self.tries.letters:
            for letter in letters:
                self.tries.settled(agent, letter.id)

    def _taken(self, agent: str, letters: list[Letter]) -> None:
        counting, quotas = self._counting, self.quotas
        if agent in counting.runs:
            counting.taken(agent, letters)
        # Most mailboxes are empty again before anything looks at their quota.
        if agent in quotas.known or agent in quotas.handed:
            quotas.taken(agent, letters)

    def _finished(self, agent: str, mailbox: deque[Letter] | None, state: State | None) -> None:
        if state is not None:
            self.states[agent] = state if type(state) is bytes else changed(self.states.get(agent), state)
        self._reacting.discard(agent)
        if mailbox:
            self.ready[agent] = None
        else:
            self.mailboxes.pop(agent, None)
            self.ready.pop(agent, None)
            if agent in self.quotas.known:
                self.quotas.emptied(agent)

    def _expire_held(self, agent: str, reactions: tuple[Reaction, ...]) -> list[Letter]:
        """Turn the held letters in ``reactions`` into dead letters, because they have expired
        (:mod:`antecede.engine.quotas`). If the agent is reacting to another letter now, that reaction continues."""
        letters = []
        for reaction in reactions:
            letter = self.following.expire(agent)
            self.footprint.remove(letter)
            self.set_aside(agent, letter, reaction.dead)
            self.tries.settled(agent, letter.id)
            letters.append(letter)
        return letters

    def is_reacting(self, agent: str) -> bool:
        """Return whether letters were handed out to an agent, and their outcomes have not come yet."""
        return agent in self._reacting

    def note_read(self, client: str, letter: str) -> None:
        """Record the id of the last letter that a client has begun to handle."""
        self.read[client] = letter
        if len(self.read) > 2 * len(self.mailboxes) + 64:
            self.read = {one: last for one, last in self.read.items() if one in self.mailboxes}

    def abandon(self, agent: str) -> None:
        """Make :meth:`due` hand out the letters of an agent or a client a second time. Call this method if the outcomes
        of these letters will not come, for example because the client has disconnected."""
        self._reacting.discard(agent)
        if agent in self.mailboxes:
            self.ready[agent] = None

    def clear(self, agent: str) -> list[Letter]:
        """Remove all letters from an agent's mailbox, and return them. If the agent is reacting to some of them, the
        outcomes of these reactions will be ignored."""
        letters = list(self.mailboxes.pop(agent, ()))
        if agent in self._counting.runs:
            self._counting.taken(agent, letters)
        self.quotas.taken(agent, letters, emptied=True)
        for letter in letters if agent in self.following.agents else ():
            self.following.gone(f"{letter.id} {agent}")
        self._reacting.discard(agent)
        self.ready.pop(agent, None)
        return letters

    # Moving an agent or a client to another server.

    def addresses(self) -> list[str]:
        """Return the addresses of all agents and clients for which anything is stored."""
        found = [*self.states, *self.born, *self.mailboxes, *self.following.held]
        found += [dead.agent for dead in self.dead.values()]
        found += [question.agent for question in self.asks.values()]
        return list(dict.fromkeys(found))

    def is_bound(self, address: str) -> bool:
        """Return whether an agent cannot be moved, because it has held letters, or a dead letter that may cause new
        letters to be held. Whether a later letter depends on a held letter is decided by their stamps, which are valid
        only in the domains of this server."""
        return bool(self.following.blocks.get(address) or self.following.held.get(address))

    def take_out(self, address: str) -> Belongings:
        """Remove all belongings of an agent or client, and return them."""
        letters = self.clear(address)
        tries = {letter.id: self.tries.of(address, letter.id) for letter in letters}
        for letter in letters:
            self.tries.settled(address, letter.id)
        asks = {ask: question for ask, question in self.asks.items() if question.agent == address}
        for ask in asks:
            del self.asks[ask]
        dead = [one for one in self.dead.values() if one.agent == address]
        self.bury_all([one.key for one in dead])
        state, born = self.states.pop(address, None), self.born.pop(address, "")
        tried = {letter: count for letter, count in tries.items() if count}
        return Belongings(address, state, born, letters, asks, dead, tries=tried, read=self.read.pop(address, ""))

    def put_in(self, belongings: Belongings) -> None:
        """Add all belongings of an agent or client. If letters for this address have already come, they are put behind
        the letters in ``belongings``."""
        address = belongings.address
        came = self.clear(address)
        if belongings.state is not None:
            self.states[address] = belongings.state
        if belongings.born:
            self.born[address] = belongings.born
        self.asks.update(belongings.asks)
        if belongings.read:
            self.note_read(address, belongings.read)
        for dead in belongings.dead:
            self.set_aside(address, dead.letter, dead.reason, dead.since_ms)
        for tried, count in belongings.tries.items():
            self.tries.counts[f"{tried} {address}"] = count
            self.tries.suspect(address, tried)
        for letter in (*belongings.letters, *came):
            self.deliver(address, letter)

    def dump(self) -> SavedEngine:
        """Return the durable state."""
        mailboxes = {agent: list(mailbox) for agent, mailbox in self.mailboxes.items()}
        tries = (self.tries.counts, self.tries.life, sorted(self.tries.careful))
        rest = (self.deaths, self.clock_ms, self.quotas.dump(), self.following.dump(), *tries, self.read)
        return SavedEngine(mailboxes, self.states, self.born, self.dead, self.asks, *rest)

    def load(self, saved: SavedEngine) -> None:
        """Load the state from ``dump`` into a new engine."""
        self.states, self.born, self.asks, self.read = saved.states, saved.born, saved.asks, saved.read
        self.quotas.load(saved.ages)
        self.tries.load(saved.tries, saved.tried_life, saved.careful)
        self.dead, self.deaths, self.clock_ms = saved.dead, saved.deaths, saved.clock_ms
        for dead in saved.dead.values():
            self.dead_footprint.add(dead.letter)
        self.mailboxes = {agent: deque(letters) for agent, letters in saved.mailboxes.items()}
        self.following.load(saved.following, {key: dead.letter for key, dead in saved.dead.items()})
        for held in self.following.held.values():
            for letter in held:
                self.footprint.add(letter)
        self._changed.update(self.mailboxes)
        self.ready = dict.fromkeys(self.mailboxes)

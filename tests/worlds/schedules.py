"""Random worlds of servers: domains without cycles, an order for each domain, agents that use all features, and faults.

Each seed gives one schedule. The agents use random numbers in their handlers. So a reaction that a crash has undone
acts differently when it runs again. If an effect of its first run remains, the checks find this effect. ``play(SEED)``
returns the outcome, with the errors.
"""

from collections.abc import Callable, Iterator
from random import Random
from traceback import format_exc

import msgspec

from antecede import limits, wire
from antecede.access import temporary_name
from antecede.engine.agents import Agent, Notification, Subscribe, Topic
from antecede.orders import OrderSpec, parse
from antecede.server import Peer, Plan
from antecede.simulator.draws import stream
from antecede.simulator.servers.judgement import dead_letter, expired, findings
from antecede.simulator.servers.network import NONE, ROUGH, Faults
from antecede.simulator.servers.server import NOBODY
from antecede.simulator.servers.world import Logs, ServerWorld
from antecede.topology import Domain, Topology
from antecede.trace import DELIVER, SEND
from worlds.intruders import IdentifiedWorld, Intruded, intruded
from worlds.workload import (
    Crowd,
    Enquiry,
    Poisoning,
    Riddle,
    SharedData,
    Work,
    Worker,
    decide,
    early,
    patient_seconds,
    tried,
    unlucky,
)

# The check of a server that lost its data: its disk is empty, or has an older copy of the data.
#
# The server's peers remember messages that the server has lost. So the server and its peers must not continue as if
# nothing had happened. The links between them stop, and ``status`` shows the stopped links. An operator then resets
# each domain in which the server has lost data. A reset of the server's other domains is refused. After the reset,
# every new message is delivered exactly once. If the lost disk is found later and put back, its data is from before the
# reset. So the peers in the reset domains do not accept a connection with the server.


_patience_seconds = 25.0
"""A time that is long enough for a server to dial every peer again, even a peer that has refused it many times."""

_reset_texts = {True: "reset", False: "not reset"}

Probe = Callable[[], Callable[[], int]]
"""A function that sends a message to an agent, and returns another function, which counts the deliveries of this
message."""


def lost_data(world: ServerWorld, name: str, copy: dict[str, bytes], probe: Probe) -> list[str]:
    """Let a server lose its data in an idle world, and check what the servers and an operator do then. ``copy``: the
    content of the server's disk after the loss. Return the errors, one line each."""
    world.losing = True
    server = world.servers[name]
    earlier = server.disk.contents()
    wiped = not copy
    remembered = {peer: world.servers[peer].core.peering.hello(_of(world, peer, name)) for peer in _peers(world, name)}
    server.replace_disk(copy)
    forgot: list[tuple[str, str]] = []
    for peer, hello in remembered.items():
        mine = {link.domain: link for link in server.core.peering.hello(_of(world, name, peer)).links}
        for theirs in hello.links:
            now = mine[theirs.domain]
            known = theirs.target not in (0, now.source)
            if known or theirs.accepted > now.sent or theirs.sent > now.accepted:
                forgot.append((theirs.domain, peer))
    world.pass_time(_patience_seconds)
    found = list(_unnoticed(world, name, forgot))
    for domain in world.plan.topology.domains_of(name):
        members = [world.servers[member] for member in world.plan.topology.domains[domain].servers]
        # A copy from before an earlier reset need not have forgotten any frame.
        lost = domain in dict(forgot) or len({one.machine.channel.consumers[domain].generation for one in members}) > 1
        reset = world.operators.reset_lost(domain, members)
        if reset != lost:
            found.append(f"{name} lost {'' if lost else 'nothing of '}domain {domain}, which was {_reset_texts[reset]}")
    for client in world.clients.values():
        if client.home is server and not client.over:
            client.restart()
    world.pass_time(_patience_seconds)
    counts = [probe() for _ in range(4)]
    world.pass_time(_patience_seconds)
    delivered = [count() for count in counts]
    if delivered != [1] * len(counts):
        found.append(
            f"{name} lost its data and was reset: then letters were delivered {delivered} times, expected once each"
        )
    if wiped and forgot:
        server.replace_disk(earlier)
        world.pass_time(_patience_seconds)
        found += _connected(world, name, [peer for _, peer in forgot])
    return found + world.errors


def _unnoticed(world: ServerWorld, name: str, forgot: list[tuple[str, str]]) -> Iterator[str]:
    server = world.servers[name]
    yield from _connected(world, name, [peer for _, peer in forgot])
    for domain, peer in forgot:
        other = world.servers[peer]
        stopped = (domain, name) in other.machine.stopped or (domain, peer) in server.machine.stopped
        # A copy from before the domain was reset is refused at the hello.
        if not stopped and name not in other.core.peering.refusals and peer not in server.core.peering.refusals:
            yield f"{name} lost its data, but its link {domain} with {peer} did not stop"
        elif stopped and "link stopped" not in (server.core.operations.health(), other.core.operations.health()):
            yield f"{name} lost its data, and no status shows it"


def _connected(world: ServerWorld, name: str, peers: list[str]) -> Iterator[str]:
    for peer in peers:
        if _of(world, peer, name).ready or _of(world, name, peer).ready:
            yield f"{peer} is connected to {name}, although their data do not fit together"


def _peers(world: ServerWorld, name: str) -> list[str]:
    return list(world.servers[name].core.peering.peers)


def _of(world: ServerWorld, name: str, peer: str) -> Peer:
    """Return the data that the server ``name`` has about its peer ``peer``."""
    return world.servers[name].core.peering.peers[peer]


_stamped = ("matrix", "updates", "pruned", "pruned", "direct")
_total = ("coordinator", "token", "lamport", "skeen:causal=true")
_causal = (*_stamped, *_stamped, "buffer", "buffer:pipelined=true", "buffer:multicast=hold-delivery", "synchronous")
_any = (*_causal, *_total)
_weaker = ("fifo", "none", "skeen")
_intruded_share = 0.25


class Outcome(msgspec.Struct):
    """The result of one schedule: the errors in ``found``, and some counts."""

    seed: int
    found: list[str]
    crashes: int = 0
    deliveries: int = 0
    campaign: str = "test_servers.py"
    """The campaign whose seeds are these schedules."""
    traceback: str = ""
    """Where an exception ended the schedule; empty if it came to its end."""

    @property
    def command(self) -> str:
        """The command that replays this schedule."""
        return f"./run test tests/campaigns/{self.campaign} --first {self.seed}"

    def __str__(self) -> str:
        return "\n".join([*self.found, *filter(None, [self.traceback]), f"replay: {self.command}"])


def play(
    seed: int,
    world_class: type[ServerWorld] = ServerWorld,
    orders: Callable[[Random], str] | None = None,
    watch: Callable[[ServerWorld], None] | None = None,
    faults: Faults | None = None,
) -> Outcome:
    """Run the schedule of one seed, and check the result. ``orders``: a function that chooses the order of a domain at
    random. ``watch``: a function that is called with the world before the world runs. ``faults``: faults to use instead
    of the faults that the seed chooses."""
    random = stream(seed, "schedule")
    topology = forest(random)
    plan = _plan(random, topology, orders)
    promised = promised_by(plan)
    agents: dict[str, type[Agent]] = {name: Worker for name in plan.homes if name[0] == "a"}
    topics = [name for name in plan.homes if name[0] == "t"]
    agents |= dict.fromkeys(topics, Topic)
    servers = list(topology.servers)
    clients = [f"c{number}@{_one(random, servers)}" for number in range(1 + int(random.random() * 3))]
    durability = "os" if random.random() < 0.15 else "disk"
    rough = faults or _with_intruders(seed, _faults(random, seed))
    crowd = Crowd(seed, servers)
    plan = msgspec.structs.replace(plan, mailboxes=crowd.mailboxes)
    if isinstance(rough, Intruded) and world_class is ServerWorld:
        world_class = IdentifiedWorld
    world = world_class(plan, agents, seed, rough, durability)
    shared = Worker.shared = SharedData(random, [name for name in agents if name[0] == "a"], topics, clients)
    if seed % 4 == 3:
        shared.errors = world.errors
    if isinstance(world, IdentifiedWorld):
        world.work = lambda: Work(id=shared.id(), depth=0)
    _workload(world, random, shared)
    crowd.join(world, shared)
    Poisoning(seed, rough).join(world, shared)
    if watch:
        watch(world)
    copied: list[dict[str, bytes]] = []
    server = _one(random, servers)
    if random.random() < 0.05:
        copies = world.servers[server].disk.contents
        world.later(random.random() * world.faults.seconds, lambda: copied.append(copies()))
    try:
        world.run()
        decide(world)
        if random.random() < 0.1:
            world.reset_domain(_one(random, list(topology.domains)))
            world.settle()
            for address in shared.clients:
                world.send(address, shared.some(), Work(id=shared.id(), depth=1))
            world.settle()
        if random.random() < 0.02:
            _stay_long(world, random, shared)
        decide(world)
        logs = world.logs()
        found = findings(world, logs, promised, None, replayed=seed % 4 == 0)
        found += early(logs) if "causal" in promised else ()
        found += [*dead_letters(world, logs), *tried(world, logs), *_asked(world), *states(world, logs, crowd.agents)]
        found += world.forbidden_accepted() if isinstance(world, IdentifiedWorld) else []
        if not found and copied and watch is None and not crowd.hold:
            # A world that is watched keeps its logs.
            # After a loss of data letters may come again, and topics send them on as new ones.
            shared.errors = None
            found = lost_data(world, server, copied[-1] if random.random() < 0.5 else {}, lambda: _probe(world, shared))
    except Exception as error:
        # Any exception is an error, and the seed shows it again.
        found = [*world.errors, f"{type(error).__name__}: {error}"]
        return Outcome(seed, found, world.crashes, traceback=format_exc())
    deliveries = sum(row.kind == DELIVER for row in logs.rows) if watch else len(world.letters)
    return Outcome(seed, found, world.crashes, deliveries)


def forest(random: Random) -> Topology:
    """Return a random topology of two to six servers. Each domain after the first shares exactly one server with the
    earlier domains, so there is no cycle of domains."""
    size = 2 + int(random.random() * 5)
    servers = ["s1"]
    domains: list[Domain] = []
    while len(servers) < size:
        router = servers[int(random.random() * len(servers))]
        count = min(1 + int(random.random() * 3), size - len(servers))
        new = [f"s{len(servers) + place + 1}" for place in range(count)]
        servers += new
        domains.append(Domain(f"D{len(domains)}", (router, *new)))
    return Topology(domains)


def _plan(random: Random, topology: Topology, orders: Callable[[Random], str] | None) -> Plan:
    """Return a random plan: an order for each domain, and a server for each agent."""
    chosen: dict[str, OrderSpec] = {}
    choice = random.random()
    for name in topology.domains:
        if orders is not None:
            text = orders(random)
        elif choice < 0.1:
            text = _one(random, list(_weaker + _any))
        elif choice < 0.3:
            text = _one(random, list(_total))
        else:
            text = _one(random, list(_any))
        chosen[name] = parse(text)
    servers = list(topology.servers)
    homes = {f"a{number}": server for number, server in enumerate(servers)}
    homes["a9"] = _one(random, servers)
    homes["t0"] = _one(random, servers)
    return Plan(topology, chosen, homes)


def promised_by(plan: Plan) -> tuple[str, ...]:
    """Return the guarantees that hold from any sender to any receiver, on every path through the domains of a plan."""
    guarantees = [spec.guarantees() for spec in plan.orders.values()]
    promised = frozenset.intersection(*guarantees) & {"fifo", "causal"}
    if len(guarantees) == 1:
        promised |= guarantees[0] & {"total"}
    return tuple(sorted(promised))


def _faults(random: Random, seed: int) -> Faults:
    if random.random() < 0.05:
        return NONE
    draw = random.random

    def upto(most: int) -> int:
        return int(draw() * (most + 1))

    return msgspec.structs.replace(
        ROUGH,
        stops=int(stream(seed, "stops").random() * 1.3),
        crashes=upto(6),
        powercuts=_one(random, [0.0, 0.5, 1.0]),
        loss=_one(random, [0.0, 0.05, 0.2]),
        duplicates=_one(random, [0.0, 0.05, 0.2]),
        partitions=upto(2),
        resets=upto(3),
        slow_disks=upto(1),
        full_disks=upto(1),
        overloads=upto(1),
        operators=upto(1),
        client_kills=upto(1),
        takeovers=upto(1),
        silences=int(draw() < 0.08),
        stalls=upto(2),
        clock_jumps=upto(2),
        looks=upto(6),
        failed_snapshots=_one(random, [0.0, 0.0, 0.3]),
        failures=_one(random, [0.0, 0.05, 0.15]),
        seconds=_one(random, [0.1, 0.3, 1.0]),
    )


def _with_intruders(seed: int, faults: Faults) -> Faults:
    """Add intruders to these faults for about one seed in four, and return the result. For all other seeds, return the
    faults unchanged. Also return them unchanged if there are no faults at all (``NONE``)."""
    random = stream(seed, "intruders")
    if random.random() >= _intruded_share or faults == NONE:
        return faults
    return intruded(faults, 1 + int(random.random() * 6))


def _workload(world: ServerWorld, random: Random, shared: SharedData) -> None:
    """Let clients publish at random moments while faults happen."""
    for address in shared.clients:
        world.client(address).no_handler = frozenset({"Riddle"})
    if shared.below(2):
        for address in shared.clients:
            world.send(address, shared.topics[0], Subscribe())
    named = list(shared.clients)
    if random.random() < 0.1:
        _temporary(world, random, shared)
    for _ in range(10 + shared.below(16)):
        source = shared.one(shared.clients)
        to = shared.some() if shared.below(2) else [shared.one(shared.agents)]
        notification: Notification = Work(id=shared.id(), depth=shared.below(3))
        what = random.random()
        if what < 0.02:
            to, notification = [shared.one(shared.agents + named)], Riddle(id=shared.id())
        elif what < 0.1:
            to = [shared.topics[0]]
        when = random.random() * world.faults.seconds * 0.8
        world.later(when, world.send, source, to, notification)
        if what > 0.85:
            # Several to the same destination: a client may batch them.
            for _ in range(1 + shared.below(3)):
                world.later(when, world.send, source, to, Work(id=shared.id(), depth=0))
        elif what > 0.7:
            _ask(world, when, source, shared)
        elif what > 0.67:
            # It is refused, and what was published after it gets other numbers.
            world.later(when, world.client(source).send, (NOBODY,), Work(id=shared.id(), depth=0))
            _ask(world, when, source, shared)


def _temporary(world: ServerWorld, random: Random, shared: SharedData) -> None:
    """Let a temporary client connect, and later close its connection or die. Others may send to this client, even after
    it has gone."""
    address = f"{temporary_name('t', '0' * 16)}@{_one(random, list(world.servers))}"
    client = world.client(address)
    shared.clients.append(address)
    seconds = world.faults.seconds
    for _ in range(2):
        _ask(world, random.random() * seconds, address, shared)
        world.later(random.random() * seconds, world.send, address, shared.some(), Work(id=shared.id(), depth=1))
    world.later(seconds * (0.5 + random.random()), client.leave if random.random() < 0.8 else client.die)


def _stay_long(world: ServerWorld, random: Random, shared: SharedData) -> None:
    """Let a temporary client stay connected for a long time: longer than a server remembers a client that is not
    connected. Check that the client can still publish."""
    address = f"{temporary_name('l', '0' * 16)}@{_one(random, list(world.servers))}"
    client = world.client(address)
    world.send(address, shared.some(), Work(id=shared.id(), depth=0))
    world.settle()
    world.pass_time(1.1 * limits.temporary_client_seconds_max)
    world.send(address, [*shared.some(), address], Work(id=shared.id(), depth=0))
    world.settle()
    if client.published[-1].state != "accepted":
        world.report_error(address, "was connected all the time, but its publish was not accepted")
    client.leave()
    world.settle()


def _ask(world: ServerWorld, when: float, source: str, shared: SharedData) -> None:
    """Let a client ask an agent a question. Random numbers decide whether the agent answers, is silent, or has no
    handler for the question."""
    draw, asked, id_ = shared.random.random, shared.one(shared.agents), shared.id()
    kind = draw()
    question: Notification = Riddle(id=id_) if kind < 0.1 else Enquiry(id=id_, silent=kind < 0.3)
    timeout = patient_seconds if kind < 0.1 or kind > 0.5 else 0.001 + draw() ** 3
    world.later(when, world.client(source).ask, asked, id_, question, timeout)


def _probe(world: ServerWorld, shared: SharedData) -> Callable[[], int]:
    """Let a client send a message to an agent. Return a function that counts how often the agent has received the
    message."""
    # A mailbox that is full may refuse several letters that are sent at once.
    quota = world.plan.mailboxes.quota
    id_, agent = shared.id(), shared.one([one for one in shared.agents if quota(one, True).full != "refuse"])
    home = world.servers[world.plan.homes[agent]]
    world.send(shared.one([one for one in shared.clients if not world.client(one).over]), agent, Work(id=id_, depth=0))

    def count() -> int:
        state = home.machine.engine.states.get(agent)
        return 0 if state is None else msgspec.msgpack.decode(state, type=Worker).seen.count(id_)

    return count


def dead_letters(world: ServerWorld, logs: Logs) -> list[str]:
    """Check that exactly these letters died: all riddles (letters for which no agent has a handler), and all poison
    (letters that make their handler end its process). If an operator sent a dead letter again, the new letter must have
    died, too, and the list of dead letters must contain only the new letter. If an operator took a letter off the list,
    the list must not contain this letter."""
    # A letter may be handed out by a step that is lost in a crash; then it was never sent.
    sent = {row.message for row in logs.rows if row.kind == SEND}
    gone = expired(logs)
    ids = {letter for letter, _ in gone}
    riddles = [
        letter
        for letter in world.letters.values()
        if letter.type in ("Riddle", "Poison") and letter.id in sent and letter.id not in ids
    ]
    dead = sum(
        bool(row.dead) and not wire.is_temporary(row.process) and (dead_letter(row), row.process) not in gone
        for row in logs.rows
    )
    # Keys are unique, and a change of the topology may move a dead letter to another server.
    kept = {key for server in world.servers.values() for key in server.machine.engine.dead}
    found = [
        f"{name}: {key} was taken off the list of dead letters, but is still there"
        for name, key in world.operators.off_the_list
        if key in kept
    ]
    # A replay leaves a mark on the letter. If the operator got no answer, the letter may have been buried or not.
    quotas = {f"{letter} {agent}" for letter, agent in gone}
    kept -= quotas
    # A letter that was sent again may have expired before anybody got it.
    known = {letter.id for letter in riddles}
    replays = [row for row in logs.rows if row.kind == SEND and row.replays in known]
    again = len(replays)
    expected = len(riddles) - again
    # What one operator wanted to bury, another may have sent again.
    quotas |= {f"{row.replays} {agent}" for row in replays for agent in row.to or ()}
    buried = len({key for _, key in world.operators.buried} - kept - quotas)
    if unlucky(logs, known):
        # Other letters were in progress at every end of their server, and died like poison.
        return found
    if dead != len(riddles) or len(kept) + buried != expected:
        found.append(f"{len(kept)} dead letters are kept, {buried} buried and {dead} died: expected {len(riddles)}")
    return found


_ends = ("answered", "unanswered", "refused", "lost")


def _asked(world: ServerWorld) -> list[str]:
    """Check each question that has the timeout ``patient_seconds`` (longer than any fault). There are four correct
    outcomes: the client got the answer, the client learned that there will be no answer, the question was refused
    because a mailbox was full, or the client's process ended.
    Questions whose answers may be held or may expire are not checked."""
    if world.plan.mailboxes.hold:
        # A question may be held for longer than any client waits.
        return []
    return [
        f"{address}: question {question.id} was {question.outcome}"
        for address, client in world.clients.items()
        if address not in world.plan.mailboxes.named  # there answers may expire
        for question in client.questions
        if question.timeout == patient_seconds and question.outcome not in _ends
    ]


def states(world: ServerWorld, logs: Logs, hurried: set[str]) -> list[str]:
    """Check the state of each agent. It must contain exactly the tasks that the agent handled according to the log, in
    the same sequence, and no task twice. Check also that all questions and timers of agents have ended. The agents in
    ``hurried`` are left out of this second check, because their answers and timers may have expired."""
    done: dict[str, list[int]] = {}
    for row in sorted((row for row in logs.rows if row.kind == DELIVER), key=lambda row: row.index):
        letter = world.letters.get(row.message or "")
        if letter is not None and letter.type == "Work" and not row.dead:
            done.setdefault(row.process, []).append(msgspec.msgpack.decode(letter.body, type=Work).id)
    found = []
    for server in world.servers.values():
        for address, state in server.machine.engine.states.items():
            if world.plan.homes.get(address) and address[0] == "t":
                continue
            worker = msgspec.msgpack.decode(state, type=Worker)
            if worker.seen != done.get(address, []):
                found.append(f"{address} remembers {worker.seen}, committed were {done.get(address, [])}")
            if len(set(worker.seen)) < len(worker.seen):
                found.append(f"{address} did something twice: {worker.seen}")
            if address in hurried:
                # Its answers and timers may have expired.
                continue
            if worker.asked != worker.settled or worker.timers != worker.rung:
                found.append(
                    f"{address} asked {worker.asked}, of which {worker.settled} were settled; "
                    f"set {worker.timers} timers, of which {worker.rung} rang"
                )
    return found


def _one(random: Random, names: list[str] | list[float]) -> str:
    return names[int(random.random() * len(names))]  # type: ignore[return-value]

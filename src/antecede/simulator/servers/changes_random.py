"""Random changes of random topologies: each seed gives one schedule with several changes under load.

Each topology is made from the one before it by random edits: agents are added and moved, servers are added and removed,
domains are split, merged and connected through another server, and domains get other orders. In every third schedule
the changes are *mild*: only a few servers must take part in each change. During most mild changes, one of the other
servers is down. ``play(SEED)`` returns the outcome, with the errors.
"""

from collections.abc import Callable
from random import Random

import msgspec

from antecede.simulator.draws import stream
from antecede.simulator.servers import schedules
from antecede.simulator.servers.changing_world import FAULTS, ChangingWorld

_orders = ("matrix", "updates", "pruned", "direct")
_servers_max = 6


class Outcome(schedules.Outcome):
    """The outcome of a schedule with changes."""

    changes: int = 0
    """The number of changes that were made."""
    missed: int = 0
    """The number of servers that were down during a change, summed over all changes."""
    option: str = "--changes "


def play(seed: int) -> Outcome:
    """Play the schedule of one seed. Return its outcome, with the errors that were found."""
    random = stream(seed, "changes")
    mild = seed % 3 == 0
    topologies = journey(random, mild)
    faults = msgspec.structs.replace(
        FAULTS,
        crashes=random.choice((0, 2, 6)),
        stops=random.choice((0, 0, 1)),
        looks=random.choice((5, 15)),
        seconds=(1.0 if mild else 0.4) * len(topologies),
    )
    kill, away = random.choice((0.0, 0.02, 0.1)), 0.8 if mild else random.choice((0.0, 0.3, 0.6))
    world = ChangingWorld(seed, topologies, faults, kill, away)
    try:
        found = world.play(random.randint(10, 20) * len(topologies))
    except Exception as error:
        # Any exception is an error, and the seed shows it again.
        found = [*world.errors, f"{type(error).__name__}: {error}"]
    made = sum(one.state == "done" for one in world.outcomes)
    return Outcome(seed, found[:5], world.crashes, len(world.letters), changes=made, missed=world.missed)


class _Sketch(msgspec.Struct):
    """A topology that is changed step by step by random edits. ``text`` writes the topology as a topology file."""

    domains: dict[str, list[int]]
    orders: dict[str, str]
    agents: dict[str, int]
    moved: dict[int, int] = {}
    alone: list[int] = []
    """Servers without a domain."""
    last: int = 0
    """The number of the server that was added last."""
    names: int = 0
    ports: int = 7000
    kind: str = "Agent"
    hold: str = ""
    """The agent with the setting ``dead_follow = "hold"``, or an empty text if no agent has this setting. A letter to
    this agent is held if the letter depends on a dead letter of the agent."""

    @property
    def servers(self) -> list[int]:
        """The numbers of all servers."""
        return sorted({*self.alone, *(one for members in self.domains.values() for one in members)})

    def domains_of(self, server: int) -> list[str]:
        """Return the domains of a server."""
        return [name for name, members in self.domains.items() if server in members]

    def new_server(self) -> int:
        """Return the number of a new server."""
        self.last += 1
        return self.last

    def new_domain(self, members: list[int], random: Random) -> None:
        """Add a domain of these servers, with a random order."""
        self.names += 1
        self.domains[f"D{self.names}"] = members
        self.orders[f"D{self.names}"] = random.choice(_orders)

    def text(self) -> str:
        """Return the text of the topology file."""
        lines = ["[servers]", *(f's{one} = "tcp://127.0.0.1:{self.ports + one}"' for one in self.servers), "[domains]"]
        for name, members in self.domains.items():
            named = ", ".join(f'"s{one}"' for one in members)
            lines.append(f'{name} = {{ servers = [{named}], order = "{self.orders[name]}" }}')
        lines.append("[agents]")
        for name, server in self.agents.items():
            hold = ', dead_follow = "hold"' if name == self.hold else ""
            lines.append(f'{name} = {{ server = "s{server}", class = "nowhere:{self.kind}"{hold} }}')
        if self.moved:
            lines += ["[moved]", *(f's{one} = "s{other}"' for one, other in self.moved.items())]
        return "\n".join(lines) + "\n"


def journey(random: Random, mild: bool = False) -> list[str]:
    """Return the texts of several topology files. Each topology is made from the one before it by random edits. If
    ``mild`` is true, use only edits that need few running servers."""
    sketch = _Sketch({}, {}, {})
    sketch.alone = [sketch.new_server()]
    for _ in range(random.randint(3, 4) if mild else random.randint(1, 4)):
        _add_server(sketch, random)
    for name in "abcd"[: random.randint(2, 4)]:
        sketch.agents[name] = random.choice(sketch.servers)
    if random.random() < 0.3:
        sketch.hold = "a"
    texts = [sketch.text()]
    while len(texts) < 2 or (len(texts) < 8 and random.random() < 0.8):
        edits = _mild_edits if mild else _edits
        random.choice(edits)(sketch, random)
        if random.random() < 0.2:
            random.choice(edits)(sketch, random)
        if sketch.text() != texts[-1]:
            texts.append(sketch.text())
    return texts


def _add_agent(sketch: _Sketch, random: Random) -> None:
    if len(sketch.agents) < 6:
        sketch.agents[f"x{sketch.names}{len(sketch.agents)}"] = random.choice(sketch.servers)


def _move_agent(sketch: _Sketch, random: Random) -> None:
    sketch.agents[random.choice(list(sketch.agents))] = random.choice(sketch.servers)


def _add_server(sketch: _Sketch, random: Random) -> None:
    if len(sketch.servers) >= _servers_max:
        return
    at, new = random.choice(sketch.servers), sketch.new_server()
    if at in sketch.alone:
        sketch.alone.remove(at)
    own = sketch.domains_of(at)
    if own and random.random() < 0.5:
        sketch.domains[random.choice(own)].append(new)
    else:
        sketch.new_domain([at, new], random)


def _remove_server(sketch: _Sketch, random: Random) -> None:
    leaves = [one for one in sketch.servers if len(sketch.domains_of(one)) == 1]
    if len(sketch.servers) < 3 or not leaves:
        return
    gone = random.choice(leaves)
    (name,) = sketch.domains_of(gone)
    stays = [one for one in sketch.servers if one != gone]
    sketch.domains[name].remove(gone)
    if len(sketch.domains[name]) == 1:
        (left,) = sketch.domains.pop(name)
        if not sketch.domains_of(left):
            sketch.alone.append(left)
    successor = random.choice(stays)
    sketch.agents = {agent: random.choice(stays) if at == gone else at for agent, at in sketch.agents.items()}
    sketch.moved = {one: successor if other == gone else other for one, other in sketch.moved.items()} | {
        gone: successor
    }


def _split(sketch: _Sketch, random: Random) -> None:
    large = [name for name, members in sketch.domains.items() if len(members) > 2]
    if not large:
        return
    name = random.choice(large)
    members = random.sample(sketch.domains[name], len(sketch.domains[name]))
    cut = random.randint(1, len(members) - 2)
    # They share one server, which is a router from now on.
    sketch.domains[name] = members[: cut + 1]
    sketch.new_domain(members[cut:], random)


def _merge(sketch: _Sketch, random: Random) -> None:
    routers = [one for one in sketch.servers if len(sketch.domains_of(one)) > 1]
    if not routers:
        return
    one, other = random.sample(sketch.domains_of(random.choice(routers)), 2)
    sketch.domains[one] = list(dict.fromkeys(sketch.domains[one] + sketch.domains.pop(other)))


def _connect_elsewhere(sketch: _Sketch, random: Random) -> None:
    """Choose a random domain that has exactly one router (a server that is also in other domains). In this domain,
    replace the router by a server that was not in the domain. If this is not possible, change nothing."""
    for name, members in random.sample(list(sketch.domains.items()), len(sketch.domains)):
        routers = [one for one in members if len(sketch.domains_of(one)) > 1]
        others = [one for one in sketch.servers if one not in members]
        if len(routers) == 1 and others:
            sketch.domains[name] = [random.choice(others) if one == routers[0] else one for one in members]
            return


def _reorder(sketch: _Sketch, random: Random) -> None:
    if sketch.domains:
        sketch.orders[random.choice(list(sketch.domains))] = random.choice(_orders)


def _other_class(sketch: _Sketch, random: Random) -> None:
    sketch.kind += "s"


def _rename(sketch: _Sketch, random: Random) -> None:
    """Change the addresses of all servers, and the class of all agents."""
    sketch.ports += 100
    sketch.kind += "s"


_Edit = Callable[[_Sketch, Random], None]
_edits: tuple[_Edit, ...] = (
    *(_add_agent, _move_agent, _move_agent, _add_server, _remove_server, _split, _merge),
    *(_connect_elsewhere, _connect_elsewhere, _reorder, _rename),
)
_mild_edits: tuple[_Edit, ...] = (_add_agent, _add_agent, _add_server, _reorder, _other_class)

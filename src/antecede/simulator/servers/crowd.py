"""Mailboxes with small quotas in a random world: a client that never returns, and an agent and a client that are slow.

The client that never returns subscribes to a topic, and its process ends soon; others go on sending to it. Its server
must let the oldest letters expire, but never those that a client or an agent has in its hands.
"""

from random import Random

from antecede.engine.topic import Subscribe
from antecede.simulator.servers.server import SimulatedServer
from antecede.simulator.servers.workers import Dice, Enquiry, Work
from antecede.simulator.servers.world import ServerWorld
from antecede.topology import Mailboxes, Quota


class Crowd:
    """The quotas of one world, and those that they are for."""

    def __init__(self, seed: int, servers: list[str]) -> None:
        self._random = random = Random(f"{seed}/crowd")
        named: dict[str, Quota] = {}
        self.absent = ""
        self.agents: set[str] = set()
        """Agents whose letters may expire."""
        if random.random() < 0.15:
            self.absent = f"absent@{servers[int(random.random() * len(servers))]}"
            seconds = 0.2 if random.random() < 0.3 else 0
            named[self.absent] = Quota(1 + int(random.random() * 5), seconds=seconds)
        if random.random() < 0.2:
            self.agents.add("a9")
            named["a9"] = Quota(1 + int(random.random() * 3))
        if random.random() < 0.2:
            named.update({f"c0@{server}": Quota(1 + int(random.random() * 3)) for server in servers})
        self.mailboxes = Mailboxes(named=named)
        self._busy = bool(named)

    def join(self, world: ServerWorld, dice: Dice) -> None:
        """Let the client come and go, and the servers look at their quotas now and then."""
        random, seconds, clients = self._random, world.faults.seconds, dice.clients
        if self.absent:
            client = world.client(self.absent)
            client.no_handler = frozenset({"Riddle"})
            world.send(self.absent, dice.topics[0], Subscribe())
            clients.append(self.absent)
            world.absent.add(self.absent)
            world.later(random.random() * seconds, client.die)
            for _ in range(8):
                world.later(random.random() * seconds, world.send, clients[0], self.absent, _work(dice))
        for address in [one for one in self.mailboxes.named if one in (*self.agents, *clients) and one != self.absent]:
            when = random.random() * seconds
            for place in range(8):
                if 0 < place < 4 and address in self.agents and len(clients) > 1:
                    id_, patient = dice.id(), world.client(clients[1])
                    world.later(when, patient.ask, address, id_, Enquiry(id=id_, silent=False), patient_seconds)
                world.later(when, world.send, clients[0], address, _work(dice))
            for server in world.servers.values():
                world.later(when + 0.02 * random.random(), _look_at, server)
        for _ in range(12 if self._busy else 0):
            for server in world.servers.values():
                world.later(random.random() * seconds, _look_at, server)


def _work(dice: Dice) -> Work:
    return Work(id=dice.id(), depth=0)


def _look_at(server: SimulatedServer) -> None:
    server.guard(server.life, server.look)


patient_seconds = 60.0
"""How long a patient client waits for an answer: longer than any fault lasts."""

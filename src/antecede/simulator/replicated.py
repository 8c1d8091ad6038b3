"""Replicated state machines on a total order (Garg §12.3.4).

A service is a *deterministic* state machine. Its replicas start alike; clients multicast their requests to all of them
through a total order, so all process the same requests in the same sequence, reach the same states and give the same
outputs. Each replica sends its output to the client as a reply; any one of them will do.

What a crash does to such a service depends on the order below:

* **Crash–recovery**, on any total order: a replica that comes back goes on where it was. No request and no reply is
  lost. But lamport waits for every member, skeen for every destination and token for its holder, so while such a
  member is down the service *pauses*.
* **Crash-stop**, on ``coordinator`` whose coordinator stays up: up to t of t + 1 replicas may stop for ever, at any
  moment, and those that are left answer every request.

What a replica has applied is durable with the delivery: both belong to one commit, as in a reaction of an agent.

Members 0 … r − 1 are the replicas, the others are clients.
"""

from random import Random
from typing import Any

from antecede.messages import Message
from antecede.orders import OrderSpec
from antecede.simulator.channels import FaultyWorld
from antecede.simulator.draws import Draw, below
from antecede.simulator.kernel import World

_modulus = 2**61 - 1


class Account:
    """A state machine whose requests do not commute: the state tells in which sequence they were applied."""

    def __init__(self) -> None:
        self.state = 1
        self.applied: list[str] = []
        """The requests, in the sequence in which they were applied."""

    def apply(self, request: str, amount: int) -> int:
        """Process one request; its output."""
        self.applied.append(request)
        self.state = (self.state * 31 + amount) % _modulus
        return self.state


class Service:
    """Clients with requests, replicas that process them: the workload of a world with a total order."""

    def __init__(self, replicas: int, requests: int, gap: Draw) -> None:
        self.replicas = replicas
        self.accounts = [Account() for _ in range(replicas)]
        self.requests: dict[str, float] = {}
        """Every request that a client made, with the time of its making."""
        self.replies: dict[str, dict[int, int]] = {}
        """Request → replica → the output in its reply, as the client received it."""
        self.applications: list[tuple[float, int, str]] = []
        """When which replica applied which request."""
        self.repeated: list[tuple[str, int]] = []
        """Replies that a client received a second time: there must be none."""
        self._left = requests
        self._gap = gap

    def start(self, world: World) -> None:
        for client in range(self.replicas, world.processes):
            world.wake_after(self._gap(), client)

    def wake(self, world: World, process: int) -> None:
        if self._left:
            self._left -= 1
            amount = self._left % 97
            request = world.send(process, (1 << self.replicas) - 1, b"request %d" % amount)
            self.requests[request.id] = world.now
            world.wake_after(self._gap(), process)

    def delivered(self, world: World, process: int, message: Message) -> None:
        kind, *words = message.payload.decode().split()
        if kind == "request":
            output = self.accounts[process].apply(message.id, int(words[0]))
            self.applications.append((world.now, process, message.id))
            world.send(process, 1 << message.source, f"reply {message.id} {output}".encode())
            return
        request, output = words[0], int(words[1])
        outputs = self.replies.setdefault(request, {})
        if message.source in outputs:
            self.repeated.append((request, message.source))
        outputs[message.source] = output

    def unanswered(self) -> list[str]:
        """Requests to which no reply has come."""
        return [request for request in self.requests if not self.replies.get(request)]

    def contradictions(self) -> list[str]:
        """Requests to which replicas gave different outputs."""
        return [request for request, outputs in self.replies.items() if len(set(outputs.values())) > 1]


class StoppingWorld(FaultyWorld):
    """A world in which some processes stop for ever, each within a step of its own."""

    def __init__(
        self, spec: OrderSpec, processes: int, delay: Draw, faults: Random, doomed: dict[int, int], **settings: Any
    ) -> None:
        super().__init__(spec, processes, delay, faults, **settings)
        self._steps_left = dict(doomed)
        """Process → how many steps it still has."""

    def _strikes(self, process: int) -> bool:
        left = self._steps_left.get(process)
        if left is None:
            return False
        self._steps_left[process] = left - 1
        return left <= 1

    def _go_down(self, process: int, saved: bool) -> None:
        self._crash_now(process, saved)


def doom(replicas: int, stops: int, steps: int, rng: Random) -> dict[int, int]:
    """Choose so many of the replicas, and for each in which of its next ``steps`` steps it stops."""
    chosen = list(range(replicas))
    while len(chosen) > stops:
        chosen.pop(below(rng, len(chosen)))
    return {replica: 1 + below(rng, steps) for replica in chosen}

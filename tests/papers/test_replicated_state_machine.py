"""Garg §12.3.4: *by combining outputs of the collection, we can get a t fault-tolerant service*, and what that takes.

All but the coordinator's replicas block while a member is down, so t + 1 replicas survive t crash-stops only
under a coordinator that does not crash; otherwise it is crash–recovery.

Replicated state machines on a total order (Garg §12.3.4).

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

import pytest

from antecede.messages import Message
from antecede.orders import OrderSpec, parse
from antecede.simulator.draws import Draw, below, parse_draw, stream
from antecede.simulator.kernel import World
from antecede.simulator.worlds import FaultyWorld

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


TOTAL = ["lamport", "skeen", "skeen:causal=true", "token", "coordinator", "synchronous"]


def _draw(text: str, seed: int, name: str) -> Draw:
    return parse_draw(text, stream(seed, name))


def _equal_and_complete(service: Service, survivors: set[int]) -> None:
    logs = [service.accounts[replica].applied for replica in sorted(survivors)]
    states = {service.accounts[replica].state for replica in survivors}
    assert all(log == logs[0] for log in logs)
    assert len(states) == 1
    assert sorted(logs[0]) == sorted(service.requests), "not every request was applied exactly once"
    assert service.unanswered() == []
    assert service.contradictions() == []
    assert service.repeated == []


@pytest.mark.parametrize("order", TOTAL)
def test_crash_recovery_loses_no_reply(order: str, seeds: int) -> None:
    """Any total order: replicas and clients crash and come back, frames are lost and repeated, the network splits."""
    crashes = 0
    for seed in range(max(1, seeds // 30)):
        delay = _draw("exponential:0.1", seed, "delay")
        world = FaultyWorld(
            parse(order),
            5,
            delay,
            stream(seed, "faults"),
            loss=0.1,
            duplicate=0.1,
            crash=0.03,
            partition=0.05,
        )
        service = Service(3, 20, _draw("exponential:0.4", seed, "gap"))
        world.run(service)
        crashes += world.crashes
        _equal_and_complete(service, {0, 1, 2})
        assert all(len(outputs) == 3 for outputs in service.replies.values()), "a reply was lost"
        assert world.twice == []
    assert crashes > 0


class Outage(Service):
    """A service of which one member goes down for a while."""

    def __init__(self, down: int | str, gap: Draw) -> None:
        super().__init__(3, 120, gap)
        self.down = down
        self.began = 0.0
        self.member = -1

    def start(self, world: World) -> None:
        super().start(world)
        world.wake_after(5.0, 0)

    def wake(self, world: World, process: int) -> None:
        if process != 0:
            super().wake(world, process)
            return
        assert isinstance(world, FaultyWorld)
        holders = [member for member, order in enumerate(world.orders) if getattr(order, "holding", False)]
        if self.down == "holder" and not holders:
            world.wake_after(0.01, 0)
            return
        self.member = holders[0] if self.down == "holder" else int(self.down)
        self.began = world.now
        world.crash(self.member, 20.0)

    def during(self) -> list[str]:
        """Requests applied while the member was down, but for the moments in which something was still on its way."""
        return [request for time, _, request in self.applications if self.began + 3 < time < self.began + 20]


def _outage(order: str, down: int | str) -> Outage:
    service = Outage(down, _draw("constant:0.3", 1, "gap"))
    world = FaultyWorld(parse(order), 5, _draw("uniform:0.05,0.1", 1, "delay"), stream(1, "faults"))
    world.run(service)
    _equal_and_complete(service, {0, 1, 2})
    made = [request for request, time in service.requests.items() if service.began < time < service.began + 10]
    assert len(made) > 20, "nobody asked for anything meanwhile"
    return service


@pytest.mark.parametrize(
    ("order", "down"),
    [("lamport", 2), ("lamport", 4), ("skeen", 1), ("token", "holder"), ("coordinator", 0), ("synchronous", 1)],
)
def test_service_pauses_while_a_member_is_down(order: str, down: int | str) -> None:
    """lamport waits for all, even for a client; skeen for all destinations; token for its holder."""
    service = _outage(order, down)
    assert service.during() == []
    assert sum(time > service.began + 20 for time, _, _ in service.applications) > 60


@pytest.mark.parametrize(("order", "down"), [("coordinator:member=3", 1), ("skeen", 4)])
def test_service_goes_on_without_a_member_that_nobody_waits_for(order: str, down: int) -> None:
    """A replica under a coordinator that is up; under skeen a client, which is no destination of requests."""
    service = _outage(order, down)
    assert len(service.during()) > 40


@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_crash_stop_of_all_replicas_but_one(replicas: int, seeds: int) -> None:
    """t of t + 1 replicas stop for ever, anywhere, under a coordinator that stays up: what is left is complete."""
    stopped_early = 0
    for seed in range(max(1, seeds // 10)):
        rng = stream(seed, "stops")
        doomed = doom(replicas, replicas - 1, 60, rng)
        coordinator = replicas
        world = StoppingWorld(
            parse(f"coordinator:member={coordinator}"),
            replicas + 3,
            _draw("exponential:0.1", seed, "delay"),
            stream(seed, "faults"),
            doomed,
            loss=0.1,
            duplicate=0.1,
        )
        service = Service(replicas, 20, _draw("exponential:0.3", seed, "gap"))
        world.run(service, until=200.0)
        stopped = {replica for replica in doomed if not world.machines[replica].up}
        survivors = set(range(replicas)) - stopped
        assert survivors
        assert len(service.requests) == 20
        _equal_and_complete(service, survivors)
        whole = service.accounts[min(survivors)].applied
        for replica in stopped:
            applied = service.accounts[replica].applied
            assert applied == whole[: len(applied)], "a replica that stopped had gone another way"
            stopped_early += len(applied) < len(whole)
    assert stopped_early > 0


def test_crash_stop_under_lamport_blocks_for_ever() -> None:
    """t + 1 replicas survive t crash-stops only under a coordinator."""
    world = StoppingWorld(
        parse("lamport"), 5, _draw("exponential:0.1", 1, "delay"), stream(1, "faults"), doomed={1: 20}
    )
    service = Service(3, 30, _draw("exponential:0.3", 1, "gap"))
    world.run(service, until=500.0)
    assert not world.machines[1].up
    assert service.unanswered() != []

"""Garg §12.3.4: *by combining outputs of the collection, we can get a t fault-tolerant service*, and what that takes.

All but the coordinator's replicas block while a member is down, so t + 1 replicas survive t crash-stops only
under a coordinator that does not crash; otherwise it is crash–recovery.
"""

import pytest

from antecede.orders import parse
from antecede.simulator.channels import FaultyWorld
from antecede.simulator.draws import Draw, parse_draw, stream
from antecede.simulator.kernel import World
from antecede.simulator.replicated import Service, StoppingWorld, doom

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

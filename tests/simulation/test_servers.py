"""Whole servers under random schedules: crashes between any two effects, disks that forget, frames lost and repeated.

The default budget is 3,000 schedules; ``tests/campaigns/test_servers.py`` is the campaign. A failure names the
command that plays it again. The same schedules must find the bugs of ``tests/planted/test_servers.py``.
"""

import os
from collections import Counter
from typing import Any

import msgspec
import pytest

from antecede.server import AgentServer, Numbering, Projection, project
from antecede.simulator.servers import ServerWorld
from antecede.simulator.servers.judgement import TRAITOR
from antecede.trace import DELIVER, HOP, SEND, Event, verify, write_trace
from antecede.wire import is_temporary
from helpers.windows import small_window
from worlds.schedules import play

_parts = 6
_seeds = int(os.environ.get("ANTECEDE_SEEDS", "3000"))


def _worlds(seed: int) -> ServerWorld:
    """A world that has come to rest."""
    found: list[ServerWorld] = []
    outcome = play(seed, watch=found.append)
    assert not outcome.found, outcome
    return found[0]


@pytest.mark.parametrize("part", range(_parts))
def test_nothing_is_lost_twice_or_late(part: int) -> None:
    crashes = letters = 0
    for seed in range(part, _seeds, _parts):
        outcome = play(seed)
        assert not outcome.found, outcome
        crashes += outcome.crashes
        letters += outcome.deliveries
    if _seeds >= 600:
        assert crashes > _seeds // _parts, "the schedules have become harmless"
        assert letters > 20 * _seeds // _parts, "the schedules have become empty"


def test_clients_whose_window_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers close the connections of clients that do not wait (``tests/planted/test_drivers.py``)."""
    small_window(monkeypatch)
    crowded: list[bool] = []

    def weigh(self: Numbering[Any]) -> None:
        real(self)
        crowded.append(self.crowded)

    real = Numbering._weigh
    monkeypatch.setattr(Numbering, "_weigh", weigh)
    for seed in range(min(_seeds // _parts, 100)):
        outcome = play(seed)
        assert not outcome.found, outcome
    assert sum(crowded) > len(crowded) // 20, "clients do not reach their window"


def test_a_seed_replays_byte_for_byte() -> None:
    one, other = ([msgspec.json.encode(row) for row in _worlds(11).trace()] for _ in range(2))
    assert one == other


def test_schedules_reach_what_they_are_for() -> None:
    """Every order, kills, power cuts, snapshots, released segments, children, questions, timers and dead letters."""
    orders = {"matrix", "updates", "pruned", "direct", "buffer", "synchronous", "coordinator", "token", "lamport"}
    wanted = orders | {"skeen", "crashes", "hops", "timers", "multicasts", "dead", "children", "snapshots", "released"}
    wanted |= {"operators", "temporary", "refused", "answered", "late", "unanswered"}
    seen: Counter[str] = Counter()
    for seed in range(200):
        world = _worlds(seed)
        for spec in world.plan.orders.values():
            seen[spec.name] += 1
        rows = world.trace()
        seen["crashes"] += world.crashes
        seen["hops"] += sum(row.kind == HOP for row in rows)
        seen["timers"] += sum(row.kind == "local" for row in rows)
        seen["multicasts"] += sum(len(row.to or ()) > 1 for row in rows)
        seen["dead"] += sum(bool(row.dead) for row in rows)
        seen["children"] += sum("-" in row.process for row in rows)
        for server in world.servers.values():
            seen["snapshots"] += any("snapshot" in name for name in server.disk.names(""))
            seen["released"] += bool(server.archived)
        seen["operators"] += len(world.operators.off_the_list)
        for address, client in world.clients.items():
            seen["temporary"] += is_temporary(address)
            seen["refused"] += sum(publish.state == "refused" for publish in client.published)
            for question in client.questions:
                seen[question.outcome] += 1
        if not wanted - set(+seen):
            return
    raise AssertionError(f"not seen: {wanted - set(+seen)}")


# The trace as a projection of the log.


def test_the_projected_trace_is_well_formed(tmp_path: object) -> None:
    for seed in range(12):
        world = _worlds(seed)
        path = f"{tmp_path}/{seed}.jsonl"
        write_trace(path, world.trace())
        report = verify([path])
        assert report["complete"], report["quarantined"]
        # Only letters of clients that never return are left, and those that a traitor forged.
        mailboxes = [server.machine.engine.mailboxes for server in world.servers.values()]
        waiting = sum(len(letters) for some in mailboxes for name, letters in some.items() if "@" in name)
        sends = [row for row in world.trace() if row.kind == SEND]
        forged = sum(len(row.to or ()) for row in sends if row.process.startswith(f"{TRAITOR}@"))
        assert report["undelivered"] == waiting + forged


def test_a_projection_goes_on_where_it_was_saved() -> None:
    server = next(server for seed in range(9) for server in _worlds(seed).servers.values() if len(server.records()) > 9)
    records, incarnation = server.records(), server.machine.incarnation
    topology, homes = server.plan.topology, server.plan.homes
    whole = list(project(records, server.name, incarnation, topology, homes))
    for cut in range(0, len(records), 3):
        first, second = (Projection(server.name, incarnation, topology, homes) for _ in range(2))
        rows: list[Event] = [row for record in records[:cut] for row in first.rows(record)]
        second.load(first.save())
        rows += [row for record in records[cut:] for row in second.rows(record)]
        assert rows == whole


def test_hops_are_those_of_the_way() -> None:
    for seed in range(40):
        world = _worlds(seed)
        topology, homes = world.plan.topology, world.plan.homes
        rows = world.trace()
        sends = {row.message: row for row in rows if row.kind == SEND}
        crossed: dict[str, set[tuple[str, str]]] = {}
        for row in rows:
            if row.kind == HOP:
                crossed.setdefault(row.message or "", set()).add((row.process, row.domain or ""))
        for message, sent in sends.items():
            source = _home(homes, sent.process)
            routers = {
                router
                for target in sent.to or ()
                if (home := _home(homes, target)) != source
                for router in topology.route(source, home)[1:-1]
            }
            assert {server for server, _ in crossed.get(message or "", set())} == routers
        delivered = {row.message for row in rows if row.kind == DELIVER}
        assert delivered <= set(sends)


def _home(homes: dict[str, str], address: str) -> str:
    return homes.get(address) or address.rpartition("@")[2]


def test_the_log_alone_gives_the_state_again() -> None:
    """Also by way of a snapshot in the middle."""
    for seed in range(8):
        for server in _worlds(seed).servers.values():
            records = server.records()
            for cut in (len(records) // 3, 2 * len(records) // 3):
                first = AgentServer(server.name, server.plan, server.machine.incarnation)
                for record in records[:cut]:
                    first.replay(record, 0.0)
                second = AgentServer(server.name, server.plan, server.machine.incarnation)
                second.restore(first.snapshot(), 0.0)
                for record in records[cut:]:
                    first.replay(record, 0.0)
                    second.replay(record, 0.0)
                assert first.snapshot() == second.snapshot()

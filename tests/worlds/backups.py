"""Backups of simulated systems: an operator makes a backup of a world with faults, and a new world continues from the
backup.

A backup has a copy of each server's disk. The copies are made at the *cut*: one moment for each server, chosen so that
the copies fit together. The cut is made by the same classes as in a real system
(:mod:`antecede.server.operator`, :mod:`antecede.server.operations`). The operator's requests take
some time, and servers may crash meanwhile.

The restored world has no faults and no clients. It runs until nothing is pending. Then its whole trace, including the
events before the cut, is judged: no message may be lost, delivered twice, or delivered late.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from antecede.backups.restoring import history, marked, new_incarnations, recovered_state
from antecede.engine.agents import Agent
from antecede.errors import AntecedeError
from antecede.server import Cutting, Restored, encode_record, faults_of, renewed
from antecede.simulator.draws import stream
from antecede.simulator.servers.judgement import findings
from antecede.simulator.servers.network import Faults
from antecede.simulator.servers.server import DIRECTORY, SIZES, Copied, SimulatedServer
from antecede.simulator.servers.world import ServerWorld
from antecede.store import read_records
from antecede.store.directory import read_identity
from antecede.store.log import write_directory
from antecede.store.recovery import judge
from antecede.store.simulated import SimulatedDisk
from worlds.intruders import IdentifiedWorld
from worlds.schedules import Outcome, play, promised_by
from worlds.workload import decide

_cuts = 3
"""The number of backups that an operator tries to make in one world."""


def play_backup(
    seed: int, orders: Callable[[Random], str] | None = None, faults: Faults | None = None
) -> tuple[Outcome, int]:
    """Play one seed with backups, and restore each backup. Return the outcome, and the number of backups that were
    restored without errors."""
    drills: list[_Drill] = []
    outcome = play(seed, orders=orders, faults=faults, watch=lambda world: drills.append(_Drill(world, seed)))
    if outcome.found:
        return outcome, 0
    world = drills[0].world
    for number, copies in enumerate(drills[0].cuts):
        try:
            found = _restored(world, copies, seed)
        except (AntecedeError, AssertionError) as error:
            # Any error is a finding, and the seed shows it again.
            found = [f"{type(error).__name__}: {error}"]
        if found:
            return Outcome(seed, [f"backup {number}: {line}" for line in found], outcome.crashes), number
    return outcome, len(drills[0].cuts)


class _Drill:
    """An operator who makes backups of a world at random moments while there are faults."""

    def __init__(self, world: ServerWorld, seed: int) -> None:
        self.world = world
        self.cuts: list[dict[str, Copied]] = []
        """For each backup that succeeded: the copies of the servers' disks, by server."""
        random = stream(seed, "backups")
        for number in range(_cuts):
            world.later(random.random() * world.faults.seconds, self._begin, f"{number}")

    def _begin(self, id_: str) -> None:
        self._go_on(Cutting(self.world.servers, id_))

    def _go_on(self, cutting: Cutting) -> None:
        world = self.world
        if cutting.done:
            copies = {name: server.copied for name, server in world.servers.items()}
            self.cuts.append({name: copied for name, copied in copies.items() if copied is not None})
        if cutting.over:
            for server, command, arguments in cutting.releases():
                world.operators.request(world.servers[server], command, arguments, lambda document, error: None)
            return
        for server, command, arguments in cutting.requests():
            self._ask(cutting, server, command, arguments)

    def _ask(self, cutting: Cutting, server: str, command: str, arguments: list[str]) -> None:
        def answered(document: Any, error: AntecedeError | None) -> None:
            cutting.answered(server, document, error)
            self._go_on(cutting)

        self.world.operators.request(self.world.servers[server], command, arguments, answered)


def _restored(world: ServerWorld, copies: dict[str, Copied], seed: int) -> list[str]:
    """Restore a backup, and let the new world run until nothing is pending. Return the errors."""
    states: dict[str, bytes] = {}
    found: dict[str, Any] = {}
    begins: dict[str, list[Any]] = {}
    for name, copied in copies.items():
        disk = SimulatedDisk()
        disk.replace(copied.contents)
        identity = read_identity(disk, DIRECTORY)
        assert identity is not None
        judged = judge(disk, DIRECTORY, identity).recovered
        found[name] = msgspec.structs.replace(judged, last=copied.position)
        states[name], begins[name] = recovered_state(found[name], name, world.plan, copied.incarnation, "")
    misfits = list(faults_of(states))
    if misfits:
        return misfits
    random = stream(seed, "restored")
    incarnations = new_incarnations(SimulatedDisk(random=random), list(copies))
    contents: dict[str, dict[str, bytes]] = {}
    archived: dict[str, list[bytes]] = {}
    for name, copied in copies.items():
        disk = SimulatedDisk(random=random)
        begin = encode_record([Restored(incarnations[name]), *begins[name]])
        first, records = history(found[name], 0, copied.incarnation, begin, False)
        state = renewed(states[name], name, incarnations, "")
        write_directory(disk, DIRECTORY, incarnations[name], first, records, state, SIZES)
        contents[name] = disk.contents()
        archived[name] = _marked_history(copied)
    return _play_on(world, contents, archived, seed)


def _marked_history(copied: Copied) -> list[bytes]:
    """Return all records that a server wrote up to the cut (the moment at which its disk was copied). The first record
    should contain an incarnation: a number that identifies the data of one server. If it contains none, add the
    incarnation that the server had at the cut."""
    disk = SimulatedDisk()
    disk.replace(copied.contents)
    stored = read_records(DIRECTORY, len(copied.archived), copied.position, disk)
    records = [*copied.archived[: copied.position], *(record for _, record in stored)]
    return [marked(records[0], copied.incarnation), *records[1:]]


def _play_on(
    world: ServerWorld, contents: dict[str, dict[str, bytes]], archived: dict[str, list[bytes]], seed: int
) -> list[str]:
    class RestoredServer(SimulatedServer):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.disk.replace(contents[self.name])
            self.archived = archived[self.name]
            self.clock_offset_ms = world.servers[self.name].clock_ms

    class RestoredWorld(ServerWorld):
        server_class = RestoredServer

        def class_of(self, kind: str) -> type[Agent]:
            return world.class_of(kind)

        def logged(self, server: SimulatedServer, event: str, fields: dict[str, Any]) -> None:
            # A letter that an intruder forged may have been in transit at the cut.
            if not (event == "bad-frame" and isinstance(world, IdentifiedWorld)):
                super().logged(server, event, fields)

    agents = {agent: kind for server in world.servers.values() for agent, kind in server.agents.items()}
    again = RestoredWorld(world.plan, agents, seed)
    again.letters = dict(world.letters)
    again.absent = {
        address for server in world.servers.values() for address in (*world.clients, *server.machine.engine.mailboxes)
    } - agents.keys()
    again.settle()
    decide(again)
    again.settle()
    return findings(again, again.logs(), promised_by(world.plan), None, replayed=False)

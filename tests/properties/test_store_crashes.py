"""A log on a disk that forgets, through several lives, each ended by a kill, a power cut or an error at any operation.

After every crash: what was said to be durable is there, the records are a prefix of those appended, none is missing in
between, the snapshot is the state that was handed in, and opening succeeds. No error but a typed one is ever seen. The
same runs must find the bugs planted below. A failure names its seed: ``Lives(SEED).play()`` is the run.
"""

import errno
from collections.abc import Callable
from random import Random
from typing import Any
from zlib import crc32

import pytest

from antecede.errors import AntecedeError, DiskFullError, StoreError, StoreFailedError, StoreFullError
from antecede.store import (
    Judged,
    LogStore,
    PowerCut,
    Recovered,
    Segments,
    SimulatedDisk,
    Sizes,
    Walk,
    open_log,
    read_group,
    repair,
)
from antecede.store import log as opening
from antecede.store import recovery as walk_module

SIZES = Sizes(segment_bytes=2048, group_bytes_max=256, pending_bytes_max=1024, log_bytes_max=7 * 2048)
GROWING = Sizes(2048, 256, 1024, 7 * 2048, segment_bytes_first=448)
"""From a quarter of the full size on, so that segments in advance are made longer, and many turns are taken."""
Bug = Callable[[pytest.MonkeyPatch], type[SimulatedDisk] | None]


class Lives:
    """The lives of one data directory, and what its owner knows."""

    def __init__(self, seed: int, disk: type[SimulatedDisk] = SimulatedDisk) -> None:
        self.random = Random(seed)
        self.disk = disk()
        self.sizes = GROWING if seed % 2 else SIZES
        self.appended: list[bytes] = []
        self.promised = 0
        """Said to be durable: a kill leaves it."""
        self.synced = 0
        """Of that, what a power cut leaves: under ``os`` only snapshots, closed logs, and what recovery found."""
        self.durability = "disk"
        self.incarnation: int | None = None

    def play(self) -> None:
        mostly = self.random.choice(("disk", "os"))
        # Groups of equal size leave stale groups where the next life's groups end.
        self.record_sizes = self.random.choice(((0, 3, 20, 20, 60, 200), (20,)))
        for _ in range(self.random.randint(2, 6)):
            self.durability = self.random.choice(("disk", "disk", mostly))
            self.live()
        self.disk.script = None
        self.open().close()

    def live(self) -> None:
        random = self.random
        crash = self.plan()
        try:
            self.act(self.open())
        except PowerCut:
            pass
        except StoreError:
            assert self.faulty, "an error though the disk did nothing wrong"
        self.disk.script = None
        self.disk.capacity = 1 << 40
        if crash == "kill":
            if self.faulty:
                # What the kernel was given and could not write is gone, with or without a kill.
                self.promised = self.synced
            self.disk.kill(random)
        else:
            self.promised = self.synced
            self.disk.power_cut(random)

    def plan(self) -> str:
        """How this life will end, and what the disk will do to it before."""
        random = self.random
        steps = random.randrange(1, 120)
        fault = random.choice(("none", "none", "none", "sync", "write", "full"))
        faulty_step = random.randrange(1, 60)
        self.faulty = fault in ("sync", "write")
        self.disk.capacity = random.randrange(3000, 12000) if fault == "full" else 1 << 40

        def script(operation: str, path: str) -> None:
            nonlocal steps, faulty_step
            steps -= 1
            if steps <= 0:
                raise PowerCut
            if operation == fault:
                faulty_step -= 1
                if faulty_step == 0:
                    raise OSError(errno.EIO, "the simulated disk is broken", path)

        self.disk.script = script
        return random.choice(("kill", "power cut", "power cut"))

    def open(self) -> LogStore:
        try:
            log = open_log(
                "data",
                durability=self.durability,
                sizes=self.sizes,
                files=self.disk,
                threaded=False,
                on_durable=lambda number: self.heard(number),
            )
        except DiskFullError:
            raise PowerCut from None
        self.check(log.recovered)
        # What was read is acted upon: it must survive from here on.
        self.promised = self.synced = log.recovered.last
        return log

    def heard(self, number: int) -> None:
        assert number > self.promised or self.durability == "os"
        self.promised = number
        if self.durability == "disk":
            self.synced = number

    def check(self, recovered: Recovered) -> None:
        if self.incarnation is None or not self.appended:
            self.incarnation = recovered.incarnation
        assert recovered.incarnation == self.incarnation, "another incarnation"
        assert recovered.last >= self.promised, f"{self.promised} were durable, {recovered.last} are there"
        assert recovered.last <= len(self.appended)
        covered = 0
        if recovered.snapshot:
            covered = recovered.snapshot.upto
            assert b"".join(recovered.snapshot.parts()) == self.state(covered), "another state"
        found = list(recovered.records())
        assert [number for number, _ in found] == list(range(covered + 1, recovered.last + 1)), "a gap"
        assert [record for _, record in found] == self.appended[covered : recovered.last], "other records"
        del self.appended[recovered.last :]

    def state(self, upto: int) -> bytes:
        return b"%d %d " % (upto, crc32(b"".join(self.appended[:upto]))) + bytes(upto % 200)

    def act(self, log: LogStore) -> None:
        random = self.random
        eager = random.choice((3, 7))
        for _ in range(random.randrange(60)):
            action = random.randrange(12)
            if action < eager:
                self.append(log)
            elif action < 10:
                log.commit()
                assert self.faulty or log._failure is None, "a commit failed though the disk did nothing wrong"
                if log._failure:
                    with pytest.raises(StoreFailedError):
                        log.append(b"")
            elif action == 10:
                self.snapshot(log)
            else:
                log.release(random.randint(0, log.durable))
        if random.random() < 0.4:
            log.close()
            if log._failure is None:
                self.synced = self.promised = log.durable

    def append(self, log: LogStore) -> None:
        record = self.random.randbytes(self.random.choice(self.record_sizes))
        # As the number says; the owner knows a record by what it appended, accepted or not.
        try:
            number = log.append(record)
        except StoreFullError:
            return
        self.appended.append(record)
        assert number == len(self.appended)

    def snapshot(self, log: LogStore) -> None:
        upto = log.durable
        if log._kept.good and upto < log._kept.good[-1]:
            return
        state = self.state(upto)
        try:
            log.snapshot([state[:5], state[5:]], upto)
        except DiskFullError:
            return
        self.synced = max(self.synced, upto)


def test_crashes_lose_nothing_durable(seeds: int) -> None:
    for seed in range(seeds):
        try:
            Lives(seed).play()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


def no_directory_sync(patch: pytest.MonkeyPatch) -> type[SimulatedDisk]:
    """Names are never synced."""

    class Disk(SimulatedDisk):
        def sync_directory(self, path: str) -> None:
            pass

    return Disk


def acknowledges_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    """A group is said to be durable when it is written."""
    patch.setattr(Segments, "sync", lambda self: None)


def torn_group_is_kept(patch: pytest.MonkeyPatch) -> None:
    """A group counts when its header is there, whatever its checksum says."""
    patch.setattr(walk_module, "checked", lambda header, body: True)


def recovery_does_not_write_again(patch: pytest.MonkeyPatch) -> None:
    """Recovery syncs what it found, which after a failed sync does nothing."""

    def careless(files: Any, directory: str, judged: Judged) -> tuple[int, int]:
        judged.tail.unsure = judged.tail.offset
        return repair(files, directory, judged)

    patch.setattr(opening, "repair", careless)


def snapshot_is_not_synced(patch: pytest.MonkeyPatch) -> type[SimulatedDisk]:
    """A snapshot gets its name before its bytes are on the disk."""

    class Disk(SimulatedDisk):
        def fsync(self, file: int) -> None:
            if "snapshot" not in self._open[file][0]:
                super().fsync(file)

    return Disk


def failed_sync_is_tried_again(patch: pytest.MonkeyPatch) -> None:
    """After a failed sync the log syncs once more and goes on."""
    once = Segments.sync

    def twice(self: Segments) -> None:
        try:
            once(self)
        except OSError:
            once(self)

    patch.setattr(Segments, "sync", twice)


def releases_by_number_alone(patch: pytest.MonkeyPatch) -> None:
    """Segments go when the owner released them, covered by a snapshot or not."""
    drop = Segments.drop
    patch.setattr(Segments, "drop", lambda self, floor: drop(self, 1 << 60))


def full_disk_is_met_when_writing(patch: pytest.MonkeyPatch) -> type[SimulatedDisk]:
    """Segments are not allocated; the room is looked for when it is too late."""

    class Disk(SimulatedDisk):
        def allocate(self, file: int, size: int) -> None:
            pass

    return Disk


def _leave_stale_groups(patch: pytest.MonkeyPatch) -> None:
    """What is cut stays on the disk behind the last good group, as in a segment that is used again."""

    def untruncated(files: Any, directory: str, judged: Judged) -> tuple[int, int]:
        judged.tail.cut = None
        return repair(files, directory, judged)

    patch.setattr(opening, "repair", untruncated)


def _unchained(self: Walk, file: int, at: int) -> Any:
    """Any group is the next one if only its numbers fit."""
    found = read_group(self.files, file, self.tail.offset, self.seal)
    if isinstance(found, str):
        return found
    fits = (found[0].number, found[0].first) == (self.tail.group + 1, self.tail.record + 1)
    return found if fits or self._anywhere else "another number"


BUGS: list[Bug] = [
    no_directory_sync,
    acknowledges_before_the_sync,
    torn_group_is_kept,
    recovery_does_not_write_again,
    snapshot_is_not_synced,
    failed_sync_is_tried_again,
    releases_by_number_alone,
    full_disk_is_met_when_writing,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_planted_bugs_are_caught(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = bug(monkeypatch) or SimulatedDisk

    def caught(seed: int) -> bool:
        try:
            Lives(seed, disk).play()
        except (AssertionError, AntecedeError, KeyError):
            return True
        return False

    assert any(caught(seed) for seed in range(400))


def test_stale_groups_harm_nobody(seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _leave_stale_groups(monkeypatch)
    for seed in range(seeds):
        Lives(seed).play()


@pytest.mark.parametrize("chained", [True, False])
def test_it_is_the_chain_that_refuses_stale_groups(chained: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three groups a power cut takes the second; the next life writes another one just as long in its place."""
    _leave_stale_groups(monkeypatch)
    if not chained:
        monkeypatch.setattr(Walk, "_next", _unchained)
    disk = SimulatedDisk()
    lives = (b"one", b"two", b"old"), (b"new",), ()
    for life in lives:
        log = open_log("data", durability="os", sizes=SIZES, files=disk, threaded=False)
        for record in life:
            log.append(record)
            log.commit()
        found = [record for _, record in log.recovered.records()]
        disk.kill(Random(0))
        if b"old" in life:
            segment = disk.seen["data/segment-000000000001.log"].seen
            segment[segment.index(b"two")] ^= 1
    assert found == ([b"one", b"new"] if chained else [b"one", b"new", b"old"])

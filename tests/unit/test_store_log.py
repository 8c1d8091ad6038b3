"""The log on a real file system and on a simulated one: what it promises, what it refuses, and in which words."""

import errno
import os
import threading
import time
import tracemalloc
from pathlib import Path

import pytest

from antecede import limits
from antecede.errors import (
    DiskFullError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    StoreLockedError,
    UsageError,
)
from antecede.store import LogStore, MemoryStore, SimulatedDisk, Sizes, open_log, open_store, read_records

SMALL = Sizes(segment_bytes=2048, group_bytes_max=256, pending_bytes_max=1024, log_bytes_max=4 * 2048)


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "data")


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


def small(disk: SimulatedDisk, **options: object) -> LogStore:
    return open_log("data", sizes=SMALL, files=disk, threaded=False, **options)  # type: ignore[arg-type]


def fill(log: LogStore, size: int, together: int = 1) -> None:
    """Append records until one is refused."""
    while True:
        number = log.append(bytes(size))
        if number % together == 0:
            log.wait(number)


def test_a_small_log_needs_little_space_and_segments_grow(place: str) -> None:
    with open_log(place) as log:
        log.wait(log.append(b"hello"))
        assert log.log_bytes == 3 * limits.store_segment_bytes_first
        # More than fits into the first segments is accepted at once: the segment in advance is made longer before.
        big = [bytes(limits.store_group_bytes_max - 4), *[bytes(1 << 20)] * 12]
        log.wait([log.append(record) for record in big][-1])
        log.wait(log.append(b"more"))
    segments = sorted(Path(place).glob("segment-*"))
    sizes = [path.stat().st_size for path in segments]
    assert sizes[0] == limits.store_segment_bytes_first
    assert sizes == sorted(sizes)
    assert sizes[-1] == limits.store_segment_bytes
    with open_log(place) as log:
        assert [len(record) for _, record in log.recovered.records()] == [5, *map(len, big), 4]


def test_a_full_disk_is_met_before_a_record_that_needs_a_longer_segment_is_accepted(disk: SimulatedDisk) -> None:
    sizes = Sizes(segment_bytes=65_536, group_bytes_max=8192, pending_bytes_max=16_384, segment_bytes_first=1024)
    with open_log("data", sizes=sizes, files=disk, threaded=False) as log:
        disk.capacity = 4000
        with pytest.raises(DiskFullError, match="no space for the next segment"):
            log.append(bytes(5000))
        assert log.last == 0
        assert "no space" in log.shortage()
        log.wait(log.append(bytes(500)))
        disk.capacity = 1 << 20
        time.sleep(limits.store_retry_seconds)
        log.shortage()
        log.commit()
        log.wait(log.append(bytes(5000)))
    with open_log("data", sizes=sizes, files=disk, threaded=False) as log:
        assert [len(record) for _, record in log.recovered.records()] == [500, 5000]


def test_records_come_back_with_their_numbers(place: str) -> None:
    records = [b"", b"a", bytes(5000), *(b"%d" % number for number in range(500))]
    with open_log(place) as log:
        numbers = [log.append(record) for record in records]
        assert numbers == list(range(1, 504))
        assert log.wait(503)
        assert log.durable == log.last == 503
        incarnation = log.incarnation
    with open_log(place) as log:
        assert log.incarnation == incarnation == log.recovered.incarnation
        assert list(log.recovered.records()) == list(enumerate(records, 1))
        assert list(log.recovered.records()) == list(enumerate(records, 1))
        assert (log.recovered.first, log.recovered.last, log.recovered.cut) == (1, 503, None)
        assert log.append(b"next") == 504
        log.wait(504)
        assert list(read_records(place, after=502)) == [(503, b"499"), (504, b"next")]


def test_reading_keeps_one_group_in_memory(place: str) -> None:
    sizes = Sizes(segment_bytes=1 << 20, group_bytes_max=1 << 16, pending_bytes_max=1 << 18, log_bytes_max=1 << 24)
    with open_log(place, sizes=sizes, durability="os", threaded=False) as log:
        for _ in range(100):
            log.wait(log.append(bytes(60_000)))
    # What is behind the end is looked through in windows of a mebibyte; there are six of them in records.
    tracemalloc.start()
    with open_log(place, sizes=sizes, threaded=False) as log:
        assert sum(len(record) for _, record in log.recovered.records()) == 6_000_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * (1 << 20)


def test_what_gathers_during_a_sync_is_one_group(place: str) -> None:
    heard: list[int] = []
    gate = threading.Event()

    def on_durable(number: int) -> None:
        heard.append(number)
        gate.wait(10)

    with open_log(place, on_durable=on_durable) as log:
        log.append(b"first")
        while not heard:
            pass
        for _ in range(1000):
            log.append(b"record")
        gate.set()
        log.wait(1001)
    assert heard[0] == 1
    assert heard[-1] == 1001
    assert len(heard) == 2


def test_an_owner_commits_in_the_thread_of_its_own(place: str) -> None:
    """Durable when ``commit_here`` returns, and nobody is told; too much at a time is left to the commit thread."""
    told: list[int] = []
    with open_log(place, on_durable=told.append) as log:
        while not log._asleep:
            time.sleep(0.001)
        log._slow_share = 0.0
        for number in range(1, 6):
            assert log.append(b"small", wake=False) == number
            assert log.durable == number - 1
            log._slow_share = 0.0
            log.commit_here()
            assert log.durable == number
        assert told == []
        last = log.append(bytes(limits.store_commit_here_bytes_max), wake=False)
        log.commit_here()
        assert log.wait(last)
        log._slow_share = 1.0
        last = log.append(b"on a slow disk", wake=False)
        log.commit_here()
        assert log.wait(last)
    assert told == [6, 7]
    assert [number for number, _ in read_records(place)] == [1, 2, 3, 4, 5, 6, 7]


def test_the_commit_thread_sleeps_while_nothing_is_pending(place: str) -> None:
    """A step that only acknowledges has no record: waking the thread for it would cost more than the step."""
    with open_log(place) as log:
        assert log.wait(log.append(b"first"))
        while not log._asleep:
            time.sleep(0.001)
        log._slow_share = 1.0
        log.commit_here()
        log.commit_soon()
        assert log._asleep
        assert log.wait(log.append(b"second"))


def test_an_owner_leaves_no_rest_behind(place: str) -> None:
    """What is too much for one group goes to the commit thread whole: nobody would wake it for a rest."""
    sizes = Sizes(segment_bytes=1 << 20, group_bytes_max=1_000, pending_bytes_max=100_000)
    with open_log(place, sizes=sizes) as log:
        while not log._asleep:
            time.sleep(0.001)
        for _ in range(5):
            last = log.append(bytes(600), wake=False)
        log.commit_here()
        assert log.wait(last, timeout=10)


def test_an_owner_and_the_commit_thread_take_turns(place: str) -> None:
    with open_log(place) as log:
        for number in range(300):
            log.append(b"%d" % number, wake=number % 3 == 0)
            if number % 3:
                log.commit_here()
        assert log.wait(300)
    assert [record for _, record in read_records(place)] == [b"%d" % number for number in range(300)]


def test_waits_of_many_threads_all_end(place: str) -> None:
    ended: list[int] = []
    with open_log(place, durability="os") as log:
        threads = []
        for _ in range(50):
            number = log.append(b"record")
            threads.append(threading.Thread(target=lambda n=number: ended.append(n) if log.wait(n) else None))
            threads[-1].start()
        for thread in threads:
            thread.join(10)
    assert sorted(ended) == list(range(1, 51))


def test_a_second_opener_is_told_who_has_it(place: str) -> None:
    with open_log(place), pytest.raises(StoreLockedError, match=rf"in use by process {os.getpid()}$"):
        open_log(place)
    open_log(place).close()


def test_the_simulated_disk_names_the_holder_of_a_lock_too(disk: SimulatedDisk) -> None:
    file = disk.lock("data/lock", b"12\n")
    with pytest.raises(BlockingIOError) as raised:
        disk.lock("data/lock", b"34\n")
    assert raised.value.strerror == "12"
    disk.close(file)
    disk.lock("data/lock", b"34\n")


def failing(disk: SimulatedDisk, operation: str, error: int = errno.EIO) -> None:
    def script(step: str, path: str) -> None:
        if step == operation:
            raise OSError(error, os.strerror(error), path)

    disk.script = script


@pytest.mark.parametrize("operation", ["sync", "write"])
def test_a_failed_write_or_sync_is_final(disk: SimulatedDisk, operation: str) -> None:
    failures: list[StoreFailedError] = []
    heard: list[int] = []
    log = small(disk, on_failed=failures.append, on_durable=heard.append)
    log.wait(log.append(b"one"))
    failing(disk, operation)
    number = log.append(b"two")
    with pytest.raises(StoreFailedError, match="records up to 1 are durable"):
        log.wait(number)
    disk.script = None
    for later in (
        lambda: log.append(b"x"),
        lambda: log.wait(2),
        lambda: log.snapshot(b"", 1),
        lambda: log.release(1),
    ):
        with pytest.raises(StoreFailedError) as caught:
            later()
        assert isinstance(caught.value.__cause__, OSError)
    assert log.wait(1)
    assert len(failures) == 1
    assert heard == [1]
    log.close()
    assert small(disk).recovered.last in (1, 2)


def test_a_callback_that_raises_stops_the_log(place: str) -> None:
    def on_durable(number: int) -> None:
        raise RuntimeError("the loop is closed")

    log = open_log(place, on_durable=on_durable)
    log.append(b"one")
    assert log.wait(1)
    with pytest.raises(StoreFailedError, match="the loop is closed"):
        fill(log, 10)
    log.close()


def test_a_full_disk_refuses_new_records_and_keeps_accepted_ones(disk: SimulatedDisk) -> None:
    disk.capacity = 2 * 2048 + 100
    log = small(disk)
    with pytest.raises(DiskFullError, match="no space for the next segment"):
        fill(log, 90, together=5)
    accepted = log.last
    assert log.durable < accepted
    assert log.wait(accepted)
    disk.capacity = 1 << 30
    log._look_after = 0.0
    with pytest.raises(DiskFullError):
        log.append(bytes(90))
    log.commit()
    assert log.append(bytes(90)) == accepted + 1
    log.close()
    assert small(disk).recovered.last == accepted + 1


def test_pending_records_are_bounded(disk: SimulatedDisk) -> None:
    log = small(disk)
    for _ in range(8):
        log.append(bytes(1024 // 8 - 4))
    assert log.pending_bytes == 1024
    with pytest.raises(StoreFullError, match="1024 bytes are not yet written"):
        log.append(b"")
    log.wait(log.last)
    assert log.pending_bytes == 0
    assert log.append(b"") == 9


def test_a_record_fills_a_group_at_most(disk: SimulatedDisk) -> None:
    log = small(disk)
    log.wait(log.append(bytes(256 - 4)))
    with pytest.raises(StoreError, match="a record of 253 bytes: at most 252"):
        log.append(bytes(253))


def test_a_full_log_takes_records_again_after_a_release(disk: SimulatedDisk) -> None:
    log = small(disk)
    with pytest.raises(StoreFullError, match="log_bytes_max is 8192"):
        fill(log, 200)
    assert log.log_bytes == 4 * 2048
    log.snapshot(b"older", log.durable - 1)
    log.snapshot(b"newer", log.durable)
    assert log.log_bytes == 4 * 2048, "nothing goes before it is released"
    log.release(log.durable)
    assert log.log_bytes < 4 * 2048
    log.commit()
    number = log.append(b"again")
    log.wait(number)
    log.close()
    log = small(disk)
    assert log.recovered.snapshot is not None
    assert log.recovered.snapshot.data() == b"newer"
    assert list(log.recovered.records()) == [(number, b"again")]
    assert log.recovered.first > 1


def test_closing_twice_is_once_and_a_closed_log_says_so(place: str) -> None:
    log = open_log(place)
    log.append(b"one")
    log.close()
    log.close()
    assert log.durable == 1
    with pytest.raises(StoreError, match="the log is closed"):
        log.append(b"two")
    with pytest.raises(StoreError, match="the log is closed"):
        log.snapshot(b"", 1)


def test_waiting_for_what_nobody_appended_is_an_error(place: str) -> None:
    with open_log(place) as log, pytest.raises(UsageError, match="the last is 0"):
        log.wait(1)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (Sizes(group_bytes_max=limits.store_group_bytes_max + 1), "group_bytes_max must be"),
        (Sizes(pending_bytes_max=1), "at least group_bytes_max"),
        (Sizes(segment_bytes=limits.store_pending_bytes_max), "segment_bytes must be at least"),
        (Sizes(log_bytes_max=limits.store_segment_bytes), "two segments"),
    ],
)
def test_sizes_that_cannot_hold_what_is_accepted_are_refused(place: str, sizes: Sizes, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        open_log(place, sizes=sizes)
    assert not Path(place).exists()


def test_stores_by_name(place: str) -> None:
    with pytest.raises(UsageError, match="not one of disk, os, memory"):
        open_store(place, durability="tape")
    with pytest.raises(UsageError, match="needs a data directory"):
        open_store()
    with pytest.raises(UsageError, match="expected 'disk' or 'os' for a log"):
        open_log(place, durability="memory")
    store = open_store(durability="memory")
    assert isinstance(store, MemoryStore)
    assert store.append(b"one") == store.durable == store.last == 1
    assert store.wait(1)
    store.snapshot(b"state", 1)
    store.release(1)
    with pytest.raises(UsageError):
        store.wait(2)
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.append(b"two")


def test_a_directory_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="Not a directory"):
        open_log(str(tmp_path / "file" / "data"))
    with pytest.raises(StoreError, match="No such file or directory"):
        open_log(str(tmp_path / "no" / "data"))

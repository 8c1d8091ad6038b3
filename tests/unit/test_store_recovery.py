"""What a log makes of a directory that something happened to: cut, fall back, or refuse by name and change nothing."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from antecede.errors import (
    CorruptLogError,
    DiskFullError,
    StoreError,
    StoreFormatError,
    StoreFullError,
    UsageError,
)
from antecede.store import FORMAT, HEADER_BYTES, LogStore, SimulatedDisk, Sizes, open_log, read_records

SMALL = Sizes(segment_bytes=2048, group_bytes_max=256, pending_bytes_max=1024, log_bytes_max=4 * 2048)


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "data")


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


def small(disk: SimulatedDisk, **options: object) -> LogStore:
    return open_log("data", sizes=SMALL, files=disk, threaded=False, **options)  # type: ignore[arg-type]


def filled(place: str, *groups: bytes) -> None:
    """A log of one record a group, ended without a close, as by a kill."""
    log = open_log(place, sizes=SMALL, threaded=False)
    for record in groups:
        log.append(record)
        log.commit()
    log._segments.close()
    os.close(log._directory_lock)


def segment(place: str, number: int = 1) -> Path:
    return Path(place) / f"segment-{number:012d}.log"


def turn(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_a_torn_last_group_is_cut_whole_and_said_once(place: str, caplog: pytest.LogCaptureFixture) -> None:
    filled(place, b"one", b"two", b"three")
    turn(segment(place), segment(place).read_bytes().index(b"three") + 2)
    with caplog.at_level(logging.WARNING), open_log(place) as log:
        assert [record for _, record in log.recovered.records()] == [b"one", b"two"]
        assert log.recovered.cut is not None
        assert log.recovered.cut.offset == 2 * (HEADER_BYTES + 4 + 3)
        assert log.append(b"drei") == 3
        log.wait(3)
    assert [line for line in caplog.messages if "torn group" in line] == [str(log.recovered.cut)]
    with open_log(place) as log:
        assert log.recovered.cut is None
        assert [record for _, record in log.recovered.records()] == [b"one", b"two", b"drei"]


def test_a_truncation_is_reported_until_its_owner_has_recorded_it(place: str) -> None:
    """Even if a crash comes after the torn bytes were removed."""
    filled(place, b"one", b"two")
    turn(segment(place), segment(place).read_bytes().index(b"two"))
    log = open_log(place, sizes=SMALL, threaded=False)
    assert [cut.group for cut in log.recovered.cuts] == [2]
    log._segments.close()
    os.close(log._directory_lock)
    with open_log(place) as log:
        assert log.recovered.cut is None
        assert [(cut.group, cut.offset) for cut in log.recovered.cuts] == [(2, HEADER_BYTES + 7)]
        log.forget_cuts()
    with open_log(place) as log:
        assert log.recovered.cuts == ()


def test_a_quiet_log_vouches_once(disk: SimulatedDisk) -> None:
    log = small(disk)
    log.append(b"one")
    log.commit()
    assert log.unvouched
    log.vouch()
    assert log.commit()
    assert not log.unvouched
    log.vouch()
    log.commit()
    log.close()
    path = "data/segment-000000000001.log"
    contents = disk.contents()
    assert contents[path].count(b"antegrp\n") == 2
    damaged = contents[path].replace(b"one", b"One")
    disk.replace({**contents, path: damaged})
    with pytest.raises(CorruptLogError, match="group 1 was durable"):
        small(disk)


@pytest.mark.parametrize("kept", [1, 20, HEADER_BYTES, HEADER_BYTES + 2])
def test_a_half_written_group_is_cut(place: str, kept: int) -> None:
    filled(place, b"one", b"second")
    data = bytearray(segment(place).read_bytes())
    begin = HEADER_BYTES + 4 + 3
    data[begin + kept :] = bytes(len(data) - begin - kept)
    segment(place).write_bytes(data)
    with open_log(place) as log:
        assert [record for _, record in log.recovered.records()] == [b"one"]
        assert log.recovered.cut is not None


@pytest.mark.parametrize("kept", [0, HEADER_BYTES, HEADER_BYTES + 7, HEADER_BYTES + 7 + HEADER_BYTES + 5, 2047])
def test_a_segment_shorter_than_it_was_made_is_refused_and_left_alone(place: str, kept: int) -> None:
    """Even where only zeros are missing, or where the log would end cleanly with its first group."""
    filled(place, b"one", b"second")
    os.truncate(segment(place), kept)
    before = segment(place).read_bytes()
    with pytest.raises(CorruptLogError, match=f"byte {kept}: the file ends here"):
        open_log(place)
    assert segment(place).read_bytes() == before


def test_a_last_segment_that_lost_all_its_groups_is_refused(place: str) -> None:
    """The log would end cleanly with the segment before it; but no segment is shorter than the one before it."""
    filled(place, *[bytes(200)] * 12)
    assert segment(place, 2).read_bytes()[:7] == b"antegrp"
    os.truncate(segment(place, 2), 100)
    with pytest.raises(CorruptLogError, match=r"000002\.log: byte 100: the file ends here, but it had at least 2048"):
        open_log(place)


def test_a_bad_group_before_a_good_one_is_refused_and_left_alone(place: str) -> None:
    filled(place, b"one", b"two", b"three")
    turn(segment(place), segment(place).read_bytes().index(b"two"))
    before = segment(place).read_bytes()
    with pytest.raises(CorruptLogError, match="group 2 was durable") as caught:
        open_log(place)
    assert (caught.value.file, caught.value.offset) == (str(segment(place)), HEADER_BYTES + 7)
    assert segment(place).read_bytes() == before
    with pytest.raises(CorruptLogError):
        list(read_records(place))


def test_a_record_that_looks_like_a_group_misleads_nobody(place: str) -> None:
    filled(place, b"one", b"two", b"three")
    forged = segment(place).read_bytes()[: 3 * (HEADER_BYTES + 16)]
    other = place + "2"
    filled(other, b"one", forged)
    turn(segment(other), HEADER_BYTES + 7 + HEADER_BYTES)
    with open_log(other) as log:
        assert log.recovered.last == 1


def test_a_lost_identity_is_not_made_up(place: str) -> None:
    filled(place, b"one")
    (Path(place) / "identity").unlink()
    with pytest.raises(CorruptLogError, match=r"identity.*missing, but segment-0+1\.log contains data"):
        open_log(place)


def test_an_unfinished_creation_starts_over(place: str) -> None:
    Path(place).mkdir()
    segment(place).write_bytes(bytes(100))
    (Path(place) / "identity.new").write_bytes(b"half")
    with open_log(place) as log:
        assert log.recovered.last == 0
        log.wait(log.append(b"one"))
    assert not (Path(place) / "identity.new").exists()


def test_a_missing_segment_is_named(disk: SimulatedDisk) -> None:
    log = small(disk)
    for _ in range(40):
        log.wait(log.append(bytes(150)))
        if log._segments.current == 4:
            break
    log.close()
    removed = disk.seen.pop("data/segment-000000000002.log")
    with pytest.raises(CorruptLogError, match=r"segment-000000000002\.log.*is missing, although earlier"):
        small(disk)
    disk.seen["data/segment-000000000002.log"] = removed
    disk.seen.pop("data/segment-000000000001.log")
    with pytest.raises(
        CorruptLogError, match=r"the log begins with record .*, but no snapshot covers the records before it"
    ):
        small(disk)
    disk.seen = {name: inode for name, inode in disk.seen.items() if "segment" not in name}
    with pytest.raises(CorruptLogError, match="no segment"):
        small(disk)


def test_another_format_is_refused(place: str) -> None:
    filled(place, b"one")
    path = Path(place) / "identity"
    for other in (FORMAT - 1, FORMAT + 1):
        data = path.read_bytes()[:8] + other.to_bytes(2, "little") + path.read_bytes()[10:-4]
        path.write_bytes(data + crc32(data).to_bytes(4, "little"))
        with pytest.raises(StoreFormatError):
            open_log(place)
    path.write_bytes(b"junk")
    with pytest.raises(CorruptLogError, match="identity: byte 0"):
        open_log(place)


def test_a_segment_of_another_directory_is_not_ours(place: str) -> None:
    filled(place, b"one")
    filled(place + "2", b"other")
    segment(place).write_bytes(segment(place + "2").read_bytes())
    with open_log(place) as log:
        assert log.recovered.last == 0
        assert log.recovered.cut is not None
        assert "another data directory" in log.recovered.cut.reason


def snapshots(disk: SimulatedDisk) -> list[str]:
    return sorted(name for name in disk.seen if "snapshot" in name)


def test_two_snapshots_are_kept_and_the_older_serves_when_the_newer_is_damaged(disk: SimulatedDisk) -> None:
    log = small(disk)
    for number in range(1, 31):
        log.wait(log.append(b"%d" % number * 40))
        if number % 10 == 0:
            log.snapshot((b"state", b"", b"%d" % number), number)
    log.release(30)
    log.close()
    assert len(snapshots(disk)) == 2
    newest = disk.seen[snapshots(disk)[1]]
    newest.seen[30] ^= 1
    log = small(disk)
    assert log.recovered.snapshot is not None
    assert list(log.recovered.snapshot.parts()) == [b"state", b"", b"20"]
    assert [number for number, _ in log.recovered.records()] == list(range(21, 31))
    assert len(log.recovered.unreadable) == 1
    log.close()
    disk.seen[snapshots(disk)[0]].seen[30] ^= 1
    with pytest.raises(CorruptLogError, match="no snapshot covers the records before it"):
        small(disk)


def test_a_log_that_ends_before_its_snapshot_is_refused(place: str) -> None:
    log = open_log(place, sizes=SMALL, threaded=False)
    for record in (b"one", b"two"):
        log.wait(log.append(record))
    log.snapshot(b"state", 2)
    log._segments.close()
    os.close(log._directory_lock)
    turn(segment(place), segment(place).read_bytes().index(b"two"))
    with pytest.raises(CorruptLogError, match="the log ends with record 1, but a snapshot was taken after record 2"):
        open_log(place)


def test_a_snapshot_that_cannot_be_written_leaves_the_log_as_it_was(disk: SimulatedDisk) -> None:
    log = small(disk)
    log.wait(log.append(b"one"))
    disk.capacity = 0
    with pytest.raises(DiskFullError, match="no space for a snapshot"):
        log.snapshot(bytes(100), 1)
    assert snapshots(disk) == []
    disk.capacity = 1 << 30

    def parts() -> Iterator[bytes]:
        yield b"some"
        raise StoreError("the owner gave up")

    with pytest.raises(StoreError, match="gave up"):
        log.snapshot(parts(), 1)
    assert [name for name in disk.seen if name.endswith(".new")] == []
    log.wait(log.append(b"two"))
    log.snapshot(b"fine", 2)
    with pytest.raises(UsageError, match="there is already one up to record 2"):
        log.snapshot(b"late", 1)
    with pytest.raises(UsageError, match="the last is 2"):
        log.snapshot(b"early", 3)


def test_snapshot_parts_are_bounded(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    from antecede.store import snapshots as module

    monkeypatch.setattr(module, "store_snapshot_part_bytes_max", 10)
    monkeypatch.setattr(module, "store_snapshot_bytes_max", 50)
    log = small(disk)
    log.snapshot([bytes(10)] * 3, 0)
    with pytest.raises(StoreFullError, match="a part of the snapshot has 11 bytes"):
        log.snapshot([bytes(11)], 0)
    with pytest.raises(StoreFullError, match="more than 50 bytes"):
        log.snapshot([bytes(10)] * 4, 0)


def test_a_long_snapshot_is_cut_into_parts(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    from antecede.store import snapshots as module

    monkeypatch.setattr(module, "store_snapshot_part_bytes_max", 10)
    monkeypatch.setattr(module, "store_snapshot_part_bytes_wanted", 10)
    log = small(disk)
    log.snapshot(bytes(range(25)), 0)
    log.close()
    snapshot = small(disk).recovered.snapshot
    assert snapshot is not None
    assert [len(part) for part in snapshot.parts()] == [10, 10, 5]
    assert snapshot.data() == bytes(range(25))


def test_a_reader_beside_a_writer_sees_no_corruption(disk: SimulatedDisk) -> None:
    """The group that the reader looks for is being written, and the next one is there before it looks further."""
    log = small(disk)
    for record in (b"one", b"two", b"three"):
        log.wait(log.append(record))
    begin = HEADER_BYTES + 4 + 3
    early = [True]
    read = disk.read

    def racing(file: int, count: int, offset: int) -> bytes:
        data = read(file, count, offset)
        if offset == begin and early:
            early.clear()
            return bytes(len(data))
        return data

    disk.read = racing  # type: ignore[method-assign]
    assert list(read_records("data", files=disk)) == [(1, b"one"), (2, b"two"), (3, b"three")]
    assert list(read_records("data", after=1, upto=2, files=disk)) == [(2, b"two")]
    assert not early

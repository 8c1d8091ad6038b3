"""One bit of a data directory is turned over: it is found, or it made no difference.

The directory has several segments, two snapshots and a clean close. For each bit turned, opening must refuse with a
typed error, or say that something was cut and give a prefix, or fall back to the older snapshot, or give exactly what
was there. After a clean close not even the last record may be cut: the closing group vouches for it.
"""

from collections.abc import Callable
from random import Random

import pytest

from antecede.errors import StoreError
from antecede.store import Files, LogStore, Recovered, SimulatedDisk, Sizes, Snapshot, open_log, recovery, snapshot_name

SIZES = Sizes(segment_bytes=2048, group_bytes_max=256, pending_bytes_max=1024, log_bytes_max=1 << 20)


def _written(closed: bool) -> tuple[SimulatedDisk, list[bytes]]:
    """A directory of two snapshots and some segments, and its records."""
    random = Random(7)
    disk = SimulatedDisk()
    records = [random.randbytes(random.randrange(80)) for _ in range(120)]
    log = open_log("data", sizes=SIZES, files=disk, threaded=False)
    for number, record in enumerate(records, 1):
        log.append(record)
        if number % 3 == 0:
            log.commit()
        if number in (60, 90):
            log.snapshot(b"state %d" % number, number)
    log.release(70)
    log.wait(120)
    if closed:
        log.close()
    else:
        disk.kill(random)
    assert log.recovered.last == 0
    assert len([name for name in disk.seen if "segment" in name]) >= 4
    return disk, records


def _read(disk: SimulatedDisk) -> tuple[Recovered, list[bytes]]:
    for inode in disk.seen.values():
        inode.kept = bytearray(inode.seen)
    log = open_log("data", sizes=SIZES, files=disk, threaded=False)
    recovered = log.recovered
    return recovered, [record for _, record in recovered.records()]


def _copy(disk: SimulatedDisk) -> SimulatedDisk:
    copy = SimulatedDisk()
    for path, inode in disk.seen.items():
        file = copy.create(path)
        copy.write(file, [bytes(inode.seen)], 0)
        copy.fsync(file)
        copy.close(file)
    copy.sync_directory("data")
    return copy


@pytest.mark.parametrize("closed", [True, False])
def test_a_turned_bit_is_found_or_harmless(closed: bool, seeds: int) -> None:
    _turn_bits(closed, 2 * seeds)


def _no_checksum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "checked", lambda header, body: True)


def _nobody_vouches(patch: pytest.MonkeyPatch) -> None:
    """Every bad group is taken for torn."""
    patch.setattr(recovery.Walk, "_witness", lambda self, file, offset, segment: None)


def _no_closing_group(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogStore, "_finish", lambda self: None)


def _snapshots_are_not_read_through(patch: pytest.MonkeyPatch) -> None:
    def trusting(files: Files, directory: str, seal: int, upto: int) -> Snapshot:
        return Snapshot(files, f"{directory}/{snapshot_name(upto)}", seal, upto)

    patch.setattr(recovery, "check_snapshot", trusting)


@pytest.mark.parametrize(
    "bug", [_no_checksum, _nobody_vouches, _no_closing_group, _snapshots_are_not_read_through], ids=lambda b: b.__name__
)
def test_planted_bugs_are_caught(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, StoreError)):
        _turn_bits(True, 2000)


def _turn_bits(closed: bool, count: int) -> None:
    disk, records = _written(closed)
    whole = _copy(disk)
    assert _read(_copy(whole))[1] == records[90:]
    random = Random(11)
    # Where something is written a bit matters more than in the zeros behind it.
    places = [
        (path, byte)
        for path, inode in whole.seen.items()
        for byte in range(len(inode.seen))
        if inode.seen[byte] or byte % 37 == 0
    ]
    seen = {"refused": 0, "cut": 0, "fell back": 0, "harmless": 0}
    for path, byte in random.sample(places, min(len(places), count)):
        copy = _copy(whole)
        copy.seen[path].seen[byte] ^= 1 << random.randrange(8)
        where = f"{path} byte {byte}"
        try:
            recovered, found = _read(copy)
        except StoreError as error:
            seen["refused"] += any(name in str(error) for name in (".log: byte", ".state: byte", "identity: byte"))
            continue
        assert recovered.snapshot is not None, where
        upto = recovered.snapshot.upto
        assert recovered.snapshot.data() == b"state %d" % upto, where
        expected = records[upto:]
        if upto == 60:
            assert recovered.unreadable, where
            seen["fell back"] += 1
        if recovered.cut:
            assert found == expected[: len(found)], where
            assert found == expected or not closed, f"{where}: a record was cut that was vouched for"
            seen["cut"] += 1
        else:
            assert found == expected, where
            seen["harmless"] += 1
    assert all(seen.values()), f"every outcome must occur: {seen}"

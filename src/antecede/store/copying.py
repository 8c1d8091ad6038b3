"""Write the data directory of a restored server: records with their old numbers, and a snapshot.

The directory gets a new identity. The file with the identity is written last, so an unfinished directory is not treated
as a data directory. Before this file is written, the directory is checked in the same way as in recovery.

The log may begin with any record, if the snapshot covers the records before it. The records are put into new groups,
because each group contains the seal of its directory (a random number). The new groups fill the segments differently,
so the new log may be larger than the old one. Therefore the size limit of a log is not applied here. The server that
opens the directory applies the limit to later records. Recovery requires a group at the beginning of the oldest
segment, unless this is segment 1. So the first segment is made large enough for the oldest record, whatever the size of
this record.
"""

import sys
from collections.abc import Iterable
from itertools import chain

import msgspec

from antecede.store.directory import allocate_segment, lock_directory, named, write_identity
from antecede.store.files import Files
from antecede.store.format import HEADER_BYTES, LENGTH_BYTES, Identity, segment_name
from antecede.store.log import LogStore
from antecede.store.recovery import Judged, Recovered, judge
from antecede.store.segments import Segments, Sizes
from antecede.store.walk import Tail

_group_bytes = 1 << 20
"""The maximum size of all records of a group together. A group with only one record may be larger than this."""


def write_directory(
    files: Files,
    directory: str,
    incarnation: int,
    first: int,
    records: Iterable[bytes],
    state: bytes,
    sizes: Sizes | None = None,
) -> int:
    """Fill an empty data directory with records and a snapshot; return the number of the last record. ``first`` is the
    number of the oldest record. ``state`` is the snapshot after the last record. At least one record is required."""
    sizes = msgspec.structs.replace(sizes or Sizes(), log_bytes_max=sys.maxsize)
    records = iter(records)
    oldest = next(records)
    segment_bytes = max(sizes.first_bytes, HEADER_BYTES + LENGTH_BYTES + len(oldest))
    group_bytes = min(_group_bytes, sizes.group_bytes_max, segment_bytes - HEADER_BYTES)
    with named(directory):
        identity = Identity(incarnation, files.random_bits(64))
        with _begun(files, directory, identity, first, sizes, segment_bytes) as log:
            for record in chain([oldest], records):
                if log.pending_bytes + len(record) + LENGTH_BYTES > group_bytes:
                    log.commit()
                log.append(record)
            log.snapshot(state, log.last)
        judge(files, directory, identity)
        write_identity(files, directory, identity)
        return log.last


def _begun(files: Files, directory: str, identity: Identity, first: int, sizes: Sizes, segment_bytes: int) -> LogStore:
    """Return a log without records. The number of its first record will be ``first``, and the size of its first segment
    is ``segment_bytes``."""
    # Only the very first segment must begin with record 1.
    number = 1 if first == 1 else 2
    allocate_segment(files, directory, number, segment_bytes)
    segments = Segments(files, directory, sizes, {}, number)
    segments.adopt(files.open(f"{directory}/{segment_name(number)}", write=True), 0, segment_bytes)
    judged = Judged(identity, Recovered(identity.incarnation), Tail(number, record=first - 1), {}, [number])
    return LogStore(segments, lock_directory(files, directory), judged, "os", None, None, threaded=False)

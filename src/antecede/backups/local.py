"""Copy the data directory of a stopped server into a backup.

The caller first locks the data directories of all servers. Then no directory changes, and all copies together contain
the state of one moment.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from antecede import limits
from antecede.backups.copying import Cut, ServerCopy
from antecede.backups.folder import SavedServer
from antecede.errors import StoreError, StoreLockedError
from antecede.recording.segments import FOLDER, TOPOLOGY, pieces_in
from antecede.store.directory import IDENTITY, lock_directory, named, read_identity, segment_name, snapshot_name
from antecede.store.files import Files
from antecede.store.recovery import Judged, judge


def judged_in(directory: str) -> Judged:
    """Check a data directory, and return the result. The directory is not changed."""
    files = Files()
    identity = read_identity(files, directory)
    assert identity is not None, "a data directory has an identity"
    return judge(files, directory, identity)


@contextmanager
def locked(directory: str) -> Iterator[None]:
    """Lock the data directory of a stopped server during a ``with`` block."""
    files = Files()
    if not os.path.isfile(os.path.join(directory, IDENTITY)):
        raise StoreError(f"{directory}: not a data directory: it has no identity")
    with named(directory):
        try:
            lock = lock_directory(files, directory)
        except StoreLockedError as error:
            raise StoreLockedError(
                f"{error}: stop that process, or back up the running system without --data"
            ) from None
    try:
        yield
    finally:
        files.close(lock)


def copied(directory: str, server: str, folder: str, report_progress: Callable[[int, int], None]) -> SavedServer:
    """Copy the data directory of one server into a folder of a backup. Return the description of the copy.
    ``report_progress``: called with two numbers. The first is the number of bytes that are copied so far. The second
    is an upper limit for the number of all bytes that will be copied."""
    with named(directory):
        judged = judged_in(directory)
        found = judged.recovered
        wanted = [IDENTITY, *([] if found.snapshot is None else [snapshot_name(found.snapshot.upto)])]
        wanted += [segment_name(number) for number in judged.segments if number <= judged.tail.segment]
        wanted += [f"{FOLDER}/{os.path.basename(piece.path)}" for piece in pieces_in(directory)]
        if os.path.exists(f"{directory}/{FOLDER}/{TOPOLOGY}"):
            wanted.append(f"{FOLDER}/{TOPOLOGY}")
        sizes = {name: os.stat(f"{directory}/{name}").st_size for name in wanted}
    copy = ServerCopy(folder, Cut(server, f"{found.incarnation:016x}", found.last, sizes))
    for name, offset in copy.pages():
        with named(directory), open(f"{directory}/{name}", "rb") as file:
            copy.take(os.pread(file.fileno(), limits.backup_page_bytes, offset))
        report_progress(copy.bytes, copy.total)
    return copy.result()

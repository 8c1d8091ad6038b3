"""Turn the closed segments of a log into Parquet: ``python -m antecede.recording.converting DIRECTORY``. A *segment* is
one file of the log. It is closed when the server writes to a later segment.

The conversion is a separate process, so that a server never loads Arrow, and a slow or failing conversion does not
affect the server. The process runs with low priority, converts all closed segments, and ends. It also ends when the
server that started it is gone. The next conversion then continues the work.

**Exactly one row per event, even if the process is killed.** Each segment becomes a Parquet file, a *piece*. A piece is
written under a temporary name, synced and renamed. Then the folder is synced. The metadata of a piece contain the place
where the next conversion must continue (:class:`~antecede.recording.segments.Place`), so the rows and this place become
durable together. The next conversion removes files with a temporary name. A lock ensures that only one conversion runs
at a time. A segment may be deleted only when a piece with its rows exists under the final name.
"""

import os
import signal
import sys
from collections.abc import Callable

import msgspec

from antecede.crashes import guarded
from antecede.errors import AntecedeError
from antecede.recording.segments import CONVERTER_BUSY, FOLDER, PLACE_KEY, Recording, piece_name, tidy
from antecede.store import Files, closed_segments
from antecede.store.directory import TEMPORARY, named
from antecede.trace.files import METADATA_KEY, Rows
from antecede.trace.schema import metadata_bytes


class Orphaned(Exception):
    """The server that started this conversion is gone."""


def convert(directory: str, *, wanted: Callable[[], bool] = lambda: True, files: Files | None = None) -> int:
    """Convert all closed segments that are not converted yet. Return the number of Parquet files that were made. Raise
    BlockingIOError if another process is converting, and Orphaned if ``wanted`` returns false during the conversion."""
    files = files or Files()
    folder = f"{directory}/{FOLDER}"
    lock = files.lock(f"{folder}/{_lock}", b"%d\n" % os.getpid())
    try:
        with named(folder):
            tidy(directory, files)
            recording = Recording(directory, files=files)
            made = 0
            for end in closed_segments(directory, files):
                # A record in several pieces may begin in one segment and end in the next: then it belongs to the next.
                if end > recording.upto and _convert_segment(recording, folder, end, wanted, files):
                    made += 1
            return made
    finally:
        files.close(lock)


def _convert_segment(recording: Recording, folder: str, end: int, wanted: Callable[[], bool], files: Files) -> bool:
    before = recording.upto
    temporary = f"{folder}/events-{end}{TEMPORARY}"
    # Created like everything else in a data directory: not readable for all users.
    with os.fdopen(files.create(temporary), "wb") as raw:
        rows = Rows(raw, None)
        try:
            for count, row in enumerate(recording.rows(end)):
                rows.write(row)
                if count % _look_rows == 0 and not wanted():
                    raise Orphaned
            if recording.upto > before:
                rows.say(METADATA_KEY, metadata_bytes(recording.metadata))
                rows.say(PLACE_KEY, msgspec.msgpack.encode(recording.place()))
            rows.close()
        except BaseException:
            rows.abandon()
            raise
        raw.flush()
        files.fsync(raw.fileno())
    if recording.upto == before:
        files.unlink(temporary)
        return False
    files.rename(temporary, f"{folder}/{piece_name(recording.upto)}")
    files.sync_directory(folder)
    return True


def main(arguments: list[str]) -> int:
    """Convert all closed segments, but stop if the server is gone. Return the exit code: 0 if all segments are
    converted or the server is gone, 75 if another conversion is running, 2 after an error. One line on standard error
    reports the error."""
    os.nice(19)
    # Ctrl-C on a terminal is for the server, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    try:
        convert(arguments[0], wanted=lambda: os.getppid() == parent)
    except BlockingIOError:
        return CONVERTER_BUSY
    except Orphaned:
        return 0
    except (AntecedeError, OSError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0


_lock = "lock"
_look_rows = 10_000

if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))

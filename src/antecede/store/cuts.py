"""Notes about truncations. A truncation removes a torn write from the end of the log during recovery.

A torn write (a write that a crash interrupted) is normal after a power cut. But the log may look the same if a group
(the records of one write) was durable and was damaged later. Recovery sees the difference only if a later group proves
that the damaged group was durable. So an operator should see every truncation.

A note is a small file. It is made durable before the torn bytes are removed. The owner of the log (the server) deletes
the note when the log itself contains a record of the truncation.
"""

import msgspec

from antecede.store.directory import write_file
from antecede.store.files import Files
from antecede.store.format import cut_name, numbered
from antecede.store.recovery import Recovered
from antecede.store.walk import Cut


def note_cut(files: Files, directory: str, recovered: Recovered) -> Recovered:
    """Write a note about the torn write in ``recovered``, if there is one. (The torn write itself is removed later.)
    Then read all notes in the directory, and return a copy of ``recovered`` with their contents in ``cuts``."""
    cut = recovered.cut
    if cut is not None:
        write_file(files, directory, cut_name(cut.group), msgspec.msgpack.encode(cut))
    return msgspec.structs.replace(recovered, cuts=tuple(_notes(files, directory)))


def forget_cuts(files: Files, directory: str) -> None:
    """Delete all notes about truncations."""
    for group in numbered(files.names(directory), "cut"):
        files.unlink(f"{directory}/{cut_name(group)}")
    files.sync_directory(directory)


def _notes(files: Files, directory: str) -> list[Cut]:
    notes = []
    for group in numbered(files.names(directory), "cut"):
        path = f"{directory}/{cut_name(group)}"
        try:
            with files.opened(path) as file:
                notes.append(msgspec.msgpack.decode(files.read(file, 1 << 16, 0), type=Cut))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            notes.append(Cut(path, 0, 0, "the note about it is unreadable", 0, group))
    return notes

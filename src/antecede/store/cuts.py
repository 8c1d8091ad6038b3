"""Notes about truncations: which torn writes recovery removed, until the owner has recorded them.

A torn write is normal after a power cut. But a disk that lost a durable group looks the same if nothing vouched for
that group, so an operator should see every truncation. The note is a small file that is durable before the torn bytes
are removed; the owner deletes it when its own log contains the truncation.
"""

import msgspec

from antecede.store.directory import write_file
from antecede.store.files import Files
from antecede.store.format import cut_name, numbered
from antecede.store.recovery import Recovered
from antecede.store.walk import Cut


def note_cut(files: Files, directory: str, recovered: Recovered) -> Recovered:
    """Write a note about the torn write that is about to be removed, if there is one. Return what was recovered, with
    all notes."""
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

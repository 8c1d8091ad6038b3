"""The id of a restored system, in a small file of each data directory.

The id is a part of the epoch in hellos. So a server of the old system and a server of the restored system refuse each
other in the hello, like servers with different topologies, and their links do not change. (Their incarnations differ,
too. But if only these differed, the links would stop, and an operator would have to reset the domain.)

A server without data (it is added to a restored system, or starts again with an empty directory) gets the id from
``antecede topology apply`` (:mod:`antecede.server.change.changing`).
"""

import os
from pathlib import Path

from antecede.backups.folder import write_new
from antecede.errors import StoreError
from antecede.store.directory import named
from antecede.store.files import Files

SYSTEM = "system"
_id_chars_max = 64


def write_system(directory: str, system: str) -> None:
    """Write the id of a restored system into a data directory that has none."""
    path = os.path.join(directory, SYSTEM)
    with named(path):
        write_new(path, f"{system}\n".encode())
        Files().sync_directory(directory)


def system_in(directory: str) -> str:
    """Return the id of the restored system that a data directory belongs to; empty: it was not restored."""
    path = Path(directory, SYSTEM)
    try:
        text = path.read_text(encoding="ascii")[: _id_chars_max + 1].strip()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: cannot be read: {error}") from None
    if not text.isalnum():
        raise StoreError(f"{path}: expected the id of a system: only letters and digits")
    return text


def system_epoch(epoch: str, directory: str | None) -> str:
    """Return the epoch that a server sends in its hellos: that of its topology, and the id of its system if it was
    restored."""
    system = "" if directory is None else system_in(directory)
    return f"{epoch}~{system}" if system else epoch

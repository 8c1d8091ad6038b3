"""The id of a restored system. Each data directory of the system contains the id in a small file.

A server sends the id at the start of each connection, as a part of its epoch (the value by which servers compare their
topologies). So a server of the old system and a server of the restored system refuse each other, like servers with
different topologies. The state of their links does not change. The two servers also have different incarnations (the
numbers that identify data directories). If only these numbers were different, the links would stop, and an operator
would have to reset the domain.

In a restored system, a server may start without data: the server was added later, or it starts again with an empty
directory. ``antecede topology apply`` sends the id to such a server (:mod:`antecede.server.change.changing`).
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
    """Write the id of a restored system into a data directory that does not contain an id yet."""
    path = os.path.join(directory, SYSTEM)
    with named(path):
        write_new(path, f"{system}\n".encode())
        Files().sync_directory(directory)


def system_in(directory: str) -> str:
    """Return the id of the restored system that a data directory belongs to. If the system was not restored, return
    ""."""
    path = Path(directory, SYSTEM)
    try:
        text = path.read_text(encoding="ascii")[: _id_chars_max + 1].strip()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: cannot be read: {error}") from None
    if not text.isalnum():
        raise StoreError(f"{path}: expected the id of a system, with only letters and digits")
    return text


def system_epoch(epoch: str, directory: str | None) -> str:
    """Return the epoch that a server sends at the start of a connection. Servers compare their topologies by this
    value. In a restored system, the result is ``epoch`` together with the id of the system. In other systems, it is
    ``epoch`` alone. ``directory``: the server's data directory, if the server has one."""
    system = "" if directory is None else system_in(directory)
    return f"{epoch}~{system}" if system else epoch

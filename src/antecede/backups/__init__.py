"""Backups of whole systems.

A backup contains the state of each server at one position of the server's log. These positions form a *consistent cut*:
if the backup says that a message was received, it also says that this message was sent
(:mod:`antecede.server.operations`). A backup consists of files of each server, and a manifest with the lengths
and checksums of these files. The manifest is written last. ``docs/guide/operations.md`` describes backups for
operators.

The modules: ``folder`` defines the files of a backup. ``copying`` copies the files of a running or stopped server into
the backup. ``restoring`` checks a backup, and makes a new system from it.
"""

from antecede.backups.copying import LINKS, ServerCopy, copied, judged_in, locked
from antecede.backups.folder import (
    FORMAT,
    MARKER,
    Backup,
    Manifest,
    NewBackup,
    NewFolder,
    SavedFile,
    SavedServer,
    is_backup,
    open_backup,
    system_in,
    write_system,
)
from antecede.backups.restoring import check_backup, restore

__all__ = [
    "FORMAT",
    "LINKS",
    "MARKER",
    "Backup",
    "Manifest",
    "NewBackup",
    "NewFolder",
    "SavedFile",
    "SavedServer",
    "ServerCopy",
    "check_backup",
    "copied",
    "is_backup",
    "judged_in",
    "locked",
    "open_backup",
    "restore",
    "system_in",
    "write_system",
]

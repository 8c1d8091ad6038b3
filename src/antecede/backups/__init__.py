"""Backups of whole systems.

A backup contains the state of each server at one position of the server's log. These positions form a *consistent cut*:
if the backup says that a message was received, it also says that this message was sent
(:mod:`antecede.server.operations.backups`). A backup consists of files of each server, and a manifest with the lengths
and checksums of these files. The manifest is written last. ``docs/guide/operations.md`` describes backups for
operators.

The modules: ``folder`` defines the files of a backup. ``copying`` copies the files of a server into the backup.
``local`` does this for a stopped server. ``checking`` checks a backup. ``restoring`` makes a new system from a backup.
``system`` stores the id of this new system.
"""

from antecede.backups.checking import check_backup
from antecede.backups.copying import ServerCopy
from antecede.backups.folder import Backup, NewBackup, is_backup, open_backup
from antecede.backups.restoring import restore

__all__ = ["Backup", "NewBackup", "ServerCopy", "check_backup", "is_backup", "open_backup", "restore"]

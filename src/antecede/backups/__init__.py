"""Backups of whole systems: the folder of a backup (``folder``), copying a cut into the folder (``copying``), checking
a backup (``checking``), and making a new system from a backup (``restoring``).

A backup is a consistent cut of all servers (:mod:`antecede.server.operations.backups`). It contains files of each
server, and a manifest with the lengths and checksums of these files. The manifest is written last.
``docs/guide/operations.md`` describes backups for operators.
"""

from antecede.backups.checking import check_backup
from antecede.backups.copying import ServerCopy
from antecede.backups.folder import Backup, NewBackup, is_backup, open_backup
from antecede.backups.restoring import restore

__all__ = ["Backup", "NewBackup", "ServerCopy", "check_backup", "is_backup", "open_backup", "restore"]

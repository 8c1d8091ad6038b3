"""Backups of whole systems. The modules are: ``folder`` (the files of a backup), ``copying`` (a cut is copied into the
folder), ``checking`` (a backup is checked) and ``restoring`` (a new system is made from a backup).

A backup is a consistent cut of all servers (:mod:`antecede.server.operations.backups`). It contains files of each
server, and a manifest with the lengths and checksums of these files. The manifest is written last.
``docs/guide/operations.md`` describes backups for operators.
"""

from antecede.backups.checking import check_backup
from antecede.backups.copying import ServerCopy
from antecede.backups.folder import Backup, NewBackup, is_backup, open_backup
from antecede.backups.restoring import restore

__all__ = ["Backup", "NewBackup", "ServerCopy", "check_backup", "is_backup", "open_backup", "restore"]

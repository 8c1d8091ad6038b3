"""Limits for the log and the snapshots of a server, and for the log messages that people read.

The log of a server is divided into files, the *segments*. The records of a log are written in *groups*: all records of
a group are written and made durable together.
"""

from typing import Final

snapshot_log_bytes: Final = 128 * 1024 * 1024
"""The number of bytes that a server writes to its log between two snapshots. A server that starts can replay this
number of bytes in a few seconds."""
snapshot_records: Final = 200_000
"""The number of records that a server writes to its log between two snapshots, if ``snapshot_log_bytes`` is not reached
earlier. A server that starts can replay this number of records in some seconds."""
snapshot_retry_seconds: Final = 10.0
"""The pause before a server tries to take a snapshot again after a failure. The usual causes, a full disk or a lack of
file descriptors, usually last for seconds."""
snapshot_build_seconds_max: Final = 1_800.0
"""The longest time that a separate process may take to build a snapshot. After this time, the server ends the process.
A build takes about as long as a start of the server."""
snapshot_builds_max: Final = 3
"""The number of consecutive failed snapshots after which the server builds the snapshot itself. Before that, a separate
process builds each snapshot. While the server builds a snapshot itself, it does no other work."""

witness_after_seconds: Final = 0.1
"""The shortest time between a record in the log and the next *empty* group (a group without records). A server writes
an empty group when the server has nothing else to write. After a crash, the empty group proves that the records before
it were durable. The time is short, so the empty group is usually written before an operator kills an idle server."""
witness_seconds: Final = 1.0
"""The shortest time between two empty groups in the log (see ``witness_after_seconds``). Each empty group needs one
sync. One sync per second has no noticeable cost, even under high load."""

log_lines_per_second: Final = 10
"""The largest number of log messages of a server per second about one kind of event. An operator cannot read more, and
even a busy server normally writes fewer messages."""
log_text_chars_max: Final = 400
"""The largest length of one text in a log message of a server, in characters. The length is limited because the text
may come from another process."""
log_traceback_chars_max: Final = 20_000
"""The largest length of one traceback in a log message, in characters. The length is limited because the text of an
exception may have any length. If a traceback is longer, only its beginning and its end are kept."""
log_report_seconds: Final = 10.0
"""The shortest time between two log messages that report how many messages were left out."""

store_group_bytes_max: Final = 16 * 1024 * 1024
"""The largest size of one commit group of a log, in bytes. The size includes all records of the group with their
lengths. So this limit is also a limit for the size of one record."""
store_segment_bytes: Final = 64 * 1024 * 1024
"""The largest size of one segment of a log, in bytes. The log allocates the space for the whole next segment before the
current segment is full."""
store_segment_bytes_first: Final = 1024 * 1024
"""The size of the first segment of a log, in bytes. The first segment is small so that small logs stay small. Each
later segment has twice the size of the previous segment, up to ``store_segment_bytes``."""
store_pending_bytes_max: Final = 32 * 1024 * 1024
"""The largest total size of the records that were appended to a log but are not written yet, in bytes. These records
must fit into one segment."""
store_log_bytes_max: Final = 16 * 1024 * 1024 * 1024
"""The largest size of all segments of one log together, in bytes. The segment that is allocated in advance is
included."""
store_snapshot_bytes_max: Final = 64 * 1024 * 1024 * 1024
"""The largest size of one snapshot with all its parts, in bytes."""
store_snapshot_part_bytes_max: Final = 1024 * 1024 * 1024
"""The largest size of one part of a snapshot, in bytes. A part must be in memory as a whole."""
store_snapshot_part_bytes_wanted: Final = 64 * 1024 * 1024
"""For a snapshot, a state is cut into parts of at most this size, in bytes. But only a state that is one long sequence
of bytes is cut. The limit equals ``store_segment_bytes``. It is much smaller than
``store_snapshot_part_bytes_max``, and large enough to give few parts."""
store_commit_here_bytes_max: Final = 64 * 1024
"""The largest number of bytes that the owner of a log (the server) commits in its own thread. The commit thread commits
larger amounts."""
store_quick_sync_seconds: Final = 0.001
"""The longest time of a quick sync of the log. If most syncs take longer, the commit thread does all commits."""
store_retry_seconds: Final = 0.1
"""The shortest time between two checks whether a full disk has space again. A refused record causes such a check."""

backup_hold_seconds_max: Final = 5.0
"""The longest time for which a server accepts nothing from its peers at the beginning of a backup. During this time,
the server must receive the command that determines which state is copied. Without this command, the server gives up the
backup."""
backup_idle_seconds_max: Final = 120.0
"""The longest time that a server waits for the next command of a backup. After this time, the server ends the backup,
because the kept files of a forgotten backup would fill the disk."""
backup_page_bytes: Final = 1024 * 1024
"""The largest number of bytes of a backup that one request reads. Reading these bytes keeps the event loop busy for a
few milliseconds."""

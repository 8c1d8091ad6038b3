"""Limits for the log and the snapshots of a server, and for the log messages that people read."""

from typing import Final

snapshot_log_bytes: Final = 128 * 1024 * 1024
"""A server takes a snapshot after it has written this many bytes to its log. A server that starts can replay this many
bytes in a few seconds."""
snapshot_records: Final = 200_000
"""A server takes a snapshot after it has written this many records to its log: a start replays them in some seconds."""
snapshot_retry_seconds: Final = 10.0
"""The pause before a server tries again to take a snapshot that failed. A full disk or a lack of file descriptors
usually lasts for seconds."""
snapshot_build_seconds_max: Final = 1_800.0
"""The longest time in which a separate process must build a snapshot; after this time, the server ends the process. A
build takes about as long as a start of the server."""
snapshot_builds_max: Final = 3
"""Builds of a snapshot that may fail one after the other. After that, the server itself encodes its state, and does no
other work meanwhile."""

witness_after_seconds: Final = 0.1
"""The time without a write after which a server writes a group without records to its log. After a crash, this group
proves that the records before it were durable. A person needs more time than this to notice that a server is idle, and
to kill it."""
witness_seconds: Final = 1.0
"""The shortest time between two groups without records (see ``witness_after_seconds``): one sync per second is not
noticeable under any load."""

log_lines_per_second: Final = 10
"""Log messages of a server per second about one kind of event. An operator cannot read more, and even a busy server
normally writes fewer."""
log_text_chars_max: Final = 400
"""The length of one text in a log message of a server; the text may come from another process."""
log_traceback_chars_max: Final = 20_000
"""The length of one traceback in a log message, because the text of an exception may have any length. Of a longer
traceback, the beginning and the end are kept."""
log_report_seconds: Final = 10.0
"""The shortest time between two log messages that report how many messages were left out."""

store_group_bytes_max: Final = 16 * 1024 * 1024
"""The size of one commit group of a log: all its records with their lengths. This also limits the size of one
record."""
store_segment_bytes: Final = 64 * 1024 * 1024
"""The full size of one segment of a log. The space for a whole segment is allocated at once, and always for one segment
in advance."""
store_segment_bytes_first: Final = 1024 * 1024
"""The size of the first segment of a log, so that small logs stay small. Each segment has twice the size of the
previous one, up to ``store_segment_bytes``."""
store_pending_bytes_max: Final = 32 * 1024 * 1024
"""Bytes of records that were appended to a log but are not written yet; they must fit into one segment."""
store_log_bytes_max: Final = 16 * 1024 * 1024 * 1024
"""The size of all segments of one log together, including the segment that is allocated in advance."""
store_snapshot_bytes_max: Final = 64 * 1024 * 1024 * 1024
"""The size of one snapshot, with all its parts."""
store_snapshot_part_bytes_max: Final = 1024 * 1024 * 1024
"""The size of one part of a snapshot. A part must be in memory as a whole."""
store_snapshot_part_bytes_wanted: Final = 64 * 1024 * 1024
"""The size of the parts of a snapshot, if the state comes in one piece and must be cut. It equals
``store_segment_bytes``: well below ``store_snapshot_part_bytes_max``, and large enough to give few parts."""
store_commit_here_bytes_max: Final = 64 * 1024
"""Bytes that the owner of a log commits in its own thread. Larger amounts are left to the commit thread."""
store_quick_sync_seconds: Final = 0.001
"""The longest time of a sync that counts as quick. While most syncs are not quick, all commits are left to the commit
thread."""
store_retry_seconds: Final = 0.1
"""The shortest time between two checks whether a full disk has space again. A refused record causes such a check."""

backup_hold_seconds_max: Final = 5.0
"""The longest time for which a server accepts nothing from its peers at the beginning of a backup, until the command
comes that fixes the state to copy."""
backup_idle_seconds_max: Final = 120.0
"""The time without a command after which a server ends a backup: the kept files of a forgotten backup would fill the
disk."""
backup_page_bytes: Final = 1024 * 1024
"""Bytes of a backup that one request reads. Reading them keeps the event loop busy for a few milliseconds."""

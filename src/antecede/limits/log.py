"""The bounds of a server's log, its snapshots, and its log messages for people."""

from typing import Final

snapshot_log_bytes: Final = 128 * 1024 * 1024
snapshot_records: Final = 200_000
"""The size of the log, and its records, after which a server takes its next snapshot: a start replays them
in a few seconds."""
snapshot_retry_seconds: Final = 10.0
"""The pause before a failed snapshot is tried again: a full disk or a lack of file descriptors usually lasts for
seconds."""
snapshot_build_seconds_max: Final = 1_800.0
snapshot_builds_max: Final = 3
"""How long another process may build a snapshot before it is ended, and how often it may fail in a row before the
server encodes its state itself, which stalls it. A build takes about as long as a start."""

witness_after_seconds: Final = 0.1
witness_seconds: Final = 1.0
"""How long a server writes nothing before it writes a group without records, which proves that the last records were
durable; and the shortest time between two such groups: one sync per second is not noticeable under any load. The first
time is shorter than people need to notice that a server is idle, and to kill it."""

log_lines_per_second: Final = 10
"""Lines of a server's log messages about one kind of event: an operator can read no more, and a busy server causes
fewer."""
log_text_chars_max: Final = 400
"""One text in such a line; a text may come from another process."""
log_traceback_chars_max: Final = 20_000
"""One traceback in the log messages. Of a longer one, the beginning and the end are kept, because the text of an
exception may have any length."""
log_report_seconds: Final = 10.0
"""The time between two lines that report how many lines were left out."""

store_group_bytes_max: Final = 16 * 1024 * 1024
"""One commit group of a log: its records with their lengths. This also limits one record."""
store_segment_bytes: Final = 64 * 1024 * 1024
store_segment_bytes_first: Final = 1024 * 1024
"""The size of one segment of a log, and of the first, so that small logs stay small: each segment has twice the size of
the previous one, up to the full size. Segments are allocated as a whole, one in advance."""
store_pending_bytes_max: Final = 32 * 1024 * 1024
"""Records that were appended to a log and are not yet written; they must fit into one segment."""
store_log_bytes_max: Final = 16 * 1024 * 1024 * 1024
"""All segments of one log, including the one allocated in advance."""
store_snapshot_bytes_max: Final = 64 * 1024 * 1024 * 1024
"""One snapshot of a log's owner, all its parts."""
store_snapshot_part_bytes_max: Final = 1024 * 1024 * 1024
"""One part of a snapshot, which must be in memory as a whole."""
store_snapshot_part_bytes_wanted: Final = 64 * 1024 * 1024
"""A state that is passed as one piece is cut into parts of this length: the size of a segment, which is well below the
limit of a part and gives few parts."""
store_commit_here_bytes_max: Final = 64 * 1024
store_quick_sync_seconds: Final = 0.001
"""Bytes that a log's owner commits in its own thread; more bytes are left to the commit thread. So is everything while
most syncs take longer than the second bound."""
store_retry_seconds: Final = 0.1
"""How long a log with a full disk waits before a refused append makes it check again."""

backup_hold_seconds_max: Final = 5.0
backup_idle_seconds_max: Final = 120.0
backup_page_bytes: Final = 1024 * 1024
"""How long a server waits for the cut of a backup; and then for the operator's next command, because a forgotten backup
would fill the disk. The bytes that one request reads: this keeps the event loop busy for a few milliseconds."""

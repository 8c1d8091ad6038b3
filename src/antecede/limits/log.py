"""The bounds of a server's log, its snapshots, and its log messages for people."""

from typing import Final

snapshot_log_bytes: Final = 128 * 1024 * 1024
"""Bytes of the log after which a server takes its next snapshot: at a start, they are replayed in a few seconds."""
snapshot_records: Final = 200_000
"""Records of the log after which a server takes its next snapshot: at a start, they are replayed in a few seconds."""
snapshot_retry_seconds: Final = 10.0
"""The pause before a failed snapshot is tried again: a full disk or a lack of file descriptors usually lasts for
seconds."""
snapshot_build_seconds_max: Final = 1_800.0
"""The longest time in which another process may build a snapshot; then that process is ended. A build takes about as
long as a start of the server."""
snapshot_builds_max: Final = 3
"""Builds of a snapshot that may fail one after the other. Then the server encodes its state itself, which stalls it."""

witness_after_seconds: Final = 0.1
"""The time without a write after which a server writes a group without records, which proves that the last records were
durable. A person needs more time than this to notice that a server is idle, and to kill it."""
witness_seconds: Final = 1.0
"""The shortest time between two groups without records: one sync per second is not noticeable under any load."""

log_lines_per_second: Final = 10
"""Log messages of a server about one kind of event: an operator cannot read more, and a busy server causes fewer."""
log_text_chars_max: Final = 400
"""One text in a log message of a server; the text may come from another process."""
log_traceback_chars_max: Final = 20_000
"""One traceback in the log messages. Of a longer one, the beginning and the end are kept, because the text of an
exception may have any length."""
log_report_seconds: Final = 10.0
"""The time between two log messages that report how many messages were left out."""

store_group_bytes_max: Final = 16 * 1024 * 1024
"""One commit group of a log: its records with their lengths. This also limits one record."""
store_segment_bytes: Final = 64 * 1024 * 1024
"""One segment of a log at its full size. Segments are allocated as a whole, one in advance."""
store_segment_bytes_first: Final = 1024 * 1024
"""The first segment of a log, so that small logs stay small. Each segment has twice the size of the previous one, up to
the full size."""
store_pending_bytes_max: Final = 32 * 1024 * 1024
"""Records that were appended to a log and are not yet written; they must fit into one segment."""
store_log_bytes_max: Final = 16 * 1024 * 1024 * 1024
"""All segments of one log, including the one allocated in advance."""
store_snapshot_bytes_max: Final = 64 * 1024 * 1024 * 1024
"""One snapshot, with all its parts."""
store_snapshot_part_bytes_max: Final = 1024 * 1024 * 1024
"""One part of a snapshot, which must be in memory as a whole."""
store_snapshot_part_bytes_wanted: Final = 64 * 1024 * 1024
"""The length of parts, if a state is passed as one piece and must be cut. This is the size of a segment: well below the
limit of a part, and large enough to give few parts."""
store_commit_here_bytes_max: Final = 64 * 1024
"""Bytes that a log's owner commits in its own thread; more bytes are left to the commit thread."""
store_quick_sync_seconds: Final = 0.001
"""The time of a quick sync. While most syncs take longer, everything is left to the commit thread."""
store_retry_seconds: Final = 0.1
"""The shortest time between two checks for space on a full disk. A refused record causes such a check."""

backup_hold_seconds_max: Final = 5.0
"""The longest time for which a server waits for the cut of a backup."""
backup_idle_seconds_max: Final = 120.0
"""The longest time for which a server waits for the next command of a backup: a forgotten backup would fill the
disk."""
backup_page_bytes: Final = 1024 * 1024
"""Bytes of a backup that one request reads: this keeps the event loop busy for a few milliseconds."""

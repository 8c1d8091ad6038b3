"""The whole trace of a data directory as rows."""

from collections.abc import Iterator

from antecede.recording.segments import Recording
from antecede.trace import Event, read_events


def project_directory(directory: str) -> Iterator[Event]:
    """Return all rows of a data directory: the converted ones, then those of the rest of its log."""
    recording = Recording(directory)
    if recording.pieces:
        yield from read_events([piece.path for piece in recording.pieces])[0]
    yield from recording.rows()

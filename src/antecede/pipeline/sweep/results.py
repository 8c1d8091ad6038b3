"""The results of a sweep: a directory with one table and, while the sweep runs, one file per finished cell.

The file of a finished cell is first written under a temporary name and then renamed. So the file is always complete,
even if the sweep is killed. When a sweep begins, it reads the rows of earlier sweeps, also those of a sweep that was
killed. It does not repeat cells that already have a row. When a sweep ends, it writes all rows into ``table.parquet``,
also the rows of cells that do not belong to this sweep.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

import msgspec

from antecede.errors import UsageError
from antecede.pipeline.sweep.cells import Row

_table = "table.parquet"
_cells = "cells"


class Results:
    """Reads the rows of earlier sweeps in a directory, and stores the rows of newly finished cells there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.table = directory / _table
        self.rows: dict[str, Row] = {}
        """All rows, by the key of their cell."""
        self._read_table()
        self._read_cells()

    def add(self, row: Row) -> None:
        """Store the row of a finished cell."""
        place = self._directory / _cells / f"{row.key}.json"
        _replace(place, msgspec.json.encode(row))
        self.rows[row.key] = row

    def join(self) -> None:
        """Write all rows into the table, and remove the files of single cells."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = sorted(self.rows.values(), key=_place)
        schema = pa.schema([(name, _arrow(kind, pa)) for name, kind in get_type_hints(Row).items()])
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist([msgspec.structs.asdict(row) for row in rows], schema), sink)
        _replace(self.table, sink.getvalue().to_pybytes())
        for file in (self._directory / _cells).iterdir():
            file.unlink()

    def _read_table(self) -> None:
        if not self.table.exists():
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            found = pq.read_table(self.table).to_pylist()
            self.rows |= {row.key: row for row in msgspec.convert(found, list[Row])}
        except (pa.ArrowException, OSError, msgspec.ValidationError) as error:
            reason = str(error).partition("\n")[0]
            raise UsageError(
                f"{self.table}: not a table of results (made by: antecede sweep): {reason}; choose another directory "
                "with --out"
            ) from None

    def _read_cells(self) -> None:
        for file in (self._directory / _cells).glob("*.json"):
            try:
                row = msgspec.json.decode(file.read_bytes(), type=Row)
            except (OSError, msgspec.DecodeError) as error:
                raise UsageError(
                    f"{file}: not the result of a cell (made by: antecede sweep): {error}; remove the file to "
                    "run the cell again"
                ) from None
            self.rows[row.key] = row


@contextmanager
def results(directory: str) -> Iterator[Results]:
    """Open the results in a directory, and make the directory if it is missing. Raise an error if another sweep is
    using this directory."""
    place = Path(directory)
    try:
        (place / _cells).mkdir(parents=True, exist_ok=True)
        handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UsageError(f"--out {directory}: cannot be written: {error.strerror}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                f"--out {directory}: another sweep writes there: wait for its end, or choose another directory"
            ) from None
        if not os.access(place / _cells, os.W_OK):
            raise UsageError(f"--out {directory}: cannot be written: the directory is not writable")
        yield Results(place)
    finally:
        os.close(handle)


def _replace(place: Path, data: bytes) -> None:
    """Replace the content of a file completely or not at all."""
    draft = place.with_name(f"{place.name}.new")
    with open(draft, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, place)


def _place(row: Row) -> tuple[Any, ...]:
    density = -1.0 if row.density is None else row.density
    return (row.shape, row.workload, row.order, row.processes, row.gap, row.delay, density, row.messages, row.seed)


def _arrow(kind: Any, pa: Any) -> Any:
    plain = next(one for one in get_args(kind) if one is not type(None)) if isinstance(kind, UnionType) else kind
    return {str: pa.string(), int: pa.int64(), float: pa.float64()}[plain]

"""Write two files for a person to examine: the rows that were set aside, and all late deliveries.

For a row that was set aside during matching, only its split (a piece of the input) and its number in the split are
known. So each split is read once more, in the order of the trace, to get the text of these rows. The late deliveries
are written to a Parquet file, in portions. Each of the two files is either written completely or not at all.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from antecede.errors import TraceError
from antecede.pipeline.judge.trace import Outcome, Trace
from antecede.pipeline.kernels.match import REASON_NAMES
from antecede.pipeline.packing import unpack
from antecede.pipeline.read.columns import odd_rows
from antecede.pipeline.read.splits import Split, line_before, read
from antecede.trace.files import Item, items_in
from antecede.trace.schema import NEEDED_BY_INSTANCES, Fault, Nulled
from antecede.trace.sources import shown

LATE_SCHEMA = pa.schema(
    [
        ("order", pa.string()),
        ("message", pa.string()),
        ("from", pa.string()),
        ("to", pa.string()),
        ("send_index", pa.int64()),
        ("deliver_index", pa.int64()),
        ("overtaken_by", pa.string()),
    ]
)
"""The columns of a table of late deliveries."""


def write_quarantine(trace: Trace, outcome: Outcome, directory: str) -> None:
    """Write ``DIR/quarantine.jsonl``: one line for each row set aside, in the order of the trace."""
    known: dict[int, dict[int, str]] = {}
    for split, number, again in trace.contested_rows:
        known.setdefault(split, {})[number - 1] = "duplicate_row" if again else "duplicate_index"
    for split, at in outcome.circular:
        known.setdefault(split, {})[at] = "cycle"
    parts = trace.set_aside()
    used = NEEDED_BY_INSTANCES if trace.layout.instances else ()

    def rows() -> Iterator[bytes]:
        for split in trace.given.splits:
            stage = partial(
                describe, split=split, known=known.get(split.number, {}), faults=bool(+trace.unread), used=used
            )
            yield from parts.stream(stage, [split.number])

    _write(directory, "quarantine.jsonl", lambda out: [out.write(row + b"\n") for row in rows()])


def describe(
    blobs: Iterable[bytes], split: Split, known: dict[int, str], faults: bool, used: Sequence[str] = ()
) -> Iterator[bytes]:
    """Yield one line of JSON for each row that was set aside in this split (a piece of the input)."""
    asked = dict(known)
    for blob in blobs:
        rows = unpack(blob)
        asked |= {int(at): REASON_NAMES[reason] for at, reason in zip(rows["at"], rows["reason"], strict=True)}
    if not asked and not faults:
        return
    before = line_before(split)
    nulled = Nulled(used)
    numbers = np.array(sorted(asked), np.int64)
    for piece in read(split, keep_raw=True):
        if isinstance(piece, list):
            items: Iterable[Item] = piece
        else:
            numbered = np.arange(piece.first, piece.first + piece.batch.num_rows, dtype=np.int64)
            wanted = np.isin(numbered, numbers) | (odd_rows(piece.batch) if piece.plain else True)
            some = piece.batch.filter(pa.array(wanted))
            items = (
                (int(row) + 1, raw, decoded)
                for row, (_, raw, decoded) in zip(numbered[wanted], items_in(some, piece.folded, 0, True), strict=True)
            )
        for number, raw, read_as in items:
            decoded = nulled.take(number, read_as)
            is_fault = isinstance(decoded, Fault)
            if is_fault or number - 1 in asked:
                row = {
                    "file": split.name or shown(split.path),
                    "line": before + number,
                    "reason": decoded.reason if isinstance(decoded, Fault) else asked[number - 1],
                    "detail": decoded.detail if isinstance(decoded, Fault) else "",
                    "raw": raw.decode("utf-8", "replace"),
                }
                yield json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def write_late(rows: Iterator[dict[str, Any]], directory: str) -> None:
    """Write ``DIR/late.parquet``: one row for each late delivery."""

    def put(out: Any) -> None:
        with pq.ParquetWriter(out, LATE_SCHEMA) as writer:
            while some := list(islice(rows, 65_536)):
                writer.write_batch(pa.RecordBatch.from_pylist(some, schema=LATE_SCHEMA))

    _write(directory, "late.parquet", put)


def _write(directory: str, name: str, put: Any) -> None:
    target = Path(directory) / name
    temporary = target.with_name(f".{name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as out:
                put(out)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise TraceError(f"{target}: cannot be written: {error.strerror}") from None


def late_to_parquet(directory: str) -> None:
    """Read the file ``late.jsonl`` that the plain engine wrote, and write its rows to ``late.parquet``."""
    with open(Path(directory) / "late.jsonl", "rb") as lines:
        write_late((msgspec.json.decode(line) for line in lines), directory)

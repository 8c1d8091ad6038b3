"""A trace for benchmarks. Message ids have 36 characters. About one message in ten is a multicast. Links may reorder
messages.

A seeded generator writes the trace, 500,000 rows at a time. The same arguments give the same trace. A message has one
copy for each destination, and ``lost`` is the share of copies that are never delivered. If ``spanning`` is true, the
first message is delivered last.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

_rows_at_once = 500_000
_schema = pa.schema(
    [
        ("process", pa.string()),
        ("index", pa.int64()),
        ("kind", pa.string()),
        ("message", pa.string()),
        ("to", pa.list_(pa.string())),
    ]
)


@compiled
def _generate(
    messages: int,
    lost: float,
    spanning: bool,
    state: Longs,
    counts: Longs,
    air_message: Longs,
    air_process: Ints,
    process: Ints,
    index: Longs,
    message: Longs,
    copies: Ints,
    to: Ints,
) -> tuple[int, int]:
    """Continue a trace until the arrays are full or the trace ends. Return the number of rows and the number of
    destinations that were written.

    ``state`` holds two numbers: the messages sent so far, and the copies in transit. ``copies`` has, for each row, the
    number of destinations of a send, and 0 for a delivery.
    """
    processes = len(counts)
    rows = written = 0
    sent, flying = state[0], state[1]
    while rows < len(process) and written + 4 <= len(to):
        if sent < messages and flying + 4 < len(air_message):
            sender = np.random.randint(processes)
            size = np.random.randint(2, 5) if np.random.random() < 0.1 else 1
            first = np.random.randint(processes)
            process[rows], index[rows], message[rows], copies[rows] = sender, counts[sender], sent, size
            for k in range(size):
                to[written] = (first + k) % processes
                if np.random.random() >= lost:
                    air_message[flying], air_process[flying] = sent, to[written]
                    flying += 1
                written += 1
            sent += 1
        elif flying:
            # The first copy of the first message stays at the front, so that it is delivered last.
            least = 1 if spanning and flying > 1 else 0
            k = least + np.random.randint(flying - least)
            receiver = air_process[k]
            process[rows], index[rows], message[rows], copies[rows] = receiver, counts[receiver], air_message[k], 0
            flying -= 1
            air_message[k], air_process[k] = air_message[flying], air_process[flying]
        else:
            break
        counts[process[rows]] += 1
        rows += 1
    state[0], state[1] = sent, flying
    return rows, written


@compiled
def _seed(seed: int) -> None:
    np.random.seed(seed)


def write_bench_trace(
    path: str, messages: int, processes: int = 64, seed: int = 1, in_the_air: int = 200, lost: float = 0.0,
    spanning: bool = False,
) -> int:  # fmt: skip
    """Write a trace of ``messages`` messages. Return the number of its events."""
    _seed(seed)
    names = pa.array([f"process-{number:04d}" for number in range(processes)])
    kinds = pa.array(["deliver", "send"])
    state, counts = np.zeros(2, np.int64), np.zeros(processes, np.int64)
    air = np.zeros(in_the_air, np.int64), np.zeros(in_the_air, np.int32)
    process, index = np.zeros(_rows_at_once, np.int32), np.zeros(_rows_at_once, np.int64)
    message, copies = np.zeros(_rows_at_once, np.int64), np.zeros(_rows_at_once, np.int32)
    to = np.zeros(2 * _rows_at_once, np.int32)
    events = 0
    with pq.ParquetWriter(path, _schema) as writer:
        while True:
            rows, written = _generate(
                messages, lost, spanning, state, counts, *air, process, index, message, copies, to
            )
            if not rows:
                return events
            ends = np.concatenate([np.zeros(1, np.int32), np.cumsum(copies[:rows])]).astype(np.int32)
            unaddressed = pa.array(copies[:rows] == 0)
            columns = [
                names.take(pa.array(process[:rows])),
                pa.array(index[:rows]),
                kinds.take(pa.array((copies[:rows] > 0).astype(np.int8))),
                _ids(message[:rows]),
                pa.ListArray.from_arrays(pa.array(ends), names.take(pa.array(to[:written])), mask=unaddressed),
            ]
            writer.write_batch(pa.record_batch(columns, schema=_schema), row_group_size=_rows_at_once)
            events += rows


def _ids(numbers: Longs) -> Any:
    """Return the id of each message number: 36 characters, like a UUID. Different numbers have different ids."""
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    low = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    high = (low ^ (low >> np.uint64(31))) * np.uint64(0xC2B2AE3D27D4EB4F)
    text = np.full((len(numbers), 36), ord("-"), np.uint8)
    columns = [k for k in range(36) if k not in (8, 13, 18, 23)]
    for k, column in enumerate(columns):
        half = low if k < 16 else high
        text[:, column] = digits[((half >> np.uint64(4 * (k % 16))) & np.uint64(15)).astype(np.int64)]
    offsets = (np.arange(len(numbers) + 1) * 36).astype(np.int32)
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets.tobytes()), pa.py_buffer(text.tobytes()))

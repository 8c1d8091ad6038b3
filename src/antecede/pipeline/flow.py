"""Run the stages of the pipeline: run a stage on inputs, group its output by part, and run the next stage on the parts.

A stage yields pairs: the number of a part, and bytes for this part. The next stage gets all bytes of a part. The
following classes run stages, and no other code of the pipeline knows which class is used:

* :class:`Here`: in this process, one input after the other.
* :class:`SparkFiles`: as Spark tasks on one machine. The tasks exchange data as files in the session's scratch
  directory. :class:`SparkFrameFiles` does the same in a separate directory, and its inputs are the partitions of a
  DataFrame.
* :class:`SparkFrames`: as Spark tasks on any machine. It uses only DataFrames, so it also works with Spark Connect.

On one machine files are cheaper than DataFrames, because between DataFrames every byte passes through two sockets and a
JVM. Stages are functions of the installed package with plain arguments, so that a Spark worker finds them by name.
"""

import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol

import pyarrow as pa

Emit = Iterator[tuple[int, bytes]]

_tasks_a_core = 4


class Parts(Protocol):
    """The output of a stage: bytes, grouped into numbered parts."""

    def gather(self, stage: Callable[[Iterable[bytes]], bytes], parts: Sequence[int]) -> list[bytes]:
        """Run a stage on some parts. Return one result per part, in the order of ``parts``. The results must be
        small."""
        ...

    def stream(self, stage: Callable[[Iterable[bytes]], Iterable[bytes]], parts: Sequence[int]) -> Iterator[bytes]:
        """Run a stage on some parts, one after the other. Yield its results. On Spark, only the results of one part at
        a time are in memory."""
        ...

    def scatter(self, stage: Callable[[Iterable[bytes]], Emit], parts: Sequence[int], part_count: int) -> "Parts":
        """Run a stage on some parts. Return its output, grouped into ``part_count`` parts."""
        ...

    def joined(self) -> "Parts":
        """Join all parts into one part. The bytes keep the order of the parts, except in :class:`FrameParts`, because
        Spark does not guarantee this order."""
        ...


class Flow(Protocol):
    """Runs a stage on inputs, in this process or on Spark. The next stages run on the :class:`Parts` that
    :meth:`scatter` returns."""

    def scatter(self, stage: Callable[[Any], Emit], inputs: Sequence[Any], part_count: int) -> Parts:
        """Run a stage on each input. Return its output, grouped into ``part_count`` parts."""
        ...


class Here:
    """Runs all stages in this process: for tests of the stages, and for traces that are so small that they need no
    Spark session."""

    def scatter(self, stage: Callable[[Any], Emit], inputs: Sequence[Any], part_count: int) -> "HereParts":
        return HereParts((pair for one in inputs for pair in stage(one)), part_count)


class HereParts:
    """Parts in the memory of this process."""

    def __init__(self, pairs: Iterable[tuple[int, bytes]], part_count: int) -> None:
        self._parts: list[list[bytes]] = [[] for _ in range(part_count)]
        for part, blob in pairs:
            self._parts[part].append(blob)

    def gather(self, stage: Callable[[Iterable[bytes]], bytes], parts: Sequence[int]) -> list[bytes]:
        return [stage(self._parts[part]) for part in parts]

    def stream(self, stage: Callable[[Iterable[bytes]], Iterable[bytes]], parts: Sequence[int]) -> Iterator[bytes]:
        for part in parts:
            yield from stage(self._parts[part])

    def scatter(self, stage: Callable[[Iterable[bytes]], Emit], parts: Sequence[int], part_count: int) -> "HereParts":
        return HereParts((pair for part in parts for pair in stage(self._parts[part])), part_count)

    def frame(self, stage: Callable[[Iterable[bytes]], Iterator[Any]], schema: Any, parts: Sequence[int]) -> Any:
        """Return an Arrow table of the batches that a stage makes from some parts."""
        return pa.Table.from_batches([batch for part in parts for batch in stage(self._parts[part])], schema)

    def joined(self) -> "HereParts":
        return HereParts(((0, blob) for blobs in self._parts for blob in blobs), 1)


class SparkFiles:
    """Runs stages as Spark tasks that share a directory with this process."""

    def __init__(self, context: Any, directory: str) -> None:
        self._context = context
        self._directory = directory

    def scatter(self, stage: Callable[[Any], Emit], inputs: Sequence[Any], part_count: int) -> "FileParts":
        return FileParts.made_by(self._context, self._directory, stage, list(inputs), part_count)


class SparkFrameFiles:
    """Runs stages like :class:`SparkFiles`. The inputs of the first stage are the partitions of a DataFrame;
    ``as_input`` turns each partition into an input. The files are in a new directory, which is removed when this object
    is deleted."""

    def __init__(self, frame: Any, as_input: "AsInput") -> None:
        self._frame, self._as_input = frame, as_input
        self._directory = tempfile.mkdtemp(prefix="antecede-frame-")
        weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)

    def scatter(self, stage: Callable[[Any], Emit], inputs: Sequence[Any], part_count: int) -> "FileParts":
        directory, run = self._directory, _from_partitions(stage, self._as_input)

        def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            name, pieces = written(directory, run(batches))
            columns = [[name], [[part for part, _ in pieces]], [[size for _, size in pieces]]]
            yield pa.record_batch(
                [pa.array(values, kind) for values, kind in zip(columns, _written_types, strict=True)],
                ["name", "part", "size"],
            )

        with _whole_batches(self._frame.sparkSession):
            found = self._frame.mapInArrow(rows, "name string, part array<int>, size array<bigint>").toArrow()
        files = [(row["name"], list(zip(row["part"], row["size"], strict=True))) for row in found.to_pylist()]
        return FileParts.of_files(self._frame.sparkSession.sparkContext, directory, files, part_count)


_written_types = (pa.string(), pa.list_(pa.int32()), pa.list_(pa.int64()))


def shares_our_files(spark: Any) -> bool:
    """Return whether the tasks of a Spark session can use the files of this machine. This is possible in a classic
    session (without Spark Connect) with a local master."""
    context = getattr(spark, "sparkContext", None)
    return context is not None and re.fullmatch(r"local(\[.*\])?", context.master) is not None


Piece = tuple[str, int, int]
"""A piece of a file: the name of the file, the position of the first byte, and the number of bytes."""

Written = tuple[str, list[tuple[int, int]]]
"""A written file: its name, and a list of its pieces. Each piece is given by the number of its part and its size in
bytes."""

AsInput = Callable[[int, Iterator[Any]], Any]
"""A function that turns the number of a partition and the partition's Arrow batches into the input of a stage."""


class FileParts:
    """The parts of a stage's output, stored in files. Each run of a stage on one input writes one file, which may have
    pieces of several parts. The pieces in the file are in the order in which the stage made them."""

    def __init__(self, context: Any, directory: str, pieces: list[list[Piece]]) -> None:
        self._context, self._directory = context, directory
        self.pieces = pieces

    @classmethod
    def made_by(
        cls, context: Any, directory: str, stage: Callable[[Any], Emit], inputs: list[Any], part_count: int
    ) -> "FileParts":
        """Run a stage on each input as a Spark job. Return its output, grouped into ``part_count`` parts."""

        def run(given: Iterable[Any]) -> "Iterator[Written]":
            for one in given:
                yield written(directory, stage(one))

        return cls.of_files(context, directory, _distributed(context, inputs).mapPartitions(run).collect(), part_count)

    @classmethod
    def of_files(cls, context: Any, directory: str, files: "list[Written]", part_count: int) -> "FileParts":
        """Return the parts that the given files contain: for each part, a list of its pieces. The files themselves are
        not read."""
        made: list[list[Piece]] = [[] for _ in range(part_count)]
        for name, pieces in files:
            start = 0
            for part, size in pieces:
                made[part].append((name, start, size))
                start += size
        return cls(context, directory, made)

    def gather(self, stage: Callable[[Iterable[bytes]], bytes], parts: Sequence[int]) -> list[bytes]:
        if not parts:
            return []
        inputs = [self.pieces[part] for part in parts]
        return list(_distributed(self._context, inputs).map(lambda given: stage(pieces_of(given))).collect())

    def stream(self, stage: Callable[[Iterable[bytes]], Iterable[bytes]], parts: Sequence[int]) -> Iterator[bytes]:
        for part in parts:
            given = self._context.parallelize([self.pieces[part]], 1)
            yield from given.flatMap(lambda pieces: stage(pieces_of(pieces))).collect()

    def scatter(self, stage: Callable[[Iterable[bytes]], Emit], parts: Sequence[int], part_count: int) -> "FileParts":
        def run(pieces: list[Piece]) -> Emit:
            return stage(pieces_of(pieces))

        inputs = [self.pieces[part] for part in parts]
        return FileParts.made_by(self._context, self._directory, run, inputs, part_count)

    def joined(self) -> "FileParts":
        return FileParts(self._context, self._directory, [[piece for part in self.pieces for piece in part]])


def _distributed(context: Any, inputs: list[Any]) -> Any:
    """Return the inputs, distributed over at most ``_tasks_a_core`` tasks per core. This number of tasks keeps all
    cores busy to the end. More tasks would take more time, because each task has a fixed cost."""
    return context.parallelize(inputs, max(1, min(len(inputs), _tasks_a_core * context.defaultParallelism)))


def written(directory: str, blobs: Emit) -> Written:
    """Write the output of a stage to a new file. Return the file's name, and the part and size of each piece."""
    sizes = []
    with tempfile.NamedTemporaryFile(dir=directory, prefix="stage-", delete=False) as file:
        for part, blob in blobs:
            file.write(blob)
            sizes.append((part, len(blob)))
    return file.name, sizes


def pieces_of(pieces: Iterable[Piece]) -> Iterator[bytes]:
    """Read the pieces of files one after the other. Yield the bytes of each piece."""
    opened: dict[str, int] = {}
    try:
        for name, start, size in pieces:
            if name not in opened:
                opened[name] = os.open(name, os.O_RDONLY)
            yield os.pread(opened[name], size, start)
    finally:
        for descriptor in opened.values():
            os.close(descriptor)


Run = Callable[[Iterator[Any]], Emit]
"""A function that processes the Arrow batches of one partition."""

Found = list[tuple[int, bytes]]
"""Pairs: the number of a part, and a result of a stage on this part."""

_rows_schema = "part int, blob binary"
_blob_rows_max, _blob_batch_bytes = 1024, 64 * 1024 * 1024


class SparkFrames:
    """Runs stages as Spark tasks that share no files. Parts are the partitions of a DataFrame.

    The first stage gets the given inputs, or the partitions of a caller's DataFrame. For a DataFrame, ``as_input``
    makes an input from the number of a partition and its Arrow batches.
    """

    def __init__(self, spark: Any, given: Any = None, as_input: AsInput | None = None) -> None:
        self._spark, self._given, self._as_input = spark, given, as_input

    def scatter(self, stage: Callable[[Any], Emit], inputs: Sequence[Any], part_count: int) -> "FrameParts":
        if self._as_input is None:
            return self._from_inputs(stage, list(inputs), part_count)
        with _whole_batches(self._spark):
            return FrameParts.made_by(self._spark, self._given, _from_partitions(stage, self._as_input), part_count)

    def _from_inputs(self, stage: Callable[[Any], Emit], inputs: list[Any], part_count: int) -> "FrameParts":
        def run(batches: Iterator[Any]) -> Emit:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from stage(inputs[number])

        tasks = max(1, len(inputs))
        source = self._spark.range(len(inputs)).selectExpr("int(id) number").repartitionById(tasks, "number")
        return FrameParts.made_by(self._spark, source, run, part_count)


def _from_partitions(stage: Callable[[Any], Emit], as_input: AsInput) -> Run:
    """Return a function that runs a stage on the partitions of a DataFrame."""

    def run(batches: Iterator[Any]) -> Emit:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        return stage(as_input(context.partitionId(), batches))

    return run


class FrameParts:
    """The parts of a stage's output, stored as a DataFrame. Each row has the number of a part and one blob (bytes that
    the stage yielded).

    The output of a stage is kept on the executors' disks (a local checkpoint), so that it can be read again without
    repeating the work. Spark removes this checkpoint after the last reference to it is gone.
    """

    def __init__(self, spark: Any, frame: Any, count: int) -> None:
        self._spark, self._frame, self._count = spark, frame, count

    @classmethod
    def made_by(cls, spark: Any, source: Any, run: Run, part_count: int) -> "FrameParts":
        """Run the function ``run`` on the partitions of the DataFrame ``source``. Return its output, grouped into
        ``part_count`` parts."""
        from pyspark import StorageLevel

        def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for part, blob in run(batches):
                yield pa.record_batch([pa.array([part], pa.int32()), pa.array([blob], pa.binary())], ["part", "blob"])

        # An empty part also needs a row, because otherwise its stage would not run.
        empty = spark.range(0, part_count, 1, 1).selectExpr("int(id) part", "X'' blob")
        frame = source.mapInArrow(rows, _rows_schema).union(empty).repartitionById(part_count, "part")
        return cls(spark, frame.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY), part_count)

    def _chosen(self, parts: Sequence[int]) -> Any:
        """Return the rows of some parts as a DataFrame with at most one partition per part."""
        if len(parts) == self._count:
            return self._frame
        return self._frame.filter(f"part in ({', '.join(map(str, parts))})").coalesce(len(parts))

    def gather(self, stage: Callable[[Iterable[bytes]], bytes], parts: Sequence[int]) -> list[bytes]:
        found = dict(self._collected(lambda blobs: [stage(blobs)], parts))
        return [found[part] for part in parts]

    def stream(self, stage: Callable[[Iterable[bytes]], Iterable[bytes]], parts: Sequence[int]) -> Iterator[bytes]:
        for part in parts:
            yield from (blob for _, blob in self._collected(stage, [part]))

    def _collected(self, stage: Callable[[Iterable[bytes]], Iterable[bytes]], parts: Sequence[int]) -> Found:
        """Run a stage on some parts. Return each result together with the number of its part."""
        if not parts:
            return []

        def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for part, blobs in _by_part(batches):
                made = list(stage(blobs))
                numbers = pa.array([part] * len(made), pa.int32())
                yield pa.record_batch([numbers, pa.array(made, pa.binary())], ["part", "blob"])

        with _batches(self._spark, _blob_rows_max, _blob_batch_bytes):
            table = self._chosen(parts).mapInArrow(rows, _rows_schema).toArrow()
        return [
            pair
            for batch in table.to_batches()
            for pair in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
        ]

    def scatter(self, stage: Callable[[Iterable[bytes]], Emit], parts: Sequence[int], part_count: int) -> "FrameParts":
        def run(batches: Iterator[Any]) -> Emit:
            for _, blobs in _by_part(batches):
                yield from stage(blobs)

        with _batches(self._spark, _blob_rows_max, _blob_batch_bytes):
            return FrameParts.made_by(self._spark, self._chosen(parts), run, part_count)

    def frame(self, stage: Callable[[Iterable[bytes]], Iterator[Any]], schema: Any, parts: Sequence[int]) -> Any:
        """Return a DataFrame of the Arrow batches that a stage makes from some parts."""

        def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _, blobs in _by_part(batches):
                yield from stage(blobs)

        return self._chosen(parts).mapInArrow(rows, ddl(schema))

    def joined(self) -> "FrameParts":
        return FrameParts(self._spark, self._frame.selectExpr("0 part", "blob").coalesce(1), 1)


def ddl(schema: Any) -> str:
    """Translate an Arrow schema to Spark's notation. All columns must be texts or integers of 64 bits."""
    kinds = {pa.string(): "string", pa.int64(): "bigint"}
    return ", ".join(f"`{field.name}` {kinds[field.type]}" for field in schema)


def _by_part(batches: Iterator[Any]) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Yield the number and the blobs of each part in a partition. All rows of a part must be next to each other."""
    rows = (
        (part, blob.as_py())
        for batch in batches
        for part, blob in zip(batch.column(0).to_pylist(), batch.column(1), strict=True)
    )
    for part, group in groupby(rows, itemgetter(0)):
        yield part, filter(None, map(itemgetter(1), group))


def _whole_batches(spark: Any) -> AbstractContextManager[None]:
    """Return a context manager. While its block runs, Spark limits the number of rows in an Arrow batch, but not its
    size in bytes. With a limit in bytes, Spark would compute the size of a batch after each row. This takes quadratic
    time if a column has nulls."""
    return _batches(spark, None, 2**31 - 1)


@contextmanager
def _batches(spark: Any, rows: int | None, size: int) -> Iterator[None]:
    """Make Spark pass Arrow batches of at most ``rows`` rows and about ``size`` bytes to Python, until the ``with``
    block ends."""
    wanted = {"maxBytesPerBatch": size} | ({"maxRecordsPerBatch": rows} if rows else {})
    before = {}
    for name, value in wanted.items():
        key = f"spark.sql.execution.arrow.{name}"
        before[key] = spark.conf.get(key, None)
        spark.conf.set(key, str(value))
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, value)

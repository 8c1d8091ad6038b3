"""How stages are joined: work on inputs, what comes out by part, work on the parts.

A stage yields (part, bytes); the next one gets all bytes of a part. There are three ways to carry that out, and nothing
else of the pipeline knows which it is:

* :class:`Here`: in this process, one after the other.
* :class:`SparkFiles`: as Spark tasks on one machine, which hand each other files in the session's scratch directory.
* :class:`SparkShuffle`: as Spark tasks anywhere; parts are the partitions of a shuffle.

On one machine the files are the cheaper way, for in a shuffle every byte passes two sockets and a JVM: 5 s against 9 s
for 2.2 million events. Stages are functions of the installed package with plain arguments, so that
a Spark worker finds them by name.

The shuffle is Spark's own for byte arrays. The ready-made ``RDD.partitionBy`` would keep many megabytes of our blobs
for each partition before it lets go of them, and pickle them; here each blob passes as it is, as soon as it is made. A
shuffle's outcome can be read again and again without reading the trace again, which is what an RDD is good for.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

Emit = Iterator[tuple[int, bytes]]

_tasks_a_core = 4


class Parts(Protocol):
    """Bytes by part."""

    def gather(self, stage: Callable[[Iterable[bytes]], bytes], parts: Sequence[int]) -> list[bytes]:
        """Run a stage on some parts; its small outcomes, in the order of the parts."""
        ...

    def stream(self, stage: Callable[[Iterable[bytes]], Iterable[bytes]], parts: Sequence[int]) -> Iterator[bytes]:
        """Run a stage on some parts, one after the other; all that it yields, without holding more than one part."""
        ...

    def scatter(self, stage: Callable[[Iterable[bytes]], Emit], parts: Sequence[int], onto: int) -> "Parts":
        """Run a stage on some parts; what it yields, by part."""
        ...

    def joined(self) -> "Parts":
        """All parts as one, in their order if it can be had."""
        ...


class Flow(Protocol):
    """Where the work is done."""

    def scatter(self, stage: Callable[[Any], Emit], inputs: Sequence[Any], onto: int) -> Parts:
        """Run a stage on each input; what it yields, by part."""
        ...


class Here:
    """All work in this process: for tests of the stages, and for traces too small to be worth a session."""

    def scatter(self, stage: Callable[[Any], Emit], inputs: Sequence[Any], onto: int) -> "HereParts":
        return HereParts((pair for one in inputs for pair in stage(one)), onto)


class HereParts:
    """Parts in the memory of this process."""

    def __init__(self, pairs: Iterable[tuple[int, bytes]], onto: int) -> None:
        self._parts: list[list[bytes]] = [[] for _ in range(onto)]
        for part, blob in pairs:
            self._parts[part].append(blob)

    def gather(self, stage: Callable[[Iterable[bytes]], bytes], parts: Sequence[int]) -> list[bytes]:
        return [stage(self._parts[part]) for part in parts]

    def stream(self, stage: Callable[[Iterable[bytes]], Iterable[bytes]], parts: Sequence[int]) -> Iterator[bytes]:
        for part in parts:
            yield from stage(self._parts[part])

    def scatter(self, stage: Callable[[Iterable[bytes]], Emit], parts: Sequence[int], onto: int) -> "HereParts":
        return HereParts((pair for part in parts for pair in stage(self._parts[part])), onto)

    def joined(self) -> "HereParts":
        return HereParts(((0, blob) for blobs in self._parts for blob in blobs), 1)


class SparkFiles:
    """Work as Spark tasks that share a directory with us."""

    def __init__(self, context: Any, directory: str) -> None:
        self._context = context
        self._directory = directory

    def scatter(self, stage: Callable[[Any], Emit], inputs: Sequence[Any], onto: int) -> "FileParts":
        return FileParts.made_by(self._context, self._directory, stage, list(inputs), onto)


Piece = tuple[str, int, int]
"""Bytes in a file: its name, where they begin, how many there are."""


class FileParts:
    """Parts that are pieces of files, one file a task, with its pieces in the order in which they were made."""

    def __init__(self, context: Any, directory: str, pieces: list[list[Piece]]) -> None:
        self._context, self._directory = context, directory
        self.pieces = pieces

    @classmethod
    def made_by(
        cls, context: Any, directory: str, stage: Callable[[Any], Emit], inputs: list[Any], onto: int
    ) -> "FileParts":
        """What a stage makes of each input."""

        def run(given: Iterable[Any]) -> Iterator[tuple[str, list[tuple[int, int]]]]:
            for one in given:
                yield written(directory, stage(one))

        made: list[list[Piece]] = [[] for _ in range(onto)]
        for name, pieces in _shared_out(context, inputs).mapPartitions(run).collect():
            start = 0
            for part, size in pieces:
                made[part].append((name, start, size))
                start += size
        return cls(context, directory, made)

    def gather(self, stage: Callable[[Iterable[bytes]], bytes], parts: Sequence[int]) -> list[bytes]:
        if not parts:
            return []
        inputs = [self.pieces[part] for part in parts]
        return list(_shared_out(self._context, inputs).map(lambda given: stage(pieces_of(given))).collect())

    def stream(self, stage: Callable[[Iterable[bytes]], Iterable[bytes]], parts: Sequence[int]) -> Iterator[bytes]:
        for part in parts:
            given = self._context.parallelize([self.pieces[part]], 1)
            yield from given.flatMap(lambda pieces: stage(pieces_of(pieces))).collect()

    def scatter(self, stage: Callable[[Iterable[bytes]], Emit], parts: Sequence[int], onto: int) -> "FileParts":
        def run(pieces: list[Piece]) -> Emit:
            return stage(pieces_of(pieces))

        inputs = [self.pieces[part] for part in parts]
        return FileParts.made_by(self._context, self._directory, run, inputs, onto)

    def joined(self) -> "FileParts":
        return FileParts(self._context, self._directory, [[piece for part in self.pieces for piece in part]])


def _shared_out(context: Any, inputs: list[Any]) -> Any:
    """Inputs as tasks: enough of them to keep all cores busy to the end, but a task has its price, and a core does one
    at a time anyway."""
    return context.parallelize(inputs, max(1, min(len(inputs), _tasks_a_core * context.defaultParallelism)))


def written(directory: str, blobs: Emit) -> tuple[str, list[tuple[int, int]]]:
    """Write what a stage yields to a new file: its name, and of each piece the part and the size."""
    sizes = []
    with tempfile.NamedTemporaryFile(dir=directory, prefix="stage-", delete=False) as file:
        for part, blob in blobs:
            file.write(blob)
            sizes.append((part, len(blob)))
    return file.name, sizes


def pieces_of(pieces: Iterable[Piece]) -> Iterator[bytes]:
    """The bytes of pieces, one after the other."""
    opened: dict[str, int] = {}
    try:
        for name, start, size in pieces:
            if name not in opened:
                opened[name] = os.open(name, os.O_RDONLY)
            yield os.pread(opened[name], size, start)
    finally:
        for descriptor in opened.values():
            os.close(descriptor)


class SparkShuffle:
    """Work as Spark tasks that share nothing but the shuffle."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def scatter(self, stage: Callable[[Any], Emit], inputs: Sequence[Any], onto: int) -> "SparkParts":
        def run(_: int, given: Iterable[Any]) -> Emit:
            for one in given:
                yield from stage(one)

        source = self._context.parallelize(list(inputs), max(1, len(inputs)))
        return SparkParts.shuffled(self._context, source, run, onto)


class SparkParts:
    """Parts that are the partitions of a shuffle."""

    def __init__(self, context: Any, rdd: Any) -> None:
        self._context, self._rdd = context, rdd

    @classmethod
    def shuffled(cls, context: Any, source: Any, run: Callable[[int, Iterable[Any]], Emit], onto: int) -> "SparkParts":
        """What is made of the partitions of an RDD, each blob in the part that it is for."""
        from pyspark.core.rdd import RDD
        from pyspark.serializers import NoOpSerializer, pack_long

        def keyed(number: int, given: Iterable[Any]) -> Iterator[bytes]:
            for part, blob in run(number, given):
                yield pack_long(part)  # type: ignore[no-untyped-call]
                yield blob

        pairs = source.mapPartitionsWithIndex(keyed, preservesPartitioning=True)
        pairs._bypass_serializer = True
        jvm = context._jvm
        java = jvm.PairwiseRDD(pairs._jrdd.rdd()).asJavaPairRDD()
        shuffled = java.partitionBy(jvm.PythonPartitioner(onto, id(run)))
        rdd: RDD[bytes] = RDD(jvm.PythonRDD.valueOfPair(shuffled), context, NoOpSerializer())
        return cls(context, rdd)

    def gather(self, stage: Callable[[Iterable[bytes]], bytes], parts: Sequence[int]) -> list[bytes]:
        if not parts:
            return []
        return list(self._context.runJob(self._rdd, lambda blobs: [stage(blobs)], list(parts)))

    def stream(self, stage: Callable[[Iterable[bytes]], Iterable[bytes]], parts: Sequence[int]) -> Iterator[bytes]:
        for part in parts:
            yield from self._context.runJob(self._rdd, stage, [part])

    def spread(self, stage: Callable[[Iterable[bytes]], Iterable[Any]], parts: Sequence[int]) -> Any:
        """What a stage makes of some parts, left where it is: an RDD."""
        chosen = frozenset(parts)

        def run(number: int, blobs: Iterable[bytes]) -> Iterable[Any]:
            return stage(blobs) if number in chosen else ()

        return self._rdd.mapPartitionsWithIndex(run)

    def scatter(self, stage: Callable[[Iterable[bytes]], Emit], parts: Sequence[int], onto: int) -> "SparkParts":
        chosen = frozenset(parts)

        def run(number: int, blobs: Iterable[bytes]) -> Emit:
            if number in chosen:
                yield from stage(blobs)
            # Spark ends a worker that has not read all it was given, and a new one takes seconds to get ready.
            for _ in blobs:
                pass

        return SparkParts.shuffled(self._context, self._rdd, run, onto)

    def joined(self) -> "SparkParts":
        return SparkParts(self._context, self._rdd.coalesce(1))

"""How stages are joined: work on inputs, what comes out by part, work on the parts.

A stage yields (part, bytes); the next one gets all bytes of a part. Two ways to carry that out: :class:`Here`, in this
process, part by part, and :class:`Spark`, where parts are the partitions of a shuffle. Nothing else of the pipeline
knows which it is. Stages are functions of the installed package with plain arguments, so that a Spark worker finds
them by name.

The shuffle is Spark's own for byte arrays. The ready-made ``RDD.partitionBy`` would keep many megabytes of our blobs
for each partition before it lets go of them, and pickle them; here each blob passes as it is, as soon as it is made. A
shuffle's outcome can be read again and again without reading the trace again, which is what an RDD is good for.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

Emit = Iterator[tuple[int, bytes]]


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


class Spark:
    """Work as Spark tasks."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def scatter(self, stage: Callable[[Any], Emit], inputs: Sequence[Any], onto: int) -> "SparkParts":
        def run(_: int, given: Iterable[Any]) -> Emit:
            for one in given:
                yield from stage(one)

        source = self._context.parallelize(list(inputs), max(1, len(inputs)))
        return SparkParts(self._context, source, run, onto)


class SparkParts:
    """Parts that are the partitions of a shuffle."""

    def __init__(self, context: Any, source: Any, run: Callable[[int, Iterable[Any]], Emit], onto: int) -> None:
        from pyspark.core.rdd import RDD
        from pyspark.serializers import NoOpSerializer, pack_long

        def keyed(number: int, given: Iterable[Any]) -> Iterator[bytes]:
            for part, blob in run(number, given):
                yield pack_long(part)  # type: ignore[no-untyped-call]
                yield blob

        self._context = context
        pairs = source.mapPartitionsWithIndex(keyed, preservesPartitioning=True)
        pairs._bypass_serializer = True
        jvm = context._jvm
        java = jvm.PairwiseRDD(pairs._jrdd.rdd()).asJavaPairRDD()
        shuffled = java.partitionBy(jvm.PythonPartitioner(onto, id(self)))
        self._rdd: RDD[bytes] = RDD(jvm.PythonRDD.valueOfPair(shuffled), context, NoOpSerializer())

    def gather(self, stage: Callable[[Iterable[bytes]], bytes], parts: Sequence[int]) -> list[bytes]:
        if not parts:
            return []
        return list(self._context.runJob(self._rdd, lambda blobs: [stage(blobs)], list(parts)))

    def stream(self, stage: Callable[[Iterable[bytes]], Iterable[bytes]], parts: Sequence[int]) -> Iterator[bytes]:
        for part in parts:
            yield from self._context.runJob(self._rdd, stage, [part])

    def scatter(self, stage: Callable[[Iterable[bytes]], Emit], parts: Sequence[int], onto: int) -> "SparkParts":
        chosen = frozenset(parts)

        def run(number: int, blobs: Iterable[bytes]) -> Emit:
            if number in chosen:
                yield from stage(blobs)
            # Spark ends a worker that has not read all it was given, and a new one takes seconds to get ready.
            for _ in blobs:
                pass

        return SparkParts(self._context, self._rdd, run, onto)

"""What Spark forks its Python workers from, on one machine: a process that has everything loaded already.

Importing Arrow, numba and this package takes a worker a second, and loading the compiled kernels another half. Here it
is done once, before the first fork; the workers share that memory. After every task Spark has a worker collect its
garbage, and it would look at all that was loaded, for 70 ms each time: so what is there before the fork is set apart.

No thread may be running when a worker is forked, so what is judged to warm up is given as lines and not as Parquet,
which Arrow reads with threads of its own.

``python -m antecede.pipeline.daemon`` is for Spark alone, which talks to it through pipes.
"""

import gc
import tempfile
from pathlib import Path

from pyspark.daemon import manager

from antecede.pipeline.judge.trace import Trace, verdict_on
from antecede.pipeline.read.encode import Layout
from antecede.pipeline.read.splits import plan
from antecede.pipeline.spark.flow import Here

_lines = b"""\
{"process":"p","index":0,"kind":"send","message":"x","to":["q"]}
{"process":"p","index":1,"kind":"send","message":"y","to":["q"]}
{"process":"q","index":0,"kind":"deliver","message":"y"}
{"process":"q","index":1,"kind":"deliver","message":"x"}
"""


def warm() -> None:
    """Judge a trace of four events, so that every kernel of a usual run is loaded."""
    with tempfile.TemporaryDirectory(prefix="antecede-warm-") as directory:
        path = Path(directory) / "trace.jsonl"
        path.write_bytes(_lines)
        verdict_on(Trace(Here(), plan([str(path)]), Layout(places=1, buckets=2)), ("fifo", "causal"))


if __name__ == "__main__":
    warm()
    gc.collect()
    gc.freeze()
    manager()

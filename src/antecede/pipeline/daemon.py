"""The process from which Spark forks its Python workers on one machine. All libraries and kernels are already loaded in
it.

In a new worker, importing Arrow, numba and this package takes one second. Loading the compiled kernels takes half a
second more. This process imports the libraries and loads the kernels once, before the first fork, and the workers share
its memory. After each task, Spark runs the garbage collector of the worker. To examine all loaded objects, the
collector would need 70 ms each time. So the objects that exist before the fork are excluded from collection.

To load the kernels, this process judges a small trace (:func:`warm`). The trace is in JSON Lines, because Arrow would
start threads to read Parquet. No thread may run when a worker is forked.

This module is started only by Spark, as ``python -m antecede.pipeline.daemon``. Spark communicates with it through
pipes.
"""

import gc
import tempfile
from pathlib import Path

from pyspark.daemon import manager

from antecede.pipeline.flow import Here
from antecede.pipeline.judge.trace import Trace, verdict_on
from antecede.pipeline.read.encode import Layout
from antecede.pipeline.read.splits import plan

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

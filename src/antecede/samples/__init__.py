"""Small files of every format that Antecede reads, for ``antecede sample`` and the guides. All these files were made
for this project.

A sample is one file or one folder of this package, or a folder of the examples. Each sample has a command with which a
user can try it.

The examples are data: a wheel has them in ``antecede/examples``, and a clone in ``examples`` at its top.
"""

from pathlib import Path
from typing import Final

import msgspec


class Sample(msgspec.Struct, frozen=True):
    """One sample: files to copy, and a command that uses them."""

    path: str
    """The name of the file or folder; the copy has the same name."""
    about: str
    command: str
    """A command that reads the sample."""


SAMPLES: Final = {
    "trace": Sample("trace.jsonl", "a trace in which an answer overtakes its question", "antecede explain trace.jsonl"),
    "chat": Sample(
        "chat",
        "the chat of the tutorial: agents, topology, and a test",
        "antecede topology check chat/chat.toml",
    ),
    "asked": Sample(
        "asked",
        "scenarios for questions that people asked elsewhere, with the public issue",
        "antecede play asked/membership-before-its-project.txt --order fifo --diagram",
    ),
    "shop": Sample(
        "shop.log",
        "lines of text: three services log what they send and receive",
        "antecede import shop.log --preview --send sent --deliver received "
        r"--pattern '^(?P<time>\S+ \S+) \w+ +(?P<process>\w+) +(?P<kind>sent|received) (?P<message>\S+)'",
    ),
    "nodes": Sample(
        "nodes",
        "lines of text: one file per process, named after it",
        r"antecede import nodes --preview --file-pattern 'node-(?P<process>\w+)\.log' --send sent --deliver received "
        r"--pattern '(?P<kind>sent|received) (?P<message>\S+)(?: to (?P<to>\S+))?'",
    ),
    "raft": Sample(
        "raft.ndjson",
        "JSON Lines: messages of a consensus protocol",
        "antecede import raft.ndjson --preview --send 'Send.*' --deliver 'Receive.*' "
        "--map process=event.nid,kind=event.name,message=event.msg.id,to=event.msg.to",
    ),
    "kafka": Sample(
        "kafka.jsonl",
        "JSON Lines: producers and consumers of Kafka",
        "antecede import kafka.jsonl --preview --send producing --deliver consumed "
        "--map 'process=service,kind=event,message={topic}-{partition}-{offset},time=ts'",
    ),
    "amqp": Sample(
        "amqp.csv",
        "CSV: publishers and consumers of AMQP",
        "antecede import amqp.csv --preview --send basic.publish --deliver basic.deliver --index time "
        "--map process=service,kind=action,message=message_id,time=time",
    ),
    "mpi": Sample(
        "mpi",
        "lines of text: one file per rank",
        r"antecede import mpi --preview --file-pattern 'mpi_trace_(?P<process>\d+)' --deliver MPI_Recv --time s "
        r"--send 'MPI_I?[bsr]?send|MPI_Send' --map 'message={comm}-{src}-{to}-{tag}-{n}' "
        r"--pattern '^(?P<kind>\w+) +(?P<time>\S+)"
        r"( comm=(?P<comm>\S+) tag=(?P<tag>\d+) src=(?P<src>\d+) dst=(?P<to>\d+) n=(?P<n>\d+))?'",
    ),
    "clocks": Sample("clocks.log", "a log with vector clocks (ShiViz)", "antecede import clocks.log"),
    "govector": Sample("govector.log", "a log with vector clocks (GoVector)", "antecede import govector.log"),
    "zipkin": Sample("zipkin.json", "spans of Zipkin", "antecede import zipkin.json"),
    "otlp": Sample("otlp.json", "spans of OpenTelemetry", "antecede import otlp.json"),
    "jaeger": Sample("jaeger.json", "spans of Jaeger", "antecede import jaeger.json"),
    "spans": Sample("spans.csv", "spans in a table", "antecede import spans.csv"),
    "chrome": Sample("chrome.json", "flow events of Chrome and Perfetto", "antecede import chrome.json"),
    "temporal": Sample("temporal.json", "the history of a workflow in Temporal", "antecede import temporal.json"),
    "editing": Sample("editing.json", "an editing session of two users", "antecede import editing.json"),
    "cloudevents": Sample("cloudevents.jsonl", "CloudEvents with causationid", "antecede import cloudevents.jsonl"),
}
"""The samples by name."""

_package = Path(__file__).resolve().parents[1]
_places = (_package / "samples", _package / "examples", _package.parents[1] / "examples")


def place_of(path: str) -> Path | None:
    """Return where a sample or a folder of the examples is; None if it is not here."""
    return next((place / path for place in _places if (place / path).exists()), None)

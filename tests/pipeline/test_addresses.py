"""Traces at an address: a folder in an S3 store, which a small server in this process imitates."""

import gzip
import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from antecede import pipeline
from antecede.pipeline.read.splits import plan
from antecede.trace import Event, Metadata, verify, write_trace

pytest.importorskip("pyarrow.fs", reason="needs pyarrow")


Store = tuple[Path, Callable[[str], str]]


class _Store(BaseHTTPRequestHandler):
    """The part of S3 that Arrow uses to list folders and to read files. The folder of the server is the bucket."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        asked = urlsplit(self.path)
        _, _, name = unquote(asked.path).lstrip("/").partition("/")
        if not name:
            self._send(200, self._listed({key: one[0] for key, one in parse_qs(asked.query).items()}))
            return
        file = self.server.folder / name  # type: ignore[attr-defined]
        if not file.is_file():
            self._send(404, b"")
            return
        data = file.read_bytes()
        span = self.headers.get("Range")
        if span:
            first, _, last = span.removeprefix("bytes=").partition("-")
            part = data[int(first) : int(last) + 1]
            self._send(206, part, f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
        else:
            self._send(200, data)

    def _listed(self, asked: dict[str, str]) -> bytes:
        folder = self.server.folder  # type: ignore[attr-defined]
        names = [file.relative_to(folder).as_posix() for file in sorted(folder.rglob("*")) if file.is_file()]
        prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter")
        files, folders = [], set()
        for name in names:
            if name.startswith(prefix):
                inner, found, _ = name.removeprefix(prefix).partition(delimiter or "\0")
                if delimiter and found:
                    folders.add(prefix + inner + delimiter)
                else:
                    files.append((name, (folder / name).stat().st_size))
        date = "2026-01-01T00:00:00.000Z"
        entries = [
            f"<Contents><Key>{escape(name)}</Key><Size>{size}</Size><LastModified>{date}</LastModified></Contents>"
            for name, size in files
        ]
        entries += [f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(folders)]
        count = len(entries)
        return (
            f'<?xml version="1.0"?><ListBucketResult><Name>bucket</Name><KeyCount>{count}</KeyCount>'
            f"<IsTruncated>false</IsTruncated>{''.join(entries)}</ListBucketResult>"
        ).encode()

    def _send(self, code: int, body: bytes, span: str | None = None) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        if span:
            self.send_header("Content-Range", span)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A folder, and a function that returns the address of a path in it."""
    folder = tmp_path / "bucket"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Store)
    server.folder = folder  # type: ignore[attr-defined]
    thread = Thread(target=server.serve_forever)
    thread.start()
    settings = f"endpoint_override=127.0.0.1:{server.server_port}&scheme=http&region=us-east-1"
    yield folder, lambda path: f"s3://me:pass@bucket/{path}?{settings}"
    server.shutdown()
    thread.join()
    server.server_close()


_rows = [
    Event("p", 0, "send", "x", ("q",)),
    Event("p", 1, "send", "y", ("q",)),
    Event("q", 0, "deliver", "y"),
    Event("q", 1, "deliver", "x"),
]


def _delta_table(folder: Path) -> None:
    """Write the trace as a table of Delta Lake has it: files in folders, and a log beside them."""
    (folder / "day=1").mkdir(parents=True)
    (folder / "day=2 and more").mkdir()
    write_trace(folder / "day=1" / "part-0.parquet", _rows[:2])
    write_trace(folder / "day=2 and more" / "part-1.jsonl", _rows[2:])
    (folder / "_delta_log").mkdir()
    (folder / "_delta_log" / "00000000000000000000.json").write_text('{"commitInfo": {}}\n{"add": {"path": "x"}}\n')
    (folder / "antecede.json").write_text(json.dumps({"schema": 1, "order": "causal"}))
    (folder / "day=1" / "part-0.parquet.meta.json").write_text(json.dumps({"schema": 1, "recorded_by": "us"}))


def test_a_folder_of_a_store_is_read_like_a_folder_of_this_machine(store: Store) -> None:
    folder, address = store
    _delta_table(folder / "shop" / "events")
    here = plan([str(folder / "shop" / "events")])
    there = plan([address("shop/events")])
    assert there.metadata == here.metadata == [Metadata(order="causal"), Metadata(recorded_by="us")]
    names = ["day=1/part-0.parquet", "day=2 and more/part-1.jsonl"]
    assert here.files == [str(folder / "shop" / "events" / name) for name in names]
    assert there.files == [f"s3://bucket/shop/events/{name}" for name in names]
    assert plan([address("")]).files == there.files
    assert plan([address("shop/events/day=1/part-0.parquet")]).metadata == [Metadata(recorded_by="us")]


def test_a_file_url_has_the_metadata_of_its_folder(tmp_path: Path) -> None:
    _delta_table(tmp_path / "a table")
    found = plan([f"file://{tmp_path}/a%20table"])
    assert found.metadata == plan([str(tmp_path / "a table")]).metadata
    assert len(found.splits) == 2


def test_a_store_gives_the_verdict_of_the_files(running: Any, store: Store, spoken: Any) -> None:
    folder, address = store
    _delta_table(folder / "events")
    for path in ("events", "events/", "events/day=1"):
        found = pipeline.verify_in(running, [address(path)], spoken.ALL)
        assert spoken.judged(found) == spoken.judged(verify([folder / path], spoken.ALL))


def test_the_size_of_a_gzip_file_is_that_of_its_text(tmp_path: Path) -> None:
    """The number of buckets, which bounds the memory of a task, depends on this size."""
    random = Random("gzip")
    line = '{"process":"p%d","index":%d,"kind":"send","message":"%d","to":["q","r"]}\n'
    text = "".join(line % (random.randrange(9), number, random.getrandbits(64)) for number in range(60_000)).encode()
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(text))
    assert plan([str(tmp_path)]).bytes == pytest.approx(len(text), rel=0.1)

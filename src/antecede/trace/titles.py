"""Show messages so that people recognise them: ``Said "answer to q5?" (s1…2)`` instead of ``s1.5f9c8a.2``.

The class of a notification and its label are in the columns ``notification`` and ``label`` of a message's rows. No
verdict needs them, so the code that computes the verdicts does not keep them. This module reads them afterwards from
the trace files, only for the few messages of a report. Ids are shortened in the middle, because they differ at both
ends.
"""

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from antecede.trace.schema import DELIVER, SEND
from antecede.trace.sources import events_in, trace_files

_rows_looked_at = 2_000
"""The number of rows that are searched first, at the beginning of a text file. If none of these rows has a class or a
label, the rest of the file is not read."""
_of_server = re.compile(r"(.+)\.[0-9a-f]{6}\.([tc]?\d+)")
"""A pattern for the id of a letter. The id consists of the name of a server, six hexadecimal digits of the server's
incarnation (a random number that identifies its data directory), and a number. The number follows a ``t`` in the id of
a timer, and a ``c`` in the id of a call."""
_id_chars_max = 16
_label_chars_max = 24
"""The longest label in a diagram."""


def short_id(id_: str, length: int = _id_chars_max) -> str:
    """Shorten an id. If it is the id of a letter, the six digits of the server's incarnation are always left out. If
    the id is still longer than ``length``, its middle is left out, because ids mostly differ at their beginning and at
    their end."""
    match = _of_server.fullmatch(id_)
    if match is not None:
        id_ = f"{match[1]}…{match[2]}"
    if len(id_) <= length:
        return id_
    end = (length - 1) // 2
    return f"{id_[: length - 1 - end]}…{id_[-end:]}"


class Titles:
    """Gives messages names that people can read. A name may contain characters that are not printable; the caller must
    replace these characters."""

    def __init__(self, named: Iterable[Mapping[str, Any]] = ()) -> None:
        """``named`` contains the classes and labels of messages, as the function :func:`named` returns them. In a
        report, they are below the key ``named``."""
        self._known = {one["message"]: (one["notification"], one["label"]) for one in named}
        self._shared = {text for text, count in Counter(map(self._brief, self._known)).items() if count > 1}
        """Short names that several messages have."""

    def __call__(self, message: str) -> str:
        """Return the full name of a message, for a sentence."""
        notification, label = self._known.get(message, (None, None))
        parts = [notification] if notification else []
        parts += [f'"{label}"'] if label else []
        return " ".join([*parts, f"({short_id(message)})"]) if parts else short_id(message, 40)

    def quoted(self, message: str) -> str:
        """Return the whole label of a message in quotes. If the message has no label, or has the same short name as
        another message, return the result of :meth:`brief`."""
        label = self._known.get(message, (None, None))[1]
        return f'"{label}"' if label and self._brief(message) not in self._shared else self.brief(message)

    def brief(self, message: str) -> str:
        """Return a short name of a message, for a diagram. This is the label, which is cut if it is long. Without a
        label, it is the class and the id. If several messages have the same short name, a part of the id is added."""
        text = self._brief(message)
        return f"{text} …{short_id(message).rpartition('…')[2]}" if text in self._shared else text

    def _brief(self, message: str) -> str:
        notification, label = self._known.get(message, (None, None))
        if label:
            return f'"{label if len(label) <= _label_chars_max else label[: _label_chars_max - 1] + "…"}"'
        return f"{notification} {short_id(message)}" if notification else short_id(message)


def named(messages: Collection[str], paths: Sequence[str]) -> list[dict[str, Any]]:
    """Return the classes and labels of these messages, sorted by id. Messages with neither class nor label are left
    out."""
    found = _texts([path for path in paths if os.path.exists(path)], set(messages)) if messages else {}
    return [
        {"message": message, "notification": notification, "label": label}
        for message, (notification, label) in sorted(found.items())
    ]


def messages_in(explanations: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the ids of all messages in the results of ``explain`` or of ``races``."""
    found: set[str] = set()
    for one in explanations:
        found.update(one[key] for key in ("message", "first", "second") if key in one)
        found.update(part["message"] for key in ("chain", "messages") for part in one.get(key, ()))
    return found


_Texts = tuple[str | None, str | None]


def _texts(paths: Sequence[str], left: set[str]) -> dict[str, _Texts]:
    found: dict[str, _Texts] = {}
    for path in trace_files(paths)[0] if paths else ():
        for message, texts in _rows(path, left):
            found.setdefault(message, texts)
            left.discard(message)
        if not left:
            break
    return found


def _rows(path: str, wanted: set[str]) -> Iterator[tuple[str, _Texts]]:
    """Read one file. For each row that belongs to a wanted message and has a class or a label, yield a pair: the id of
    the message, and a tuple of the class and the label."""
    if path.lower().endswith(".parquet"):
        yield from _rows_of_parquet(path, wanted)
        return
    rows = events_in(path)
    first = list(islice(rows, _rows_looked_at))
    if not any(row.notification or row.label for row in first):
        return
    for some in (first, rows):
        for row in some:
            if row.kind in (SEND, DELIVER) and row.message in wanted and (row.notification or row.label):
                yield row.message, (row.notification, row.label)


def _rows_of_parquet(path: str, wanted: set[str]) -> Iterator[tuple[str, _Texts]]:
    """Read one Parquet file. Yield the same pairs as :func:`_rows`. Only the columns with ids, classes and labels are
    read."""
    from importlib import import_module

    pa, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    try:
        with parquet.ParquetFile(path) as file:
            there = [name for name in ("notification", "label") if name in file.schema_arrow.names]
            if not there or "message" not in file.schema_arrow.names:
                return
            ids = pa.array(sorted(wanted), pa.string())
            for batch in file.iter_batches(columns=["message", *there]):
                message = batch.column("message").cast(pa.string())
                for row in batch.filter(import_module("pyarrow.compute").is_in(message, ids)).to_pylist():
                    texts = row.get("notification"), row.get("label")
                    if all(text is None or type(text) is str for text in texts) and any(texts):
                        yield str(row["message"]), texts
    except (pa.ArrowException, OSError, ValueError):
        # The engine has read the file and reported its errors.
        return

"""The conflicting operations of each object: a table in a trace's metadata, or in a file.

Two operations of an object conflict iff the order of their execution can change the state of the object or the result
of an operation (Enokido, Higaki, Takizawa §2). The conflicts are given when the object is defined. The table is a JSON
document::

    {"*": [["deposit", "audit"], ["audit", "audit"]], "ledger": [["append", "append"]]}

A key is an object, that is, a process of the trace; ``*`` applies to every object without its own entry. A pair holds
in both directions. An operation conflicts with itself only if the table says so: ``["append", "append"]``. A list of
pairs is the same as ``{"*": list}``. An operation that the table does not name conflicts with no other operation; with
an empty table nothing conflicts. Instead of a list of pairs, ``"all"`` means that all operations conflict with each
other and with themselves.

Several traces can be judged together, as one trace. If more than one of them contains a table, the tables are combined.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from antecede import limits
from antecede.documents import read_text
from antecede.errors import UsageError
from antecede.trace.schema import Metadata, brief

Pairs = Mapping[str, frozenset[str]]
"""For each operation, the operations that conflict with it."""

EVERY = "*"
ALL = "all"


class Conflicts(msgspec.Struct, frozen=True):
    """The conflict relation of every object."""

    tables: dict[str, dict[str, frozenset[str]]]
    everything: frozenset[str] = frozenset()
    """The objects at which each operation conflicts with all operations, also with itself. ``*`` stands for every
    object without its own entry."""

    def over(self, operations: Iterable[str]) -> "Conflicts":
        """Return the same table with pairs instead of ``all``. ``operations``: all operations of the trace. If an
        object has ``all``, each of these operations conflicts with all of them at this object, also with itself."""
        every = frozenset(operations)
        return Conflicts(self.tables | {name: dict.fromkeys(every, every) for name in self.everything})

    def at(self, process: str) -> Pairs:
        """Return the conflicts at one object; ``process`` is the object's name. Call :meth:`over` first, because this
        method ignores ``everything``."""
        found = self.tables.get(process)
        return found if found is not None else self.tables.get(EVERY, {})

    def operations(self) -> set[str]:
        """Return every operation that occurs in a table."""
        return {operation for table in self.tables.values() for operation in table}


def conflicts_in(document: Any, where: str) -> Conflicts:
    """Return the conflict table in a decoded JSON document. ``where`` names the document in error messages."""
    if isinstance(document, list) or document == ALL:
        document = {EVERY: document}
    if not isinstance(document, dict):
        raise UsageError(f'{where}: conflicts must be an object such as {{"*": [["read", "write"]]}}')
    tables: dict[str, dict[str, frozenset[str]]] = {}
    count = 0
    for name, pairs in document.items():
        if pairs == ALL:
            continue
        if not isinstance(pairs, list):
            raise UsageError(f"{where}: conflicts of {name!r} must be a list of pairs of operations, or 'all'")
        table: dict[str, set[str]] = {}
        for pair in pairs:
            if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(one, str) for one in pair):
                raise UsageError(f"{where}: conflicts of {name!r}: expected a pair of operations, not {brief(pair)}")
            table.setdefault(pair[0], set()).add(pair[1])
            table.setdefault(pair[1], set()).add(pair[0])
            count += 1
        tables[name] = {operation: frozenset(others) for operation, others in table.items()}
    if count > limits.conflict_pairs_max:
        raise UsageError(f"{where}: conflicts: {count} pairs: expected at most {limits.conflict_pairs_max}")
    return Conflicts(tables, frozenset(name for name, pairs in document.items() if pairs == ALL))


def read_conflicts(path: str | os.PathLike[str]) -> Conflicts:
    """Read the conflict table in a JSON file. The file contains only the table, or it is the metadata of a trace, with
    the keys ``schema`` and ``conflicts``."""
    where = os.fspath(path)
    text = read_text(path, limits.conflicts_bytes_max)
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{where}: conflicts are not JSON: {error}") from None
    if isinstance(document, dict) and "conflicts" in document and "schema" in document:
        document = document["conflicts"]
    return conflicts_in(document, where)


def conflicts_of(metadata: Iterable[Metadata]) -> Conflicts | None:
    """Return the union of the conflict tables in the metadata of a trace's files; ``None`` if no file has a table."""
    united: dict[str, dict[str, frozenset[str]]] = {}
    tables = [conflicts_in(one_file.conflicts, "metadata") for one_file in metadata if one_file.conflicts is not None]
    for one in tables:
        for name, table in one.tables.items():
            own = united.setdefault(name, {})
            for operation, others in table.items():
                own[operation] = own.get(operation, frozenset()) | others
    everything = frozenset[str]().union(*(one.everything for one in tables))
    return Conflicts(united, everything) if tables else None


def needed(given: Conflicts | None, metadata: Iterable[Metadata]) -> Conflicts:
    """Return the given conflict table, or else the table in the trace's metadata. If there is none, raise an error,
    because significant order cannot be judged without a table."""
    found = given if given is not None else conflicts_of(metadata)
    if found is None:
        raise UsageError(
            "significant order needs a conflict table: expected one in the trace's metadata, or --conflicts FILE"
        )
    return found

"""The pairs of operations that conflict. This relation decides which messages must be ordered.

Two operations of an object conflict iff their order can make a difference, in the state or in an answer (Enokido,
Higaki, Takizawa §2). The relation is symmetric. An operation can conflict with itself. The relation is *not*
transitive: two deposits can each conflict with an audit, but not with each other. So conflicting operations do not form
classes, and a search for conflicts must examine pairs.

On the command line, the relation is written as ``all``, as ``none``, or as a list of pairs such as ``set~set+set~get``.
"""

from collections.abc import Iterable
from functools import cache

from antecede import limits
from antecede.errors import OrderError


class Relation:
    """The pairs of operations that conflict. Operations are given by their names, and the relation is symmetric."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = (), *, everything: bool = False) -> None:
        self.everything = everything
        """Whether all operations conflict, with each other and with themselves."""
        self._rivals: dict[str, set[str]] = {}
        for one, other in pairs:
            self._rivals.setdefault(one, set()).add(other)
            self._rivals.setdefault(other, set()).add(one)

    def conflict(self, one: str, other: str) -> bool:
        """Return whether these two operations conflict."""
        return self.everything or other in self._rivals.get(one, ())

    def matters(self, operation: str) -> bool:
        """Return whether this operation conflicts with at least one operation."""
        return self.everything or operation in self._rivals

    def __bool__(self) -> bool:
        return self.everything or bool(self._rivals)

    def pairs(self) -> list[tuple[str, str]]:
        """Return the pairs of conflicting operations from which the relation was made, in alphabetical order and
        without repeats. For the relation ``all``, the list is empty."""
        return sorted((one, other) for one, rivals in self._rivals.items() for other in rivals if one <= other)

    def __str__(self) -> str:
        if self.everything:
            return "all"
        return "+".join(f"{one}~{other}" for one, other in self.pairs()) or "none"


@cache
def parse_relation(text: str) -> Relation:
    """Parse a relation: ``all``, ``none``, or ``a~b+c~d``."""
    if text in ("all", "none"):
        return Relation(everything=text == "all")
    pairs = []
    for part in text.split("+"):
        one, tilde, other = part.partition("~")
        if not (one and tilde and other) or "~" in other:
            raise OrderError(f"conflicts {part[:40]!r}: expected 'all', 'none', or pairs such as set~set+set~get")
        pairs.append((one, other))
    if len(pairs) > limits.conflict_pairs_max:
        raise OrderError(f"{len(pairs)} conflicting pairs: expected at most {limits.conflict_pairs_max}")
    return Relation(pairs)

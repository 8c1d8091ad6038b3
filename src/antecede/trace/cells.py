"""Which instances of an object conflict: cells of instances, and which cells are rivals.

Two instances of an object conflict iff their operations do there and neither is an ancestor of the other: a caller
waits for what it called, so they cannot exclude each other (Enokido, Higaki, Takizawa §2 on nested operations). Of two
*requests* only the operations count: a request is put in order before anybody knows whose descendant it starts.

Instances of one operation at one object share a **cell**, so that what is known of all of them can be kept together. An
instance with an ancestor or descendant at its own object that it would conflict with otherwise has a cell of its own.
Instances without an operation have none, and conflict with nothing.
"""

from collections.abc import Sequence

from antecede import limits
from antecede.errors import UsageError
from antecede.trace.conflicts import Conflicts, Pairs
from antecede.trace.instances import Instance, Instances

NO_CELL = -1


class Cells:
    """The cells of all objects."""

    def __init__(self, names: Sequence[str], instances: Instances, conflicts: Conflicts) -> None:
        self._numbers: dict[tuple[int, str], int] = {}
        self.rivals: list[frozenset[int]] = []
        """For each cell those that conflict with it."""
        self.request_rivals: list[frozenset[int]] = []
        """The same of requests, ancestors and descendants among them."""
        for process, own in enumerate(instances.by_name):
            self._divide(process, own, instances, conflicts.at(names[process]), names[process])

    def of(self, instance: Instance | None) -> int:
        """The cell of an instance, or ``NO_CELL``."""
        return NO_CELL if instance is None else self._numbers.get((instance.process, instance.name), NO_CELL)

    def conflict(self, one: Instance, other: Instance, requests: bool = False) -> bool:
        """Whether two instances of one object conflict; or their requests."""
        cell = self.of(one)
        return cell != NO_CELL and self.of(other) in (self.request_rivals if requests else self.rivals)[cell]

    def _divide(self, process: int, own: dict[str, Instance], instances: Instances, pairs: Pairs, where: str) -> None:
        kin: dict[str, set[str]] = {}
        for name, instance in own.items():
            for other in instances.ancestors_among(name, own):
                if own[other].operation in pairs.get(instance.operation or "", ()):
                    kin.setdefault(name, set()).add(other)
                    kin.setdefault(other, set()).add(name)
        check_kin(len(kin), where)
        shared: dict[str, int] = {}
        members: list[tuple[str, str | None]] = []
        """Of each cell its operation, and its instance if it is of one alone."""
        begin = len(self.rivals)
        for name, instance in own.items():
            if instance.operation is None:
                continue
            if name in kin:
                number = begin + len(members)
                members.append((instance.operation, name))
            else:
                number = shared.setdefault(instance.operation, begin + len(members))
                if number == begin + len(members):
                    members.append((instance.operation, None))
            self._numbers[process, name] = number
        for operation, alone in members:
            rivals = pairs.get(operation, frozenset())
            others = [
                (begin + number, name)
                for number, (other, name) in enumerate(members)
                if other in rivals and (name is None or name != alone)
            ]
            excluded = kin.get(alone, ()) if alone is not None else ()
            self.request_rivals.append(frozenset(number for number, _ in others))
            self.rivals.append(frozenset(number for number, name in others if name not in excluded))


def check_kin(count: int, where: str) -> None:
    """Refuse an object in which too many instances have to be told apart."""
    if count > limits.kin_instances_max:
        raise UsageError(
            f"{where}: {count} instances have a conflicting ancestor or descendant at the same object: "
            f"significant order can be judged up to {limits.kin_instances_max}"
        )

"""The conflicts between the instances of an object. Instances with the same conflicts are grouped into cells.

An *instance* is one execution of an operation at an object. Two instances of an object conflict iff their operations
conflict at that object and neither instance is an ancestor of the other. (A caller waits for the operation that it
called. So the two operations are open at the same time, and neither can exclude the other. See Enokido, Higaki,
Takizawa §2 on nested operations.) A *request* is the message that begins an instance. Two requests conflict iff their
operations conflict, even if one instance is an ancestor of the other. The reason is that a request gets its position in
the order before its instance begins. At that time, the ancestors of the instance are not known.

Instances of one operation at one object share a **cell**, so that data about all of them can be stored together. An
instance has a separate cell if its operation conflicts with the operation of one of its ancestors or descendants at the
same object. Instances without an operation have no cell, and conflict with nothing.
"""

from antecede import limits
from antecede.errors import UsageError
from antecede.trace.conflicts import Conflicts
from antecede.trace.instances import Instance, Instances

NO_CELL = -1


class Cells:
    """The cells of all objects: groups of instances with the same conflicts. Every cell has a number."""

    def __init__(self, instances: Instances, conflicts: Conflicts) -> None:
        self.instances, self.trace = instances, instances.trace
        self.conflicts = conflicts.over(instances.operations())
        self._numbers: dict[tuple[int, str], int] = {}
        self.rivals: list[frozenset[int]] = []
        """For each cell, the cells that conflict with it."""
        self.request_rivals: list[frozenset[int]] = []
        """For each cell, the cells whose requests conflict with the requests of this cell. Unlike ``rivals``, this
        includes the cells of conflicting ancestors and descendants."""
        for process, own in enumerate(instances.by_name):
            self._divide(process, own)

    def of(self, instance: Instance | None) -> int:
        """The cell of an instance, or ``NO_CELL``."""
        return NO_CELL if instance is None else self._numbers.get((instance.process, instance.name), NO_CELL)

    def conflict(self, one: Instance, other: Instance, requests: bool = False) -> bool:
        """Return whether two instances of one object conflict. With ``requests``, return whether the requests of the
        two instances conflict."""
        cell = self.of(one)
        return cell != NO_CELL and self.of(other) in (self.request_rivals if requests else self.rivals)[cell]

    def _divide(self, process: int, own: dict[str, Instance]) -> None:
        where = self.trace.names[process]
        pairs = self.conflicts.at(where)
        relatives: dict[str, set[str]] = {}
        for name, instance in own.items():
            for other in self.instances.ancestors_among(name, own):
                if own[other].operation in pairs.get(instance.operation or "", ()):
                    relatives.setdefault(name, set()).add(other)
                    relatives.setdefault(other, set()).add(name)
        check_relatives(len(relatives), where)
        shared: dict[str, int] = {}
        members: list[tuple[str, str | None]] = []
        """For each cell, its operation. If the cell belongs to a single instance, also the name of this instance."""
        begin = len(self.rivals)
        for name, instance in own.items():
            if instance.operation is None:
                continue
            if name in relatives:
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
            excluded = relatives.get(alone, ()) if alone is not None else ()
            self.request_rivals.append(frozenset(number for number, _ in others))
            self.rivals.append(frozenset(number for number, name in others if name not in excluded))


def check_relatives(count: int, where: str) -> None:
    """Refuse an object with more than ``kin_instances_max`` instances that need separate cells."""
    if count > limits.kin_instances_max:
        raise UsageError(
            f"{where}: {count} instances of this object conflict with an ancestor or descendant at the same object: "
            f"significant order can be judged for at most {limits.kin_instances_max} such instances"
        )

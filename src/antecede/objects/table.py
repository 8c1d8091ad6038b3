"""The operation instances at one object, and the locks that decide when an instance may begin (*ready* in §4.3 of
Enokido, Higaki, Takizawa).

An instance is queued when its request is handed over, and begins when no conflicting instance blocks it. There are two
cases in which a conflicting instance X blocks a queued instance Y:

* X has begun, and X and Y belong to different roots. Then X blocks Y until the root of X has ended.
* X was queued before Y and has not begun. So conflicting instances begin in the order in which they were handed over.
  This order is the same at all objects that get both requests.
"""

from collections.abc import Iterator
from typing import Any

from antecede.objects.instances import QUEUED, RUNNING, Instance, instance_in, instance_out
from antecede.orders.relation import Relation


class Table:
    """All operation instances at one object: those that are queued, and those that have begun."""

    def __init__(self, relation: Relation) -> None:
        self.relation = relation
        self.instances: dict[str, Instance] = {}
        self.changed = True
        """Whether an instance was queued, began or was removed since the site last looked for instances that may
        begin."""
        self._handed = 0
        self._begun = 0
        self._queued: dict[str, Instance] = {}
        """The instances that have not begun, in the order in which they were queued."""
        self._by_root: dict[str, dict[str, Instance]] = {}
        self._by_operation: dict[str, dict[str, Instance]] = {}
        self._rank: dict[str, int] = {}
        """For each instance: its number in the sequence in which the instances were added to the table."""
        self._ranks = 0

    def queue(self, one: Instance) -> None:
        """Add a new instance to the end of the queue."""
        self._handed += 1
        one.place = self._handed
        self._add(one)
        self._queued[one.id] = one
        self.changed = True

    def _add(self, one: Instance) -> None:
        self.instances[one.id] = one
        self._by_root.setdefault(one.root, {})[one.id] = one
        self._by_operation.setdefault(one.operation, {})[one.id] = one
        self._ranks += 1
        self._rank[one.id] = self._ranks

    def remove(self, one: Instance) -> None:
        """Remove an instance that has ended."""
        del self.instances[one.id]
        del self._rank[one.id]
        self._queued.pop(one.id, None)
        for index, key in ((self._by_root, one.root), (self._by_operation, one.operation)):
            del index[key][one.id]
            if not index[key]:
                del index[key]
        self.changed = True

    def begin(self, one: Instance) -> None:
        """Mark a queued instance as running. Its operation is executed after the operations of all instances that began
        earlier."""
        self._begun += 1
        one.place = self._begun
        one.state = RUNNING
        del self._queued[one.id]
        self.changed = True

    def queued(self) -> list[Instance]:
        """Return the instances that have not begun, in the order in which they were queued."""
        return list(self._queued.values())

    def begun(self, root: str) -> list[Instance]:
        """Return the instances of a root that have begun here, in the order in which they began."""
        found = [one for one in self._by_root.get(root, {}).values() if one.state != QUEUED]
        return sorted(found, key=lambda one: one.place)

    def holds(self, root: str) -> bool:
        """Return whether an instance of this root is in the table."""
        return root in self._by_root

    def blocked(self, one: Instance) -> bool:
        """Return whether any instance blocks this queued instance."""
        return any(True for _ in self._in_its_way(one))

    def rivals(self, one: Instance) -> list[Instance]:
        """Return the instances that block this queued instance, in the sequence in which they came into the table."""
        return sorted(self._in_its_way(one), key=lambda other: self._rank[other.id])

    def _in_its_way(self, one: Instance) -> Iterator[Instance]:
        for operation, instances in self._by_operation.items():
            if self.relation.conflict(operation, one.operation):
                for other in instances.values():
                    if other is not one and self._in_the_way(other, one):
                        yield other

    def _in_the_way(self, other: Instance, one: Instance) -> bool:
        if not self.relation.conflict(other.operation, one.operation):
            return False
        return other.place < one.place if other.state == QUEUED else other.root != one.root

    def dump(self) -> Any:
        """Return the state as plain values. The sequence of the instances is kept: if several of them block an older
        instance, their roots are asked in this sequence to make way (to abort and wait)."""
        return (self._handed, self._begun, [instance_out(one) for one in self.instances.values()])

    def load(self, state: Any) -> None:
        """Load the state from ``dump``."""
        self._handed, self._begun, instances = state
        for index in (self.instances, self._by_root, self._by_operation, self._rank):
            index.clear()
        for one in map(instance_in, instances):
            self._add(one)
        queued = [one for one in self.instances.values() if one.state == QUEUED]
        self._queued = {one.id: one for one in sorted(queued, key=lambda one: one.place)}

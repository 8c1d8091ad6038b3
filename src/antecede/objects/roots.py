"""The records of wound–wait, a method against deadlocks. In this method, if an older operation must wait for a younger
operation, the younger operation is aborted and tried again later.

A *root* is an operation that a user started, and its *home* is the object where it was started. A *try* of a root is
one execution of it. To *wound* a root is to ask it to *make way*: its try is aborted, and the root *rests* until the
message to continue (*heal*) comes. Then its next try begins. To *unite* roots is to make one root of them, with one
request.

By the theorem in §3.3 of Enokido, Higaki, Takizawa, messages never wait for each other in a cycle. But instances can
wait in a cycle. For example, op1 runs at object i and calls op2 at object j. At the same time, op3 runs at j and calls
op4 at i. If op2 conflicts with op3, op2 waits for the end of op3. If op4 conflicts with op1, op4 waits for the end of
op1. But op1 waits for the answer of op2, and op3 for the answer of op4, so none of them can continue. Wound–wait breaks
such cycles. Suppose that an older instance waits at an object for an instance of a *younger* root (a root with a larger
number). Then the object sends ``wound`` to the home of the younger root: a request to abort the present try of this
root. The home aborts the try, unless it has already decided to commit the root. When the older instance has ended, the
object sends ``heal`` to the home. The home then tries the younger root again, with its old number. So an older root
waits only until the try of the younger root has been aborted or committed. The oldest root is never wounded.

This module only keeps the records: the roots of one home (:class:`Roots`), and the tries that an object has asked to
make way (:class:`Wounds`). It does not abort an instance or send a message.
"""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any

import msgspec

from antecede import limits
from antecede.objects.instances import Instance, Root
from antecede.orders.relation import Relation


class Roots:
    """The roots that users started at one object, and that have not ended.

    A root is in one of three states. It *waits* until it is admitted. It *runs* if its present try (execution) is an
    instance in the table of instances. It *rests* if its try was wounded (aborted, so that an older root can continue)
    and an immediate retry would conflict again.

    **Admission.** To *admit* a root is to let it run. Conflicting roots wait for each other anyway. If many of them ran
    at the same time, they would often abort each other. So a root is admitted under three conditions. (1) The number of
    conflicting roots that run or rest is below a limit. (2) No older conflicting root still waits. So conflicting roots
    of one home are admitted in the order in which they were started. (3) The number and the bytes of all admitted roots
    are within their limits.

    **Sharing.** Roots of one operation that are admitted together are united into one shared root.
    One request, one answer and one commit carry the calls of all these roots. Each replica computes the calls one after
    the other. So if many calls come while one request is being processed, the next request can contain all of them. If
    a shared root fails, or its deadline passes, it is undone as a whole. Then its *parts* (the roots that were united)
    wait again (:meth:`put_back`). A part whose own deadline has passed does not wait again.
    """

    def __init__(
        self,
        relation: Relation,
        operation: Callable[[Root], str] = attrgetter("operation"),
        unite: Callable[[list[Root]], Root] | None = None,
        shareable: Callable[[str], int] = lambda _: 0,
    ) -> None:
        """``operation``: a function that returns the operation of a root. Two roots conflict if their operations
        conflict. ``unite``: a function that makes one shared root of several roots. ``shareable``: a
        function that returns how many roots of an operation may share a request."""
        self.running: dict[str, Root] = {}
        """The running roots, by the name of the present try (execution)."""
        self.resting: dict[str, Root] = {}
        """The resting roots, by the name of the try (execution) that was aborted."""
        self.started = 0
        """The number of roots that were started so far."""
        self.wounds = 0
        """The number of tries so far that were wounded (asked to abort, so that an older root can continue)."""
        self._relation = relation
        self._operation = operation
        self._unite = unite
        self._shareable = shareable
        self._waiting: dict[str, deque[Root]] = {}
        """The waiting roots, by operation, the oldest first."""
        self._healed: set[str] = set()
        """The names of running tries (executions of roots) for which the message ``heal`` came before the message
        ``wound``. When such a try is wounded, the next try of its root begins immediately."""
        self._admitted: dict[str, int] = {}
        """For each operation, the number of its roots that run or rest."""
        self._bytes = 0
        """The total number of bytes of the arguments, for all roots that run or rest."""
        self._due: list[tuple[float, int]] = []
        """A heap with a pair (deadline, number) for each root that has a deadline. Some of these roots may already have
        ended."""
        self._numbers: set[int] = set()
        """The numbers of all roots that have a deadline and have not ended."""

    def __iter__(self) -> Any:
        return iter([*self.running.values(), *self.resting.values(), *self.waiting])

    @property
    def waiting(self) -> list[Root]:
        """The roots that wait, the oldest first."""
        return sorted((root for queue in self._waiting.values() for root in queue), key=_age)

    def add(self, root: Root) -> None:
        """Add a root to the roots that wait to be admitted."""
        self._waiting.setdefault(self._operation(root), deque()).append(root)
        self._expect(root)

    def _expect(self, root: Root) -> None:
        """Remember the deadline of a root."""
        if root.deadline is not None:
            self._numbers.add(_age(root))
            heappush(self._due, (root.deadline, _age(root)))

    def _take(self, name: str) -> Root:
        """Remove the oldest waiting root of the operation ``name`` from its queue, and return it."""
        root = self._waiting[name].popleft()
        if not self._waiting[name]:
            del self._waiting[name]
        return root

    def admitted(self) -> list[Root]:
        """Return the roots that may begin now, and record them as running. Roots that share a request are united."""
        if not self._waiting:
            return []
        groups: list[list[Root]] = []
        joinable: dict[str, list[Root]] = {}
        """For each operation: the newest group of roots that will be united, if more roots may join this group. No root
        may join a group after a conflicting root was admitted."""
        sizes: dict[str, int] = {}
        """The number of bytes of each group in ``joinable``, by operation."""
        blocked: list[str] = []
        conflict = self._relation.conflict
        while heads := [(_age(queue[0]), name) for name, queue in self._waiting.items() if name not in blocked]:
            name = min(heads)[1]
            root = self._waiting[name][0]
            group = joinable.get(name)
            if (
                group is None
                or root.alone
                or not _joins(root, group, sizes[name])
                or any(conflict(name, o) for o in blocked)
            ):
                if not self._fits(root, name, blocked):
                    blocked.append(name)
                    continue
                group = []
                groups.append(group)
                sizes[name] = root.size
                self._count(root, 1)
            else:
                self._bytes += root.size
                sizes[name] += root.size
            group.append(self._take(name))
            for other in [other for other in joinable if other != name and conflict(other, name)]:
                del joinable[other]
            if self._unite is not None and self._shareable(name) > len(group) and not root.alone:
                joinable[name] = group
            else:
                joinable.pop(name, None)
        admitted = [group[0] if len(group) == 1 or self._unite is None else self._unite(group) for group in groups]
        self.running |= {root.attempt: root for root in admitted}
        return admitted

    def _fits(self, root: Root, name: str, blocked: list[str]) -> bool:
        """Return whether a root may run now. ``blocked``: the operations of roots that must wait."""
        count = sum(self._admitted.values())
        conflict = self._relation.conflict
        if any(conflict(name, other) for other in blocked):
            return False
        rivals = sum(count for other, count in self._admitted.items() if conflict(name, other))
        fits = not self._bytes or self._bytes + root.size <= limits.roots_running_bytes_max
        return rivals < limits.roots_rival_max and count < limits.roots_running_max and fits

    def _count(self, root: Root, sign: int) -> None:
        name = self._operation(root)
        self._admitted[name] = self._admitted.get(name, 0) + sign
        if not self._admitted[name]:
            del self._admitted[name]
        self._bytes += sign * root.size

    def rest(self, attempt: str) -> Root | None:
        """Record that a running try was wounded (asked to abort, so that an older root can continue). The root of the
        try then rests, and the result is None. But if the message ``heal`` came before the message ``wound``, the next
        try of the root begins, and the result is the root."""
        self.wounds += 1
        self.resting[attempt] = self.running.pop(attempt)
        return self.heal(attempt) if attempt in self._healed else None

    def heal(self, attempt: str) -> Root | None:
        """Handle the message ``heal`` for a try (execution of a root): the older instance has ended, so the root may
        continue. If the root rests, return the root: its next try runs from now on. Otherwise return None."""
        root = self.resting.pop(attempt, None)
        if root is None:
            if attempt in self.running:
                self._healed.add(attempt)
            return None
        self._healed.discard(attempt)
        root.tries += 1
        self.running[root.attempt] = root
        return root

    def end(self, root: Root) -> None:
        """Record that a root has ended, and remove its deadline. For a shared root, remove the deadlines of its parts
        (the roots that were united). If a part waits again, ``put_back`` adds the part's deadline again."""
        ran = [self.running.pop(root.attempt, None), self.resting.pop(root.attempt, None)]
        if any(ran):
            self._count(root, -1)
        self._healed.discard(root.attempt)
        for one in root.parts or [root]:
            self._numbers.discard(_age(one))

    def put_back(self, roots: list[Root]) -> None:
        """Put the parts of a shared root back into the queues of waiting roots, after the shared root has ended. Each
        queue stays sorted, the oldest root first."""
        for root in roots:
            self.add(root)
        for name in {self._operation(root) for root in roots}:
            self._waiting[name] = deque(sorted(self._waiting[name], key=_age))

    def keep(self, root: Root) -> None:
        """Remove the deadline of a root. From now on the root ends only when it has been computed."""
        for one in (root, *root.parts):
            one.deadline = None
            self._numbers.discard(_age(one))

    def late(self, now: float) -> list[Root]:
        """Return the roots whose deadline has passed. If such a root waits in a queue, remove it from this queue."""
        due = self.deadline()
        if due is None or due > now:
            return []
        late = [root for root in self if root.deadline is not None and root.deadline <= now]
        # All at once: thousands may have waited for one object that is down, and expire together.
        for name, queue in list(self._waiting.items()):
            left = deque(root for root in queue if root.deadline is None or root.deadline > now)
            if left:
                self._waiting[name] = left
            else:
                del self._waiting[name]
        return late

    def deadline(self) -> float | None:
        """Return the earliest deadline of all roots, or None if no root has one."""
        due = self._due
        while due and due[0][1] not in self._numbers:
            heappop(due)
        return due[0][0] if due else None

    # State.

    def dump(self) -> tuple[Any, Any, Any, list[str]]:
        """Return all roots as plain values. Also return the names of the tries (executions) for which the message
        ``heal`` came before the message ``wound``. The sequence of the roots is kept: if the deadlines of several roots
        pass at the same time, the roots end in this sequence."""
        return (
            [msgspec.to_builtins(root) for root in self.running.values()],
            [msgspec.to_builtins(root) for root in self.waiting],
            [(attempt, msgspec.to_builtins(root)) for attempt, root in self.resting.items()],
            sorted(self._healed),
        )

    def load(self, running: Any, waiting: Any, resting: Any, healed: list[str]) -> None:
        """Load the state from ``dump``."""
        self.running = {root.attempt: root for root in msgspec.convert(running, list[Root])}
        self.resting = {attempt: msgspec.convert(root, Root) for attempt, root in resting}
        self._healed = set(healed)
        for root in msgspec.convert(waiting, list[Root]):
            self.add(root)
        for root in [*self.running.values(), *self.resting.values()]:
            self._count(root, 1)
            for one in root.parts or [root]:
                self._expect(one)


def _joins(root: Root, group: list[Root], size: int) -> bool:
    """Return whether a root may be united with the roots of a group. ``size``: the number of bytes of the group."""
    # Roots that were put back because the time of another part was up must not be united with new roots, whose time
    # may be up just as early.
    alike = (root.tries > 1) == (group[0].tries > 1)
    return alike and size + root.size <= limits.shared_calls_bytes_max


def _age(root: Root) -> int:
    """Return the number that a root got at its home when it was started. The oldest root has the smallest number."""
    return root.number[2]


class Wounds:
    """A record of the roots that one object has asked to *make way*. Such a root must abort its present try (execution)
    and wait until an older instance has ended. The record also contains these older instances."""

    def __init__(self) -> None:
        self._asked: set[str] = set()
        """The tries (executions of roots) that still have an instance at this object, although they were asked to make
        way (to abort and wait)."""
        self._by: dict[str, list[tuple[int, str]]] = {}
        """For each instance at this object: the tries that were asked to make way for this instance (to abort, so that
        the instance can continue). Each try is a pair (home, name)."""

    def __contains__(self, attempt: str) -> bool:
        return attempt in self._asked

    def add(self, one: Instance, other: Instance) -> None:
        """Record that the root of ``other`` is asked to make way: to abort its present try, so that the older instance
        ``one`` can continue."""
        self._asked.add(other.root)
        self._by.setdefault(one.id, []).append((other.home, other.root))

    def healed(self, one: Instance, last: bool) -> list[tuple[int, str]]:
        """Record that an instance has ended. Return the tries that were asked to make way for this instance, as pairs
        (home, name). The roots of these tries may now continue. ``last``: whether the root of the ended instance has no
        other instance at this object."""
        if last:
            self._asked.discard(one.root)
        return self._by.pop(one.id, [])

    def dump(self) -> tuple[Any, Any]:
        """Return the state as plain values."""
        return sorted(self._asked), sorted(self._by.items())

    def load(self, asked: Any, by: Any) -> None:
        """Load the state from ``dump``."""
        self._asked = set(asked)
        self._by = {id_: [(home, attempt) for home, attempt in tries] for id_, tries in by}

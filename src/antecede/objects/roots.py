"""Wound–wait: the roots of one home, and the roots that an object has asked to make way.

The theorem of §3.3 is about messages. Instances can still wait for each other in a cycle: op1@i calls op2@j while op3@j
calls op4@i, with op1 ~ op4 and op2 ~ op3. So an object at which an older instance waits for one of a *younger* root
asks that root's home to abort it (``wound``). The home does, unless it has decided to commit. When the older instance
has ended, the object informs the home (``heal``), and the root is tried again with its old number. Then only younger
roots wait for older ones, and the oldest root is never wounded.

This is bookkeeping only: nothing here aborts an instance or sends a message.
"""

from typing import Any

import msgspec

from antecede import limits
from antecede.objects.instances import Instance, Root


class Roots:
    """The roots that users started at one object, until each has ended.

    A root *waits* until few enough others run: more would only wound each other. It *runs*: its present try
    is an instance in the table. Or it *rests*: it was wounded, and an immediate retry would conflict again.
    """

    def __init__(self) -> None:
        self.running: dict[str, Root] = {}
        """The running roots, by the name of the present try."""
        self.waiting: list[Root] = []
        self.resting: dict[str, Root] = {}
        """The resting roots, by the name of the try that was wounded."""
        self.started = 0
        """The number of roots so far."""
        self.wounds = 0
        """How many tries were wounded so far."""
        self._healed: set[str] = set()
        """Running tries that need not rest when they are wounded, because the message to continue came before the
        wound."""

    def __iter__(self) -> Any:
        return iter([*self.running.values(), *self.resting.values(), *self.waiting])

    def admitted(self) -> list[Root]:
        """Return the roots that may begin now, the oldest first. They run from now on."""
        free = max(limits.roots_running_max - len(self.running) - len(self.resting), 0)
        admitted, self.waiting = self.waiting[:free], self.waiting[free:]
        self.running |= {root.attempt: root for root in admitted}
        return admitted

    def rest(self, attempt: str) -> Root | None:
        """Record that a running try was wounded. Return the root if it may run again at once."""
        self.wounds += 1
        self.resting[attempt] = self.running.pop(attempt)
        return self.heal(attempt) if attempt in self._healed else None

    def heal(self, attempt: str) -> Root | None:
        """Record that the instance that wounded a try has ended. Return the root if it rested: its next try runs from
        now on."""
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
        """Record that a root, or its present try, has ended."""
        self.running.pop(root.attempt, None)
        self.resting.pop(root.attempt, None)
        self._healed.discard(root.attempt)

    def late(self, now: float) -> list[Root]:
        """Return the roots whose time is up; those among them that waited are removed."""
        late = [root for root in self if root.deadline is not None and root.deadline <= now]
        # All at once: thousands may have waited for one object that is down, and expire together.
        self.waiting = [root for root in self.waiting if root.deadline is None or root.deadline > now]
        return late

    def deadline(self) -> float | None:
        """Return the first deadline."""
        return min((root.deadline for root in self if root.deadline is not None), default=None)

    # State.

    def dump(self) -> tuple[Any, Any, Any, list[str]]:
        """Return all roots, and the tries that need not rest, as plain values."""
        return (
            [msgspec.to_builtins(root) for _, root in sorted(self.running.items())],
            [msgspec.to_builtins(root) for root in self.waiting],
            [(attempt, msgspec.to_builtins(root)) for attempt, root in sorted(self.resting.items())],
            sorted(self._healed),
        )

    def load(self, running: Any, waiting: Any, resting: Any, healed: list[str]) -> None:
        """Load the state from ``dump``."""
        self.running = {root.attempt: root for root in msgspec.convert(running, list[Root])}
        self.waiting = msgspec.convert(waiting, list[Root])
        self.resting = {attempt: msgspec.convert(root, Root) for attempt, root in resting}
        self._healed = set(healed)


class Wounds:
    """The wounds that one object has asked for."""

    def __init__(self) -> None:
        self._asked: set[str] = set()
        """Tries that were asked to make way and still have an instance here."""
        self._by: dict[str, list[tuple[int, str]]] = {}
        """For each instance here the tries that were asked to make way for it: home and try."""

    def __contains__(self, attempt: str) -> bool:
        return attempt in self._asked

    def add(self, one: Instance, other: Instance) -> None:
        """Record that the root of ``other`` is asked to make way for ``one``."""
        self._asked.add(other.root)
        self._by.setdefault(one.id, []).append((other.home, other.root))

    def healed(self, one: Instance, last: bool) -> list[tuple[int, str]]:
        """Record that an instance has ended. Return the home and the name of each try that may continue. ``last``: no
        other instance of its root is here."""
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

"""The members of a group: which of them get a call, and how their answers are combined into one (§2, §3.3)."""

from antecede.errors import ObjectError
from antecede.objects.instances import Answer, Made
from antecede.objects.model import Call


class Members:
    """A group in which each member is one object, called by its name."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def destination(self, call: Call) -> tuple[int, str]:
        """Return the members that a call is for, as a bit mask, and the name of the operation there. Raise an error if
        the call has no target, or an unknown one."""
        unknown = [name for name in call.targets if name not in self.names]
        if unknown or not call.targets:
            raise ObjectError(f"no object {unknown[0]!r}" if unknown else "a call without a target")
        return sum(1 << self.names.index(name) for name in set(call.targets)), call.operation

    def near(self, caller: str, operation: str, to: int) -> int:
        """Return the members to which this instance itself sends the call; here these are all called members (``to``).
        A subclass may return only some of them, if other replicas of the instance's object call the rest. ``caller``:
        the operation of the instance."""
        return to

    def united(self, made: Made, replies: dict[int, Answer]) -> Answer:
        """Combine the answers of all called members into one: a failure if there is one; the answer itself if there is
        only one; otherwise all results, by the names of their objects."""
        failed = next((answer for answer in replies.values() if not answer[0]), None)
        if failed is not None or len(replies) == 1:
            return failed or next(iter(replies.values()))
        return True, {self.names[member]: replies[member][1] for member in sorted(replies)}

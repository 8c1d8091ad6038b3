"""The members of a group: which of them get a call, and how their answers are combined into one (§2 and §3.3 of
Enokido, Higaki, Takizawa)."""

from antecede.errors import ObjectError
from antecede.objects.instances import Answer, Made
from antecede.objects.model import Call


class Members:
    """The members of a group in which each member is one object. A call names the objects that it goes to."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def destination(self, call: Call) -> tuple[int, str]:
        """Return two values: a bit mask of the members to which a call goes, and the name of the called operation at
        these members. Raise an error if the call has no target, or an unknown one."""
        unknown = [name for name in call.targets if name not in self.names]
        if unknown or not call.targets:
            raise ObjectError(f"no object {unknown[0]!r}" if unknown else "a call without a target")
        return sum(1 << self.names.index(name) for name in set(call.targets)), call.operation

    def near(self, caller: str, operation: str, to: int) -> int:
        """Return the members to which an instance sends its call. This class returns all called members (``to``). A
        subclass may leave out some of them, if other replicas of the calling object send the call to those members.
        ``caller``: the operation of the calling instance. ``operation``: the called operation."""
        return to

    def united(self, made: Made, replies: dict[int, Answer]) -> Answer:
        """Combine the answers of all called members into one answer. If an answer is a failure, return this failure. If
        there is only one answer, return it. Otherwise return a dictionary with all results, by the names of the
        objects."""
        failed = next((answer for answer in replies.values() if not answer[0]), None)
        if failed is not None or len(replies) == 1:
            return failed or next(iter(replies.values()))
        return True, {self.names[member]: replies[member][1] for member in sorted(replies)}

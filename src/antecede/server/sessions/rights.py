"""The rights of one session, and a cache of the authoriser's decisions about this session.

The session asks the authoriser about a list of destinations or about a sender, and stores the decision. Later it uses
the stored decision. When the access file is loaded again, the session forgets all decisions.
"""

from collections.abc import Callable, Collection
from sys import getsizeof
from typing import Final

from antecede import limits
from antecede.access import Authoriser, Refusal, Who
from antecede.access.authoriser import CALL, RECEIVE, SEND, SUBSCRIBE
from antecede.channel.letters import Letter, envelope_fault
from antecede.engine import name_of
from antecede.engine.agents import Subscribe, Unsubscribe
from antecede.errors import OverloadError, UsageError

Check = Callable[[tuple[str, ...]], tuple[str, ...]]
"""A function that returns destinations in their canonical form, or raises :class:`UsageError`."""


class Rights:
    """The rights of one session: what it may publish, and which letters it may receive."""

    __slots__ = (
        "_authoriser",
        "_check",
        "_decided",
        "_granted",
        "_rate",
        "_remembered",
        "_senders",
        "denied",
        "free",
        "who",
    )

    def __init__(self, authoriser: Authoriser, who: Who, check: Check) -> None:
        self._authoriser = authoriser
        self._check = check
        self.who = who
        self.free = authoriser.is_unrestricted(who)
        """Whether everything is allowed, so that nothing needs to be checked."""
        self.denied: Callable[[Refusal], None] = lambda refusal: None
        """A function that is called for each publish for which a permission is missing. It is not called for a publish
        that only exceeds the allowed rate."""
        self.forget()

    def forget(self) -> None:
        """Forget all decisions, because the access file was replaced."""
        self._granted: set[tuple[str, ...]] = set()
        """Destinations to which the session may send."""
        self._decided: dict[tuple[tuple[str, ...], str], Refusal | None] = {}
        """The decisions that are not in ``_granted``: all refusals, and all decisions about calls and subscriptions. A
        key is the pair (destinations, kind). For a call or a subscription, ``kind`` is the kind of the publish. For any
        other publish, ``kind`` is an empty text."""
        self._senders: dict[str, bool] = {}
        self._remembered = 0
        """The size of ``_granted``, ``_decided`` and ``_senders``, in bytes of memory."""
        self._rate = self._authoriser.rate(self.who)

    def refusal(self, to: tuple[str, ...], kind: str, bodies: list[bytes], now: float) -> Refusal | None:
        """Return why a publish is refused; None if it is allowed."""
        if to not in self._granted or kind in _special:
            refusal = self._decide(to, kind)
            if refusal is not None:
                self.denied(refusal)
                return refusal
        if self._rate is not None:
            exceeded = self._rate.take(len(bodies), sum(map(len, bodies)), now)
            if exceeded:
                return Refusal(OverloadError.code, f"{self.who.label} sends {exceeded}: try again later")
        return None

    def _decide(self, to: tuple[str, ...], kind: str) -> Refusal | None:
        if envelope_fault(to, kind):
            # The machine refuses it, whatever the permissions are. Nothing of it is matched or remembered.
            return None
        call = len(to) == 1 and to[0].endswith("()")
        place = (to, kind if call or kind in _special else "")
        if place in self._decided:
            return self._decided[place]
        refusal = self._examine(to, kind, call)
        self._make_room(*to, place[1], "" if refusal is None else refusal.reason)
        if refusal is None and not place[1]:
            self._granted.add(to)
        else:
            self._decided[place] = refusal
        return refusal

    def _examine(self, to: tuple[str, ...], kind: str, call: bool) -> Refusal | None:
        if call:
            return self._authoriser.refusal(self.who, CALL, f"{to[0].removesuffix('()')}.{kind}")
        try:
            to = self._check(to)
        except UsageError:
            # The machine refuses it, with the reason.
            return None
        action = SUBSCRIBE if kind in _special else SEND
        refusals = (self._authoriser.refusal(self.who, action, name) for name in to)
        return next((refusal for refusal in refusals if refusal is not None), None)

    def may_receive(self, letter: Letter) -> bool:
        """Return whether the session may get this letter. An answer to a question of the session is always allowed."""
        if self.free or letter.answers:
            return True
        allowed = self._senders.get(letter.source)
        if allowed is None:
            allowed = self._authoriser.allows(self.who, RECEIVE, letter.source)
            self._make_room(letter.source)
            self._senders[letter.source] = allowed
        return allowed

    def _make_room(self, *texts: str) -> None:
        """Count a decision that contains these texts. Forget all earlier decisions if they become too large."""
        size = sum(map(getsizeof, texts), _decision_bytes)
        self._remembered += size
        if self._remembered > limits.permissions_cached_bytes_max:
            self._granted.clear()
            self._decided.clear()
            self._senders.clear()
            self._remembered = size


def with_forbidden(handed: list[str], forbidden: Collection[str], letters: list[str]) -> list[str]:
    """Complete a client's report: return the reported letters, together with the forbidden letters before and between
    them. If the report is wrong, return an empty list.

    ``handed``: the session's letters that are not reported yet, in sequence. ``forbidden``: the letters that the client
    may not receive. The server does not send them, so the client cannot report them. ``letters``: the letters that the
    client reports as handled. The report must begin with the first letter in ``handed`` that is not forbidden. It
    may leave out forbidden letters, but no others. Example: ``handed`` is a, b, c, d, and b is forbidden. If the client
    reports a and c, the result is a, b, c.
    """
    place = 0
    for id_ in letters:
        while place < len(handed) and handed[place] in forbidden:
            place += 1
        if place == len(handed) or handed[place] != id_:
            return []
        place += 1
    return handed[:place]


_decision_bytes: Final = 300
"""The memory of one decision besides its texts: entries of dictionaries, tuples and a refusal."""
_special: Final = frozenset({name_of(Subscribe), name_of(Unsubscribe)})
"""Notifications that need the permission to subscribe."""

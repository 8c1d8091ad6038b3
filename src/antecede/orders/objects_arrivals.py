"""The arrivals at an object: up to which time have all messages from each member arrived?

Every member numbers its messages to each other member, and its clock rises with every send. Let k be a member. As soon
as its messages 1 … s to us have arrived, we have everything that k sent to us up to the time of message s. A heartbeat
(packet ``clock``) from k contains two numbers: the number s of messages that k had sent to us, and k's time c. As soon
as these s messages have arrived, we have everything up to the time c, because k's later messages have later times
(Enokido, Higaki, Takizawa §4.3; in the paper, a null message has its own number, which is equivalent).

An object needs no heartbeats from itself: it knows which of its messages to itself are still in transit.
"""

from typing import Any


class Arrivals:
    """A record of the messages and heartbeats that have arrived from each member. They may arrive in any sequence."""

    def __init__(self, me: int, members: int) -> None:
        self.me = me
        self.whole = [0] * members
        """For each member: the largest s such that its messages 1 … s have all arrived."""
        self.known = [0] * members
        """For each member: the time up to which all its messages have arrived (not used for messages to ourselves)."""
        self._beyond: dict[tuple[int, int], int] = {}
        """Messages that arrived, although an earlier message of their sender is missing: (member, number) → time."""
        self._early_times: list[tuple[int, int, int]] = []
        """Heartbeats that cannot be used yet, because some earlier message of the same member has not arrived. Each
        heartbeat is (member, the number of messages that the member had sent to us, the member's time)."""
        self._own: dict[int, int] = {}
        """Our messages to ourselves that have not arrived yet: number → time."""

    def post_own(self, number: int, time: int) -> None:
        """Record that we send a message to ourselves."""
        self._own[number] = time

    def is_new(self, source: int, number: int) -> bool:
        """Return whether this message has not arrived before."""
        return number > self.whole[source] and (source, number) not in self._beyond

    def take(self, source: int, number: int, time: int) -> bool:
        """Record a new message. Return whether ``known`` has increased for the sender. For a message from ourselves,
        always return True, because ``known`` is not used then."""
        if source == self.me:
            self._own.pop(number, None)
        self._beyond[source, number] = time
        before = self.known[source]
        while (reached := self._beyond.pop((source, self.whole[source] + 1), None)) is not None:
            self.whole[source] += 1
            self.known[source] = max(self.known[source], reached)
        for early in [t for t in self._early_times if t[0] == source and t[1] <= self.whole[source]]:
            self._early_times.remove(early)
            self.known[source] = max(self.known[source], early[2])
        return self.known[source] > before or source == self.me

    def receive_time(self, source: int, count: int, time: int) -> tuple[bool, bool]:
        """Record a heartbeat. Return two answers: whether the heartbeat contains anything new, and whether ``known``
        has increased for the sender."""
        if count > self.whole[source]:
            if (source, count, time) in self._early_times:
                return False, False
            self._early_times.append((source, count, time))
            return True, False
        if time <= self.known[source]:
            return False, False
        self.known[source] = time
        return True, True

    def reached(self, member: int, time: int) -> bool:
        """Return whether all messages that this member sent to us up to this time have arrived."""
        if member == self.me:
            return all(own > time for own in self._own.values())
        return self.known[member] >= time

    def dump(self) -> Any:
        """Return the state as plain values."""
        beyond = [(*key, time) for key, time in sorted(self._beyond.items())]
        return (self.whole, self.known, beyond, sorted(self._early_times), sorted(self._own.items()))

    def load(self, state: Any) -> None:
        """Restore the state that ``dump`` returned."""
        whole, known, beyond, early_times, own = state
        self.whole, self.known = list(whole), list(known)
        self._beyond = {(source, number): time for source, number, time in beyond}
        self._early_times = [(source, count, time) for source, count, time in early_times]
        self._own = dict(own)

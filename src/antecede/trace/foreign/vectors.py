"""Logs with a vector clock on every event (ShiViz, GoVector): who must have heard from whom?

An entry V(e)[q] says that e knows all of q's events up to the one whose own entry is V(e)[q]. Where an event of h is
the first of h to know an event of q, something carried that knowledge there: a message from q's event, or from another
event that knew it already. We tie in a message for each *cross edge*, as ShiViz draws them: from the last newly known
event of q, unless another newly known event, of a third host, knows it too. These edges and the hosts' own order are
exactly what the vectors state, reduced to what does not follow from the rest; recomputing the clocks from them must
give the recorded ones, and ``verify`` does so.

An entry may name an own entry that nobody logged, as some loggers skip events. It then stands for the last logged event
before it, and is counted.

Vector clocks alone can show no late delivery: a message that was overtaken brings nothing new when it arrives, so it
leaves no edge. The text of each event is kept, for the person who knows what it means.
"""

from bisect import bisect_right

from antecede import limits
from antecede.errors import TraceError
from antecede.trace.foreign.files import ForeignFile
from antecede.trace.foreign.patterns import Pattern, Said
from antecede.trace.foreign.weave import Moment, Woven
from antecede.trace.schema import INT64_MAX


class ClockedLog:
    """Collects logged events and finds the messages between them."""

    def __init__(self) -> None:
        self._hosts: dict[str, dict[int, Said]] = {}
        self.events = 0
        self.unlogged = 0
        """Clock entries that name an event which no log has."""
        self._entries = 0

    def read(self, file: ForeignFile, pattern: Pattern) -> None:
        """Take in one log."""
        for said in pattern.read(file.lines()):
            if not isinstance(said, Said):
                file.unreadable(*said)
                continue
            own = self._hosts.setdefault(said.host, {})
            if own.setdefault(said.clock[said.host], said) is not said:
                file.unreadable(said.line, f"{said.host[:40]!r} has another event {said.clock[said.host]}")
                continue
            self.events += 1
            self._entries += len(said.clock)
            if self.events > limits.foreign_events_max or self._entries > limits.foreign_clock_entries_max:
                raise TraceError(f"{file.name}:{said.line}: more events or clock entries than one import can hold")

    def weave(self) -> Woven:
        """The trace that the logs tell."""
        owns = {host: sorted(events) for host, events in self._hosts.items()}
        lines = {host: [_moment(self._hosts[host][own]) for own in own_entries] for host, own_entries in owns.items()}
        for host in sorted(lines):
            known: dict[str, int] = {}
            for moment in lines[host]:
                new = self._newly_known(host, moment, known, owns)
                known.update(new)
                for other, count in sorted(new.items()):
                    source = lines[other][count - 1]
                    if not self._implied(other, count, new, lines, owns):
                        message = f"{other}:{owns[other][count - 1]}->{host}"
                        source.give(message, host)
                        moment.take(message)
        return Woven(lines)

    def _newly_known(
        self, host: str, moment: Moment, known: dict[str, int], owns: dict[str, list[int]]
    ) -> dict[str, int]:
        """For each other host of which this event knows more than its own host did, how many events it knows."""
        new = {}
        assert moment.clock is not None
        for other, entry in moment.clock.items():
            if other == host or not entry:
                continue
            logged = owns.get(other)
            count = bisect_right(logged, entry) if logged else 0
            if not logged or not count or logged[count - 1] != entry:
                self.unlogged += 1
            if count > known.get(other, 0):
                new[other] = count
        return new

    def _implied(
        self, host: str, count: int, new: dict[str, int], lines: dict[str, list[Moment]], owns: dict[str, list[int]]
    ) -> bool:
        """Whether another of the newly known events knows that many events of the host."""
        last = owns[host][count - 1]
        clocks = (lines[third][position - 1].clock or {} for third, position in new.items() if third != host)
        return any(clock.get(host, 0) >= last for clock in clocks)


def _moment(said: Said) -> Moment:
    stamp = said.more.get("timestamp", "")
    # As TSViz and GoVector write it: nanoseconds by the clock of the host.
    time = int(stamp) if stamp.isascii() and stamp.isdigit() and len(stamp) <= 19 else None
    return Moment(said, time if time is None or time <= INT64_MAX else None, said.clock)

"""What happened in a played scenario: as a trace, as a drawing, and as sentences.

Events are kept in the one sequence in which they were played. A copy's stop on a detour (at a coordinator, at a router)
is no event of the application: a router notes it as a ``hop`` row of the trace, and the drawing shows it as a point.
"""

import msgspec

from antecede.diagram import Diagram
from antecede.diagram import Event as Mark
from antecede.trace import ARRIVE, DELIVER, HOP, SEND, Event, Verdict, judge

_judged_messages_max = 5_000


class Record:
    """The history of one play."""

    def __init__(self, processes: tuple[str, ...]) -> None:
        self.processes = processes
        self.events: list[Event] = []
        """The trace, in the sequence played."""
        self.delivered: dict[str, list[str]] = {process: [] for process in processes}
        """What each application was given, in sequence."""
        self.story: list[tuple[int, str]] = []
        """Sentences, each with the line of the file that caused it."""
        self._marks: list[Mark] = []
        self._indices = dict.fromkeys(processes, 0)
        self._hops = dict.fromkeys(processes, 0)
        self._messages = 0
        self.line = 0

    def tell(self, sentence: str) -> None:
        """Note a sentence under the line that is being played."""
        self.story.append((self.line, sentence))

    def sent(self, process: str, message: str, to: tuple[str, ...], stamp_bytes: int | None) -> None:
        self._messages += 1
        self._add(process, SEND, message, tuple(sorted(to)), stamp_bytes)
        self._marks.append(Mark(process, SEND, message, to))
        self.tell(f"{process} sends {message} to {', '.join(to)}")

    def arrived(self, process: str, message: str, stamp_bytes: int) -> None:
        self._add(process, ARRIVE, message, None, stamp_bytes)
        self._marks.append(Mark(process, ARRIVE, message))
        self.tell(f"{message} arrives at {process}")

    def passed(self, process: str, message: str) -> None:
        """A copy stops on its way at a process that it is not for."""
        self._marks.append(Mark(process, "local", label=f"({message})"))
        self.tell(f"{message} passes through {process}")

    def hopped(self, server: str, message: str, domain: str, hop: int, stamp_bytes: int | None) -> None:
        """A router has sent a message on into its next domain."""
        index = self._hops[server]
        self._hops[server] += 1
        row = Event(server, index, HOP, message, stamp_bytes=stamp_bytes, domain=domain, hop=hop)
        self.events.append(row)
        self.tell(f"{server} sends {message} on in domain {domain}")

    def deliver(self, process: str, message: str) -> None:
        self._add(process, DELIVER, message, None, None)
        self._marks.append(Mark(process, DELIVER, message))
        self.delivered[process].append(message)
        self.tell(f"{process} delivers {message}")

    def fate(self, process: str, word: str) -> None:
        """A crash or a restart."""
        self._marks.append(Mark(process, "local", label=word))
        self.tell(f"{process}: {word}")

    def _add(self, process: str, kind: str, message: str, to: tuple[str, ...] | None, stamp_bytes: int | None) -> None:
        index = self._indices[process]
        self._indices[process] += 1
        self.events.append(Event(process, index, kind, message, to, stamp_bytes=stamp_bytes))

    def judge(self) -> Verdict | None:
        """Which orders the computation kept, judged from its events alone; nothing if it is too long for that."""
        if self._messages > _judged_messages_max:
            return None
        # An order that does not notice duplicates may deliver one; only the first delivery is judged.
        seen: set[tuple[str, str | None]] = set()
        rows = []
        for event in self.events:
            if event.kind == DELIVER and (event.process, event.message) in seen:
                event = msgspec.structs.replace(event, kind="local")
            elif event.kind == DELIVER:
                seen.add((event.process, event.message))
            rows.append(event)
        return judge(rows)

    def diagram(self, title: str = "") -> Diagram:
        """The computation, to be drawn; late deliveries are marked."""
        verdict = self.judge()
        late = {(found.message, found.to) for found in verdict.causal} if verdict else set()
        return Diagram(self.processes, self._marks, late=late, title=title)

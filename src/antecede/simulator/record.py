"""The history of a played scenario: as a trace, as a drawing, and as sentences.

Events are kept in the sequence in which they were played. A copy of a message may pass through a process that is not
its destination, for example a coordinator or a router. The application of that process does not see the copy. The
drawing shows only a point there. If the process is a router, the trace also has a ``hop`` row.
"""

import msgspec

from antecede.diagram import Diagram
from antecede.diagram import Event as Mark
from antecede.messages import Message, mask_of
from antecede.simulator.recorder import Recorder
from antecede.trace import ARRIVE, DELIVER, SEND, Event, Verdict, judge

_judged_messages_max = 5_000


class Record:
    """The history of one play of a scenario: its trace, its deliveries, its drawing, and the sentences that describe it
    in words."""

    def __init__(self, processes: tuple[str, ...]) -> None:
        self.processes = processes
        self.events: list[Event] = []
        """The rows of the trace, in the sequence in which the events were played."""
        self.delivered: dict[str, list[str]] = {process: [] for process in processes}
        """The messages that each application received, in sequence."""
        self.story: list[tuple[int, str]] = []
        """The history, as pairs: the number of a line in the scenario file, and a sentence about an event that this
        line caused."""
        self.line = 0
        # Rows name destinations in the sequence of these names.
        self._rows = Recorder(sorted(processes), self.events.append)
        self._numbers = {name: number for number, name in enumerate(self._rows.names)}
        self._marks: list[Mark] = []
        self._messages = 0

    def add_sentence(self, sentence: str) -> None:
        """Add a sentence to ``story``, with the number of the current line of the scenario file."""
        self.story.append((self.line, sentence))

    def sent(self, process: str, message: str, to: tuple[str, ...], sizes: list[int]) -> None:
        self._messages += 1
        self._rows.sent(self._numbers[process], self._message(message, to), sizes, None)
        self._marks.append(Mark(process, SEND, message, to))
        self.add_sentence(f"{process} sends {message} to {', '.join(to)}")

    def _message(self, message: str, to: tuple[str, ...] = ()) -> Message:
        return Message(message, 0, mask_of(map(self._numbers.__getitem__, to)))

    def arrived(self, process: str, message: str, stamp_bytes: int) -> None:
        self._rows.arrived(self._numbers[process], self._message(message), stamp_bytes, None)
        self._marks.append(Mark(process, ARRIVE, message))
        self.add_sentence(f"{message} arrives at {process}")

    def dropped(self, process: str, message: str) -> None:
        """Record a duplicate: the link or the order dropped the copy that has just arrived."""
        if self._marks and self._marks[-1] == Mark(process, ARRIVE, message):
            self._marks[-1] = Mark(process, "drop", message)

    def passed(self, process: str, message: str) -> None:
        """Record that a copy passes through a process that is not its destination."""
        self._marks.append(Mark(process, "local", label=f"({message})"))
        self.add_sentence(f"{message} passes through {process}")

    def hopped(self, server: str, message: str, domain: str, hop: int, sizes: list[int]) -> None:
        """Record that a router has forwarded a message into its next domain."""
        self._rows.hopped(self._numbers[server], self._message(message), domain, hop, sizes, None)
        self.add_sentence(f"{server} forwards {message} in domain {domain}")

    def deliver(self, process: str, message: str) -> None:
        self._rows.delivered(self._numbers[process], self._message(message), None)
        self._marks.append(Mark(process, DELIVER, message))
        self.delivered[process].append(message)
        self.add_sentence(f"{process} delivers {message}")

    def note(self, process: str, word: str) -> None:
        """Record a crash or a restart."""
        self._marks.append(Mark(process, "local", label=word))
        self.add_sentence(f"{process}: {word}")

    def judge(self) -> Verdict | None:
        """Return a verdict about the trace: which orders (FIFO, causal order and others) it keeps. Return None if there
        are too many messages to judge."""
        if self._messages > _judged_messages_max:
            return None
        # An order that does not detect duplicates may deliver one; only the first delivery is judged.
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
        """Return a drawing of all events. In the drawing, deliveries that break causal order are marked as late. If
        there are too many messages to judge, no delivery is marked."""
        verdict = self.judge()
        late = {(found.message, found.to) for found in verdict.causal} if verdict else set()
        return Diagram(self.processes, self._marks, late=late, title=title)

"""The scope of an exploration: which messages may be sent, and how links behave.

A scope may have a *program*: for each process, a list of sends, which the process makes in sequence. A send may have to
wait until the process has delivered a given number of messages. If there is no program, any process may send a message
at any moment, up to a total number of messages. In this case the *mode* determines which sets of destinations a message
may have. Everything else is open, and the explorer tries all possibilities: which process acts next, and which packet
in flight arrives next.

A message is named by its sender and its number among the sender's messages. So the names do not depend on the sequence
of independent events. The *bit* of a message is its position in bit masks of messages.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from antecede import limits
from antecede.documents import read_bytes
from antecede.errors import ScenarioError, UsageError
from antecede.messages import Message, mask_of

_word = re.compile(r"[A-Za-z0-9_.-]+")

MODES = ("unicast", "multicast", "broadcast")


class ProgramSend(msgspec.Struct, frozen=True):
    """One send of a given program."""

    to: int
    """The destinations, as a bit mask of processes."""
    after: int = 0
    """The number of deliveries that the sending process must have made before this send."""
    name: str = ""


Program = tuple[tuple[ProgramSend, ...], ...]
"""A program: for each process, its sends in sequence."""


class Scope(msgspec.Struct, frozen=True):
    """The bounds of one exploration: the number of processes, the messages that they may send, and the behaviour of the
    links."""

    processes: int
    messages: int
    mode: str = "unicast"
    to_self: bool = False
    fifo_links: bool = False
    duplicates: bool = False
    program: Program | None = None
    process_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.processes <= limits.explorer_processes_max:
            raise UsageError(f"{self.processes} processes: expected 1 to {limits.explorer_processes_max}")
        if not 1 <= self.messages <= limits.explorer_messages_max:
            raise UsageError(f"{self.messages} messages: expected 1 to {limits.explorer_messages_max}")
        if self.mode not in MODES:
            raise UsageError(f"mode {self.mode!r}: expected one of {', '.join(MODES)}")
        if self.program is None and self.processes == 1 and not self.to_self:
            raise UsageError("1 process cannot send to others: expected 2 or more processes, or --self")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the processes."""
        return self.process_names or tuple(f"P{number + 1}" for number in range(self.processes))

    def __str__(self) -> str:
        what = f"up to {self.messages} {self.mode} messages"
        if self.program is not None:
            what = f"a program of {sum(map(len, self.program))} messages"
        details = {
            "to oneself, too": self.to_self and self.program is None,
            "on FIFO links": self.fifo_links,
            "each packet twice": self.duplicates,
        }
        between = f"{what} between {self.processes} processes"
        return ", ".join([between, *(words for words, holds in details.items() if holds)])

    def destinations(self, source: int) -> list[int]:
        """Return all sets of destinations that a message of ``source`` may have, each as a bit mask."""
        everyone = (1 << self.processes) - 1
        others = everyone & ~(1 << source)
        if self.mode == "broadcast":
            return [others, everyone] if self.to_self and others else [others or everyone]
        allowed = everyone if self.to_self else others
        subsets = [mask for mask in range(1, everyone + 1) if not mask & ~allowed]
        return [mask for mask in subsets if mask.bit_count() == 1] if self.mode == "unicast" else subsets

    def next_send(self, source: int, accepted: int, delivered: int) -> ProgramSend | None:
        """Return the next send of a process that has made ``accepted`` sends and ``delivered`` deliveries; None if the
        next send must wait for more deliveries, or all sends have been made."""
        assert self.program is not None
        sends = self.program[source]
        if accepted < len(sends) and sends[accepted].after <= delivered:
            return sends[accepted]
        return None

    def bit(self, source: int, number: int) -> int:
        """Return the position of a message of ``source`` in bit masks of messages (its *bit*). ``number``: the number
        of the message among the messages of ``source``, from 0."""
        return source * self.messages + number

    def message(self, source: int, number: int, to: int) -> Message:
        """Return a message of ``source`` to the destinations ``to``. ``number``: the number of the message among the
        messages of ``source``, from 0."""
        return Message(f"{source}.{number}", source, to)

    def bit_of(self, id_: str) -> int:
        """Return the position of the message with this id in bit masks of messages (its *bit*)."""
        source, _, number = id_.partition(".")
        return self.bit(int(source), int(number))


class ProgramFile(NamedTuple):
    """The content of a program file: the names of the processes, and the sends of each process."""

    processes: tuple[str, ...]
    program: Program


def read_program(path: str) -> ProgramFile:
    """Read a program: a scenario file that has only ``processes`` and ``send M FROM -> TO[,TO…] [after K]`` lines."""
    # Bytes that are not text are an error of their line.
    text = read_bytes(path, limits.scenario_bytes_max).decode("utf-8", "replace")
    names: tuple[str, ...] = ()
    sends: Mapping[str, list[ProgramSend]] = {}
    used: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if words[0] == "processes" and not names:
            names = tuple(words[1:])
            most = limits.explorer_processes_max
            if not 1 <= len(set(names)) == len(names) <= most or not all(map(_word.fullmatch, names)):
                raise ScenarioError(
                    path, number, f"expected 1 to {most} different process names, each only with letters, digits, _ . -"
                )
            sends = {name: [] for name in names}
            continue
        source, send = _read_send(path, number, words, names)
        if send.name in used:
            raise ScenarioError(path, number, f"{send.name} is sent twice: expected a different name in each send line")
        used.add(send.name)
        sends[source].append(send)
    if not used:
        raise ScenarioError(path, 0, "the file has no sends: expected a processes line, then send lines")
    return ProgramFile(names, tuple(tuple(sends[name]) for name in names))


def _read_send(path: str, line: int, words: Sequence[str], names: Sequence[str]) -> tuple[str, ProgramSend]:
    timed = len(words) == 7 and words[5] == "after" and re.fullmatch(r"[0-9]{1,4}", words[6]) is not None
    if words[0] != "send" or not (len(words) == 5 or timed) or words[3] != "->":
        raise ScenarioError(
            path, line, "expected first the line 'processes P…', then only lines 'send M FROM -> TO[,TO…] [after K]'"
        )
    targets = words[4].split(",")
    if not _word.fullmatch(words[1]):
        raise ScenarioError(path, line, f"{words[1]!r} is not a name for a message: use only letters, digits, _ . -")
    for name in (words[2], *targets):
        if name not in names:
            raise ScenarioError(path, line, f"unknown process {name}: expected a name from the processes line")
    to = mask_of(names.index(target) for target in targets)
    return words[2], ProgramSend(to, int(words[6]) if timed else 0, words[1])

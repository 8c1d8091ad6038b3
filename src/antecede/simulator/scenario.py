"""Scenario files: a computation written down line by line, as in the figures of the papers.

One statement a line, words separated by blanks, ``#`` begins a comment anywhere. Declarations (``processes``,
``domain``, ``order``, ``control manual``) count for the whole file, wherever they stand; everything else happens in the
sequence of the file. ``docs/guide/scenarios.md`` is the language for people; this module turns the bytes of a file into
typed statements with line numbers, and any bytes that are no scenario into a :class:`ScenarioError` that names the
line. It must not know how a scenario is played.
"""

import re
from collections.abc import Callable
from pathlib import Path

from antecede import limits
from antecede.errors import AntecedeError, OrderError, ScenarioError, UsageError
from antecede.messages import COPY
from antecede.orders import OrderSpec, find, names, parse
from antecede.simulator.statements import (
    GUARANTEES,
    ArriveLine,
    CrashLine,
    DomainLine,
    DrainLine,
    ExpectDelivered,
    ExpectHolds,
    ExpectNotSent,
    ExpectRefused,
    ExpectStuck,
    LoseLine,
    Parcel,
    ReceiveLine,
    RestartLine,
    Scenario,
    SendLine,
    Statement,
    Under,
    WaitLine,
)


def read(path: str) -> Scenario:
    """The scenario in a file."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(limits.scenario_bytes_max + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return parse_scenario(data, path)


def parse_scenario(data: bytes, file: str) -> Scenario:
    """The scenario in these bytes; ``file`` names them in errors."""
    if len(data) > limits.scenario_bytes_max:
        line = data.count(b"\n", 0, limits.scenario_bytes_max) + 1
        raise ScenarioError(file, line, f"a scenario has at most {limits.scenario_bytes_max} bytes, and this has more")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ScenarioError(file, data.count(b"\n", 0, error.start) + 1, "expected text in UTF-8") from None
    return _Reader(file, text.split("\n")).scenario()


_name = re.compile(r"[A-Za-z0-9_.-]+")
_control = re.compile(r"([a-z][a-z-]*)\(([^(),]*)(?:,([^(),]*))?\)")
_seconds = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_setting_length_max = 64


class _Fault(Exception):
    """What is wrong with a line; the reader knows which."""


class _Reader:
    """Reads the lines of one file."""

    def __init__(self, file: str, lines: list[str]) -> None:
        self.file = file
        self.lines = lines
        self.processes: dict[str, int] = {}
        self.domains: list[DomainLine] = []
        self.order: OrderSpec | None = None
        self.order_line = 0
        self.manual = False
        self.statements: list[Statement] = []
        self.sends: dict[str, int] = {}
        self._readers: dict[str, Callable[[int, list[str]], None]] = {
            "processes": self._processes,
            "domain": self._domain,
            "order": self._order,
            "control": self._control,
            "send": self._send,
            "arrive": self._arrive,
            "lose": self._lose,
            "receive": self._receive,
            "drain": self._drain,
            "wait": self._wait,
            "crash": self._crash,
            "restart": self._restart,
            "expect": self._expect,
        }

    def scenario(self) -> Scenario:
        for number, text in enumerate(self.lines, 1):
            # An arrow may touch its names, and lists and control packets may have blanks inside.
            bare = text.partition("#")[0].replace("->", " -> ")
            words = re.sub(r"(?<=\()\s+|\s+(?=\))", "", re.sub(r"\s*,\s*", ",", bare)).split()
            if not words:
                continue
            try:
                self._statement(number, words)
            except (_Fault, OrderError) as fault:
                raise ScenarioError(self.file, number, str(fault)) from None
        if not self.processes:
            raise ScenarioError(self.file, len(self.lines), "no processes: expected a line like processes P1 P2 P3")
        for statement in self.statements:
            self._check_names(statement)
        return Scenario(
            self.file,
            tuple(self.processes),
            tuple(self.domains),
            self.order,
            self.order_line,
            self.manual,
            tuple(self.statements),
            tuple(self.lines),
        )

    def _statement(self, line: int, words: list[str]) -> None:
        reader = self._readers.get(words[0])
        if reader is None:
            raise _Fault(f"unknown statement {_shown(words[0])}: expected one of {', '.join(self._readers)}")
        reader(line, words[1:])

    # Declarations.

    def _processes(self, line: int, words: list[str]) -> None:
        if not words:
            raise _Fault("expected processes NAME NAME …")
        for word in words:
            if word in self.processes:
                raise _Fault(f"process {_shown(word)} is named twice")
            self._add_process(word, line)

    def _add_process(self, name: str, line: int) -> None:
        self.processes.setdefault(_named(name), line)
        if len(self.processes) > limits.scenario_processes_max:
            raise _Fault(f"a scenario has at most {limits.scenario_processes_max} processes")

    def _domain(self, line: int, words: list[str]) -> None:
        if len(words) < 2:
            raise _Fault("expected domain NAME SERVER SERVER … [order]")
        name, *servers = words
        order: OrderSpec | None = None
        last = servers[-1].removeprefix("[").removesuffix("]")
        if ":" in last or last in names():
            order = _order_of(last)
            servers.pop()
        if any(domain.name == name for domain in self.domains):
            raise _Fault(f"domain {_shown(name)} is named twice")
        if not servers or len(set(servers)) < len(servers):
            raise _Fault("expected domain NAME SERVER SERVER … [order], each server once")
        for server in servers:
            self._add_process(server, line)
        self.domains.append(DomainLine(line, _named(name), tuple(servers), order))
        if len(self.domains) > limits.scenario_processes_max:
            raise _Fault(f"a scenario has at most {limits.scenario_processes_max} domains")

    def _order(self, line: int, words: list[str]) -> None:
        if not words:
            raise _Fault("expected order NAME key=value …")
        if self.order is not None:
            raise _Fault(f"the order is already chosen in line {self.order_line}")
        options: dict[str, object] = {}
        for word in words[1:]:
            key, equals, value = word.partition("=")
            if not equals or len(word) > _setting_length_max:
                raise _Fault(f"expected key=value, not {_shown(word)}")
            options[key] = value
        self.order = OrderSpec(find(words[0]), options)
        self.order.sample()
        self.order_line = line

    def _control(self, line: int, words: list[str]) -> None:
        if words != ["manual"]:
            raise _Fault("expected control manual")
        self.manual = True

    # What happens.

    def _send(self, line: int, words: list[str]) -> None:
        if len(words) < 4 or words[2] != "->":
            raise _Fault("expected send MESSAGE FROM -> TO[,TO…]")
        message, source = words[:2]
        to = [part.strip() for part in " ".join(words[3:]).split(",")]
        if message in self.sends:
            raise _Fault(f"message {_shown(message)} is already sent in line {self.sends[message]}")
        self.sends[_named(message)] = line
        if message == "under":
            raise _Fault("no message can be called under: expectations use the word")
        self.statements.append(SendLine(line, message, _named(source), tuple(dict.fromkeys(map(_named, to)))))

    def _arrive(self, line: int, words: list[str]) -> None:
        again = len(words) == 3 and words[2] == "again"
        if len(words) != 2 + again:
            raise _Fault("expected arrive MESSAGE AT [again], or arrive KIND(MESSAGE,FROM) AT [again]")
        self.statements.append(ArriveLine(line, _parcel(words[0]), _named(words[1]), again))

    def _lose(self, line: int, words: list[str]) -> None:
        if len(words) != 2:
            raise _Fault("expected lose MESSAGE AT, or lose KIND(MESSAGE,FROM) AT")
        self.statements.append(LoseLine(line, _parcel(words[0]), _named(words[1])))

    def _receive(self, line: int, words: list[str]) -> None:
        if len(words) not in (1, 3) or words[1:2] not in ([], ["from"]):
            raise _Fault("expected receive PROCESS [from PROCESS]")
        source = _named(words[2]) if len(words) == 3 else None
        self.statements.append(ReceiveLine(line, _named(words[0]), source))

    def _drain(self, line: int, words: list[str]) -> None:
        if words:
            raise _Fault("expected drain, and nothing else in the line")
        self.statements.append(DrainLine(line))

    def _wait(self, line: int, words: list[str]) -> None:
        if len(words) != 1 or not _seconds.fullmatch(words[0]):
            raise _Fault("expected wait SECONDS")
        seconds = float(words[0])
        if seconds > limits.scenario_wait_seconds_max:
            raise _Fault(f"expected at most {limits.scenario_wait_seconds_max} seconds")
        self.statements.append(WaitLine(line, seconds))

    def _crash(self, line: int, words: list[str]) -> None:
        self.statements.append(CrashLine(line, self._one_process("crash", words)))

    def _restart(self, line: int, words: list[str]) -> None:
        self.statements.append(RestartLine(line, self._one_process("restart", words)))

    def _one_process(self, keyword: str, words: list[str]) -> str:
        if len(words) != 1:
            raise _Fault(f"expected {keyword} PROCESS")
        return _named(words[0])

    # What is expected.

    def _expect(self, line: int, words: list[str]) -> None:
        under = Under()
        if "under" in words:
            place = len(words) - 1 - words[::-1].index("under")
            under = _under(words[place + 1 :])
            words = words[:place]
        if words == ["stuck"]:
            self.statements.append(ExpectStuck(line, under))
        elif words[1:] == ["not", "sent"]:
            self.statements.append(ExpectNotSent(line, under, _named(words[0])))
        elif words[1:] == ["refused"]:
            self.statements.append(ExpectRefused(line, under, _named(words[0])))
        elif words[1:2] == ["delivered"]:
            self.statements.append(ExpectDelivered(line, under, _named(words[0]), tuple(map(_named, words[2:]))))
        elif words[1:2] == ["holds"] and len(words) > 2:
            self.statements.append(ExpectHolds(line, under, _named(words[0]), tuple(map(_named, words[2:]))))
        else:
            raise _Fault(
                "expected one of: expect P delivered a b c · expect P holds m · expect M not sent · "
                "expect M refused · expect stuck, each perhaps with under NAME[,NAME…]"
            )

    # Names.

    def _check_names(self, statement: Statement) -> None:
        processes: tuple[str | None, ...] = ()
        messages: tuple[str, ...] = ()
        match statement:
            case SendLine():
                processes = (statement.source, *statement.to)
            case ArriveLine() | LoseLine():
                processes = (statement.at, statement.parcel.source or None)
                messages = (statement.parcel.message,) if statement.parcel.message else ()
            case ReceiveLine():
                processes = (statement.process, statement.source)
            case CrashLine() | RestartLine():
                processes = (statement.process,)
            case ExpectDelivered() | ExpectHolds():
                processes, messages = (statement.process,), statement.messages
            case ExpectNotSent() | ExpectRefused():
                messages = (statement.message,)
        for process in processes:
            if process is not None and process not in self.processes:
                known = ", ".join(list(self.processes)[:12]) + (", …" if len(self.processes) > 12 else "")
                raise ScenarioError(self.file, statement.line, f"unknown process {_shown(process)}: expected {known}")
        for message in messages:
            if message not in self.sends:
                raise ScenarioError(self.file, statement.line, f"unknown message {_shown(message)}: nobody sends it")


def _shown(word: str) -> str:
    return repr(word if len(word) <= 40 else word[:37] + "...")


def _named(word: str) -> str:
    if not _name.fullmatch(word):
        raise _Fault(f"expected a name (letters, digits, _ . -), not {_shown(word)}")
    return word


def _parcel(word: str) -> Parcel:
    found = _control.fullmatch(word)
    if found is None:
        return Parcel(COPY, _named(word))
    kind, first, second = found.groups()
    # A control packet about no message (a token, say) is named by its sender alone.
    message, source = ("", first) if second is None else (first, second)
    return Parcel(kind, _named(message) if message else "", _named(source))


def _order_of(text: str) -> OrderSpec:
    if len(text) > _setting_length_max:
        raise _Fault(f"expected an order, not {_shown(text)}")
    return parse(text)


def _under(words: list[str]) -> Under:
    guarantees: list[str] = []
    orders: list[OrderSpec] = []
    for part in " ".join(words).split(","):
        name = part.strip()
        if name in GUARANTEES:
            guarantees.append(name)
        elif name:
            try:
                orders.append(_order_of(name))
            except AntecedeError:
                known = ", ".join([*GUARANTEES, *names()])
                raise _Fault(f"under {_shown(name)}: expected orders or guarantees, of {known}") from None
        else:
            raise _Fault("expected under NAME[,NAME…]")
    return Under(tuple(guarantees), tuple(orders))

"""Scenario files: a computation written down line by line, like the figures in papers about causal order.

Each line has one statement, with words separated by blanks; ``#`` begins a comment anywhere. Declarations
(``processes``, ``domain``, ``order``, ``control manual``) apply to the whole file, even to the lines before them. All
other statements are executed in the sequence of the file. ``docs/guide/scenarios.md`` describes the language.

This module turns the bytes of a file into typed statements with line numbers. If the bytes are not a scenario, it
raises a :class:`ScenarioError` that names the line. :mod:`antecede.simulator.player` plays the statements, and this
module must not depend on it.
"""

import re
from collections.abc import Collection
from pathlib import Path

import msgspec

from antecede import limits
from antecede.errors import AntecedeError, OrderError, ScenarioError, UsageError
from antecede.messages import COPY
from antecede.orders import OrderSpec, find, names, parse

# The types of the statements. Each statement has its line number.

GUARANTEES = ("fifo", "causal", "total", "synchronous", "significant")


class Parcel(msgspec.Struct, frozen=True):
    """The packet that an ``arrive`` or ``lose`` line names: a copy of a message, or a control packet.

    For a copy, ``source`` is empty. For a control packet, ``source`` is its sender, and ``message`` is empty if the
    packet belongs to no message.
    """

    kind: str
    message: str
    source: str = ""

    def __str__(self) -> str:
        return self.message if self.kind == COPY else f"{self.kind}({self.message},{self.source})"


class Statement(msgspec.Struct, frozen=True):
    """One line of a scenario: an action or an expectation."""

    line: int


class SendLine(Statement, frozen=True):
    """The statement ``send M FROM -> TO,TO``: process FROM sends message M to these processes."""

    message: str
    source: str
    to: tuple[str, ...]


class ArriveLine(Statement, frozen=True):
    """The statement ``arrive M AT [again]``: packet M arrives at process AT. With ``again``, the packet has already
    arrived there, and arrives a second time."""

    parcel: Parcel
    at: str
    again: bool = False


class LoseLine(Statement, frozen=True):
    """The statement ``lose M AT``: packet M is lost on its way to process AT."""

    parcel: Parcel
    at: str


class ReceiveLine(Statement, frozen=True):
    """The statement ``receive P [from Q]``: the program of process P takes a message. With ``from Q``, the program
    takes only a message from process Q."""

    process: str
    source: str | None


class DrainLine(Statement, frozen=True):
    """The statement ``drain``: all copies arrive, the oldest copy first."""


class WaitLine(Statement, frozen=True):
    """The statement ``wait SECONDS``: this time passes, and links send overdue copies again."""

    seconds: float


class CrashLine(Statement, frozen=True):
    """The statement ``crash P``: process P loses everything that is not on its disk."""

    process: str


class RestartLine(Statement, frozen=True):
    """The statement ``restart P``: a crashed process P starts again from its disk."""

    process: str


class Under(msgspec.Struct, frozen=True):
    """``under NAME,NAME`` at the end of an expectation: the expectation applies only under these orders, or under
    orders with these guarantees. Without names, the expectation always applies."""

    guarantees: tuple[str, ...] = ()
    orders: tuple[OrderSpec, ...] = ()

    def counts(self, specs: Collection[OrderSpec], kept: Collection[str]) -> bool:
        """Return whether the expectation applies in a world with the orders ``specs``. ``kept``: the guarantees that
        the world keeps between all senders and receivers.

        The expectation applies if it has no names, if all orders of the world match one of the named orders, or if the
        world keeps one of the named guarantees. There is one exception: the name ``fifo`` has no effect in a world
        that keeps causal order. Without this exception, ``fifo`` would apply under every causal order, because causal
        order includes FIFO order.
        """
        if not self.guarantees and not self.orders:
            return True
        if any(name in kept and not (name == "fifo" and "causal" in kept) for name in self.guarantees):
            return True
        return any(all(_includes(named, spec) for spec in specs) for named in self.orders)


def _includes(named: OrderSpec, played: OrderSpec) -> bool:
    """Return whether an order of the world (``played``) has the name and the options of the order ``named``."""
    if named.name != played.name:
        return False
    wanted, settings = named.sample().settings, played.sample().settings
    return all(settings[option] == wanted[option] for option in named.options)


class Expectation(Statement, frozen=True):
    """``expect …``: a condition that must hold at this line of the file."""

    under: Under


class ExpectDelivered(Expectation, frozen=True):
    """``expect P delivered a b c``: exactly these messages were delivered at P so far, in this sequence."""

    process: str
    messages: tuple[str, ...]


class ExpectHolds(Expectation, frozen=True):
    """``expect P holds m``: message m has arrived at P, and is not delivered yet. The expectation is also met if the
    line ``arrive m P`` comes earlier in the file, but the copy still waits at its sender."""

    process: str
    messages: tuple[str, ...]


class ExpectNotSent(Expectation, frozen=True):
    """``expect M not sent``: no copy of M has left its sender."""

    message: str


class ExpectRefused(Expectation, frozen=True):
    """``expect M refused``: the order refused to send M."""

    message: str


class ExpectStuck(Expectation, frozen=True):
    """``expect stuck``: nothing more can arrive, but a held message, an unsent copy or a program still waits."""


class DomainLine(msgspec.Struct, frozen=True):
    """The declaration ``domain A S1 S2 S3 [order]``: a domain of servers, which may have its own order."""

    line: int
    name: str
    servers: tuple[str, ...]
    order: OrderSpec | None


class Scenario(msgspec.Struct, frozen=True):
    """The content of a scenario file, checked as far as this is possible without playing the file."""

    file: str
    processes: tuple[str, ...]
    domains: tuple[DomainLine, ...]
    order: OrderSpec | None
    order_line: int
    manual: bool
    """Whether each control packet waits for its ``arrive`` line (declaration ``control manual``)."""
    statements: tuple[Statement, ...]
    text: tuple[str, ...]
    """The lines of the file, for messages that show them."""

    def error(self, line: int, reason: str) -> ScenarioError:
        return ScenarioError(self.file, line, reason)


def read(path: str) -> Scenario:
    """Return the scenario in a file."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(limits.scenario_bytes_max + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return parse_scenario(data, path)


def parse_scenario(data: bytes, file: str) -> Scenario:
    """Return the scenario that these bytes contain. ``file`` is the file name for error messages."""
    if len(data) > limits.scenario_bytes_max:
        line = data.count(b"\n", 0, limits.scenario_bytes_max) + 1
        raise ScenarioError(file, line, f"scenario too long: expected at most {limits.scenario_bytes_max} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ScenarioError(file, data.count(b"\n", 0, error.start) + 1, "expected text in UTF-8") from None
    return _Reader(file, text.split("\n")).scenario()


_name = re.compile(r"[A-Za-z0-9_.-]+")
_control = re.compile(r"([a-z][a-z-]*)\(([^(),]*)(?:,([^(),]*))?\)")
_seconds = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_setting_length_max = 64


_usage = {
    "processes": "processes NAME NAME …",
    "domain": "domain NAME SERVER SERVER … [order]",
    "order": "order NAME key=value …",
    "control": "control manual",
    "send": "send MESSAGE FROM -> TO[,TO…]",
    "arrive": "arrive MESSAGE AT [again], or arrive KIND(MESSAGE,FROM) AT [again]",
    "lose": "lose MESSAGE AT, or lose KIND(MESSAGE,FROM) AT",
    "receive": "receive PROCESS [from PROCESS]",
    "drain": "drain alone in its line",
    "wait": "wait SECONDS",
    "crash": "crash PROCESS",
    "restart": "restart PROCESS",
    "expect": "one of: expect P delivered a b c · expect P holds m · expect M not sent · "
    "expect M refused · expect stuck, optionally with under NAME[,NAME…]",
}


class _Fault(Exception):
    """An error in the line that is being read."""


class _Reader:
    """A parser for the lines of one scenario file."""

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
        if words[0] not in _usage:
            raise _Fault(f"unknown statement {_shown(words[0])}: expected one of {', '.join(_usage)}")
        match words:
            case ["processes", *names_] if names_:
                self._processes(line, names_)
            case ["domain", name, *servers] if servers:
                self._domain(line, name, servers)
            case ["order", name, *settings]:
                self._order(line, name, settings)
            case ["control", "manual"]:
                self.manual = True
            case ["expect", *expectation]:
                self.statements.append(_expectation(line, expectation))
            case ["send", message, source, "->", *to] if to:
                self._send(line, message, source, " ".join(to).split(","))
            case ["arrive", parcel, at, *again] if again in ([], ["again"]):
                self.statements.append(ArriveLine(line, _parcel(parcel), _named(at), bool(again)))
            case ["lose", parcel, at]:
                self.statements.append(LoseLine(line, _parcel(parcel), _named(at)))
            case ["receive", process]:
                self.statements.append(ReceiveLine(line, _named(process), None))
            case ["receive", process, "from", source]:
                self.statements.append(ReceiveLine(line, _named(process), _named(source)))
            case ["drain"]:
                self.statements.append(DrainLine(line))
            case ["wait", seconds] if _seconds.fullmatch(seconds):
                if float(seconds) > limits.scenario_wait_seconds_max:
                    raise _Fault(f"wait: expected at most {limits.scenario_wait_seconds_max} seconds")
                self.statements.append(WaitLine(line, float(seconds)))
            case ["crash", process]:
                self.statements.append(CrashLine(line, _named(process)))
            case ["restart", process]:
                self.statements.append(RestartLine(line, _named(process)))
            case _:
                raise _Fault(f"expected {_usage[words[0]]}")

    def _processes(self, line: int, names_: list[str]) -> None:
        for name in names_:
            if name in self.processes:
                raise _Fault(f"process {_shown(name)} is named twice")
            self._add_process(name, line)

    def _add_process(self, name: str, line: int) -> None:
        self.processes.setdefault(_named(name), line)
        if len(self.processes) > limits.scenario_processes_max:
            raise _Fault(f"a scenario has at most {limits.scenario_processes_max} processes")

    def _domain(self, line: int, name: str, servers: list[str]) -> None:
        order: OrderSpec | None = None
        last = servers[-1].removeprefix("[").removesuffix("]")
        if ":" in last or last in names():
            order = _order_of(last)
            servers.pop()
        if any(domain.name == name for domain in self.domains):
            raise _Fault(f"domain {_shown(name)} is named twice")
        if not servers or len(set(servers)) < len(servers):
            raise _Fault(f"expected {_usage['domain']}, each server once")
        for server in servers:
            self._add_process(server, line)
        self.domains.append(DomainLine(line, _named(name), tuple(servers), order))
        if len(self.domains) > limits.scenario_processes_max:
            raise _Fault(f"a scenario has at most {limits.scenario_processes_max} domains")

    def _order(self, line: int, name: str, settings: list[str]) -> None:
        if self.order is not None:
            raise _Fault(f"the order is already chosen in line {self.order_line}")
        options: dict[str, object] = {}
        for word in settings:
            key, equals, value = word.partition("=")
            if not equals or len(word) > _setting_length_max:
                raise _Fault(f"expected key=value of at most {_setting_length_max} characters, not {_shown(word)}")
            options[key] = value
        self.order = OrderSpec(find(name), options)
        self.order.sample()
        self.order_line = line

    def _send(self, line: int, message: str, source: str, to: list[str]) -> None:
        if message in self.sends:
            raise _Fault(f"message {_shown(message)} is already sent in line {self.sends[message]}")
        self.sends[_named(message)] = line
        if message == "under":
            raise _Fault("a message cannot be named 'under', a keyword in expect lines: choose another name")
        targets = dict.fromkeys(_named(target.strip()) for target in to)
        self.statements.append(SendLine(line, message, _named(source), tuple(targets)))

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
                raise ScenarioError(self.file, statement.line, f"unknown message {_shown(message)}: no line sends it")


def _expectation(line: int, words: list[str]) -> Statement:
    under = Under()
    if "under" in words:
        place = len(words) - 1 - words[::-1].index("under")
        under = _under(words[place + 1 :])
        words = words[:place]
    match words:
        case ["stuck"]:
            return ExpectStuck(line, under)
        case [message, "not", "sent"]:
            return ExpectNotSent(line, under, _named(message))
        case [message, "refused"]:
            return ExpectRefused(line, under, _named(message))
        case [process, "delivered", *messages]:
            return ExpectDelivered(line, under, _named(process), tuple(map(_named, messages)))
        case [process, "holds", *messages] if messages:
            return ExpectHolds(line, under, _named(process), tuple(map(_named, messages)))
    raise _Fault(f"expected {_usage['expect']}")


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
    # A control packet that concerns no message (such as a token) is named by its sender alone.
    message, source = ("", first) if second is None else (first, second)
    return Parcel(kind, _named(message) if message else "", _named(source))


def _order_of(text: str) -> OrderSpec:
    if len(text) > _setting_length_max:
        raise _Fault(f"order {_shown(text)}: expected at most {_setting_length_max} characters")
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
                raise _Fault(f"under {_shown(name)}: expected orders or guarantees from this list: {known}") from None
        else:
            raise _Fault("a name is missing: expected under NAME[,NAME…]")
    return Under(tuple(guarantees), tuple(orders))

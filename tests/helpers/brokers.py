"""Brokers for tests: each a process of its own with its data in a folder, which can be killed and started again."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from helpers.ports import free_ports

KINDS = ("nats", "redis", "rabbitmq", "kafka")


def missing(kind: str) -> str:
    """Return why this broker cannot be started here; "" if it can."""
    modules = {
        "nats": ("nats",),
        "redis": ("redis",),
        "rabbitmq": ("aio_pika",),
        "kafka": ("aiokafka", "confluent_kafka"),
    }[kind]
    for module in modules:
        if importlib.util.find_spec(module) is None:
            return f"the package {module} is not installed"
    if kind in _PROGRAMS and not _program(kind):
        return f"{_PROGRAMS[kind]} is not installed"
    return ""


_PROGRAMS = {"nats": "nats-server", "redis": "redis-server", "rabbitmq": "rabbitmq-server"}


def _program(kind: str) -> str:
    # Debian's own start of RabbitMQ changes the user: the script below it does not.
    places = [str(Path(sys.executable).parent), "/usr/lib/rabbitmq/bin", os.environ.get("PATH", ""), "/usr/sbin"]
    return shutil.which(_PROGRAMS[kind], path=os.pathsep.join(places)) or ""


class Broker:
    """One broker. If ``synced``, a kill loses nothing that it acknowledged (the mock of Kafka keeps nothing: only its
    clients may be killed)."""

    def __init__(self, kind: str, folder: Path, synced: bool = False) -> None:
        self.kind, self.folder, self.synced = kind, folder, synced
        self.port, *self._others = free_ports(3)
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        address = f"127.0.0.1:{self.port}"
        return {
            "nats": f"nats://{address}",
            "redis": f"redis://{address}",
            "rabbitmq": f"amqp://guest:guest@{address}/",
            "kafka": address,
        }[self.kind]

    def start(self) -> None:
        environment = dict(os.environ)
        if self.kind == "rabbitmq":
            environment |= self._rabbit()
        with (self.folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
            )
        self._wait()

    def kill(self) -> None:
        """End it at once, with everything that it started."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End it for good, with what it started in the background."""
        self.kill()
        if self.kind == "rabbitmq" and (epmd := shutil.which("epmd")):
            subprocess.run([epmd, "-port", str(self._others[1]), "-kill"], capture_output=True, timeout=10)

    def restart(self) -> None:
        self.kill()
        self.start()

    def _command(self) -> list[str]:
        if self.kind == "nats":
            config = self.folder / "nats.conf"
            config.write_text(
                f"host: 127.0.0.1\nport: {self.port}\n"
                f'jetstream {{ store_dir: "{self.folder / "data"}"{", sync_interval: always" * self.synced} }}\n'
            )
            return [_program("nats"), "-c", str(config)]
        if self.kind == "redis":
            sync = "always" if self.synced else "everysec"
            options = {"port": self.port, "bind": "127.0.0.1", "appendonly": "yes", "appendfsync": sync, "save": ""}
            words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
            return [_program("redis"), "--dir", str(self.folder), *words]
        if self.kind == "rabbitmq":
            return [_program("rabbitmq")]
        return [sys.executable, str(Path(__file__).with_name("mock_kafka.py")), str(self.folder / "port")]

    def _rabbit(self) -> dict[str, str]:
        config = self.folder / "rabbitmq.conf"
        config.write_text(f"listeners.tcp.local = 127.0.0.1:{self.port}\nloopback_users = none\n")
        plugins = self.folder / "enabled_plugins"
        plugins.write_text("[].\n")
        return {
            "HOME": str(self.folder),
            "RABBITMQ_NODENAME": f"antecede{self.port}@localhost",
            "RABBITMQ_CONFIG_FILE": str(config.with_suffix("")),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_DIST_PORT": str(self._others[0]),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_NODE_PORT": str(self.port),
            "ERL_EPMD_PORT": str(self._others[1]),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-rabbit vm_memory_high_watermark 0.8",
        }

    def _wait(self) -> None:
        end = time.monotonic() + 90
        if self.kind == "kafka":
            told = self.folder / "port"
            while not told.exists() or not told.read_text().endswith("\n"):
                self._alive(end)
            self.port = int(told.read_text())
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            self._alive(end)

    def _alive(self, end: float) -> None:
        assert self._process is not None
        log = self.folder / "broker.log"
        assert self._process.poll() is None, f"{self.kind} ended:\n{log.read_text()[-2000:]}"
        assert time.monotonic() < end, f"{self.kind} did not start:\n{log.read_text()[-2000:]}"
        time.sleep(0.02)

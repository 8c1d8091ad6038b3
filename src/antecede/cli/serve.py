"""Commands that start servers: ``serve`` starts one, ``up`` all of a topology on this machine, and ``unit`` writes
units for systemd."""

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from antecede.cli.options import JSON, SERVING, TOPOLOGY, Serving, check_serving
from antecede.cli.servers import check_folder, check_identities, usable_topology
from antecede.crashes import print_line
from antecede.errors import UsageError
from antecede.topology import TopologyFile, plan_change


def register(app: typer.Typer) -> None:
    @app.command("serve")
    def serve(
        topology: str = TOPOLOGY,
        server: str = typer.Option(..., metavar="NAME", help="The server to run."),
        data: str | None = typer.Option(
            None,
            metavar="DIR",
            help="Data directory of the server. If the directory does not exist, it is created. The option is "
            "required, except with --durability memory.",
        ),
        host: str | None = typer.Option(None, help="Address to listen on, instead of the address in the topology."),
        audit: str | None = typer.Option(
            None,
            metavar="FILE",
            help="File of the audit log; only with an access file. Default: audit.jsonl in the data directory.",
        ),
        metrics: str | None = typer.Option(
            None,
            metavar="HOST:PORT",
            help="Serve /metrics, /health, /live and /ready at this address. PORT alone means 127.0.0.1:PORT. Default: "
            "the address in the topology.",
        ),
        until_stdin_closes: bool = typer.Option(
            False,
            "--until-stdin-closes",
            help="Also stop when standard input ends.",
        ),
        options: Serving = SERVING,
    ) -> int:
        """Run one server of a topology until it receives SIGTERM or Ctrl-C.

        With an access file, only the identities in this file can connect.

        Exit codes:
        0: The server stopped gracefully.
        1: A handler blocked longer than reaction_seconds_max (a setting in the topology file), and held Python's
        interpreter lock.
        2: The server could not start, its disk failed, an internal error occurred, or a handler blocked longer than
        reaction_seconds_max without holding the interpreter lock.
        130: The signal to stop came twice.
        """
        from antecede.cli.options import check_serving
        from antecede.cli.servers import (
            check_folder,
            check_identities,
            listening_address,
            read_token,
            server_security,
            tls_contexts,
            usable_topology,
        )
        from antecede.live.application import find_beside
        from antecede.live.logs import write_logs
        from antecede.live.metrics import page_address
        from antecede.live.process import run
        from antecede.live.process import serve as served
        from antecede.store.directory import make_parents

        file = usable_topology(topology)
        if data is None and options.durability != "memory":
            raise UsageError("expected --data DIR, or --durability memory")
        if options.trace and options.durability == "memory":
            raise UsageError("--trace needs a log, but --durability memory writes no log: choose disk or os")
        check_folder(data)
        keep = check_serving(options)
        check_identities(topology, options)
        token = read_token(options.token_file)
        find_beside(topology)
        write_logs(options.log)
        tls = tls_contexts(options.certificate, options.key, options.authority)
        security = server_security(file, topology, server, options.access, options.credentials)
        if security is not None and (token or tls is not None):
            raise UsageError(
                "with an access file, --credentials replaces --token-file, --certificate, --key and --authority: "
                "remove these options"
            )
        encrypted = tls is not None if security is None else security.credentials.tls
        listening_address(
            *(file, server, host, token), identities=security is not None, tls=encrypted, insecure=options.insecure
        )
        if data is not None and options.durability != "memory":
            make_parents(data)
        page = file.metrics.get(server) if metrics is None else page_address(metrics)
        main = served(
            file,
            server,
            data,
            metrics=page,
            until_stdin_closes=until_stdin_closes,
            durability=options.durability,
            token=token,
            host=host,
            tls=tls,
            security=security,
            audit=audit,
            trace=options.trace,
            keep=keep,
        )
        return run(main)

    _register_up(app)
    _register_unit(app)


TEMPLATE = "antecede@.service"
TARGET = "antecede.target"
_SERVER = typer.Option(None, metavar="NAME", help="Server of this machine; may be repeated. Default: all servers.")
_OPTION = typer.Option(
    None, metavar="TEXT", help="Option for `antecede serve`, such as --option=--trace; may be repeated."
)


def _register_unit(app: typer.Typer) -> None:
    @app.command("unit")
    def unit(
        topology: str = TOPOLOGY,
        server: list[str] | None = _SERVER,
        data: str = typer.Option("/var/lib/antecede", metavar="DIR", help="Folder of the servers' data directories."),
        user: str = typer.Option("antecede", metavar="NAME", help="User that runs the servers."),
        output: str | None = typer.Option(
            None, "--output", "-o", metavar="DIR", help="Folder for the units. Default: print the units."
        ),
        command: str | None = typer.Option(
            None, metavar="PATH", help="Path of the command antecede. Default: the command that runs now."
        ),
        option: list[str] | None = _OPTION,
        as_json: bool = JSON,
    ) -> int:
        """Write systemd units: a template for all servers, and a target that starts the servers of this machine.

        With these units, systemd restarts a server that fails or is blocked, and gives a server time to stop.
        """
        file = usable_topology(topology)
        server, option = server or [], option or []
        unknown = [name for name in server if name not in file.servers]
        if unknown:
            raise UsageError(f"{topology} has no server {unknown[0]}: expected one of {', '.join(file.servers)}")
        if not os.path.isabs(data):
            raise UsageError(f"--data {data}: expected an absolute path, because a service has no current folder")
        path = os.path.abspath(topology)
        words = [_command(command), "serve", path, "--server", "%i", "--data", f"{data.rstrip('/')}/%i", *option]
        for word in (*words, user):
            if any(character in word for character in "\n\"'\\$") or (word != user and not word):
                raise UsageError(
                    f"{word!r}: expected no quotes, backslashes, dollar signs or line breaks in a systemd unit"
                )
        reload = (Path(path).parent / "access.toml").exists() or "--access" in option
        units = {
            TEMPLATE: _service(words, data.rstrip("/"), user, reload),
            TARGET: _target([name for name in file.servers if name in server or not server]),
        }
        if output is not None:
            try:
                Path(output).mkdir(parents=True, exist_ok=True)
                for name, text in units.items():
                    (Path(output) / name).write_text(text, encoding="utf-8")
            except OSError as error:
                raise UsageError(f"--output {output}: the units cannot be written: {error.strerror}") from None
        if as_json:
            listed = [{"name": name, "text": text} for name, text in units.items()]
            print(json.dumps({"units": listed, "directory": output}))
        elif output is None:
            print("\n".join(f"# {name}\n{text}" for name, text in units.items()), end="")
        else:
            print(f"wrote {', '.join(str(Path(output) / name) for name in units)}", file=sys.stderr)
        return 0


def _command(given: str | None) -> str:
    """Return the path of the command ``antecede``: the given path, or the path of the installed command."""
    if given is not None:
        return given
    beside = Path(sys.executable).parent / "antecede"
    return str(beside) if beside.exists() else shutil.which("antecede") or "/usr/bin/antecede"


def _service(words: list[str], data: str, user: str, reload: bool) -> str:
    inside = data.startswith("/var/lib/")
    state = f"StateDirectory={data.removeprefix('/var/lib/')}/%i\nStateDirectoryMode=0700"
    kept = state if inside else f"ReadWritePaths={data}"
    return _template.format(
        command=" ".join(_word(word) for word in words),
        reload="ExecReload=/bin/kill -HUP $MAINPID\n" if reload else "",
        kept=kept,
        user=user,
    )


def _word(word: str) -> str:
    """Return a word of a command line, escaped and quoted as systemd requires it."""
    escaped = word if word == "%i" or word.endswith("/%i") else word.replace("%", "%%")
    return f'"{escaped}"' if " " in escaped else escaped


def _target(servers: list[str]) -> str:
    wants = " ".join(f"antecede@{name}.service" for name in servers)
    return (
        f"[Unit]\nDescription=The Antecede servers of this machine\nWants={wants}\n\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )


_template = """\
[Unit]
Description=Antecede server %i
After=network-online.target
Wants=network-online.target
PartOf=antecede.target
# A server that cannot start is tried ten times in five minutes; then it waits for an operator.
StartLimitIntervalSec=300
StartLimitBurst=10

[Service]
# The server reports when it has recovered and listens. Recovery may take as long as its log requires.
Type=notify
NotifyAccess=main
TimeoutStartSec=infinity
ExecStart={command}
{reload}User={user}
{kept}
UMask=0077
# A server whose event loop is blocked gives no sign of life: systemd restarts it.
WatchdogSec=60
Restart=on-failure
RestartSec=1
# Agents finish what they do (5 s at most), and a snapshot of the whole state is written.
KillSignal=SIGTERM
KillMode=mixed
TimeoutStopSec=120
LimitNOFILE=16384
# What a server does not need it may not do.
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service

[Install]
WantedBy=antecede.target
"""


def _register_up(app: typer.Typer) -> None:
    @app.command("up")
    def up(
        topology: str = TOPOLOGY,
        data: str | None = typer.Option(
            None,
            metavar="DIR",
            help="Folder of the servers' data directories. Default: a temporary folder, deleted at the end.",
        ),
        metrics_base_port: int | None = typer.Option(
            None,
            metavar="PORT",
            help="Serve /metrics, /health, /live and /ready: the first server by name (s2 before s10) on this port, "
            "the others on the next ports.",
        ),
        options: Serving = SERVING,
    ) -> int:
        """Run all servers of a topology on this machine, one process each, until Ctrl-C.

        The command prints "ready" when all servers are connected. If a server fails, all servers are stopped, and the
        last line names the cause. Without --data, all data is lost at the end.

        The command receives SIGHUP in two cases: from `kill -HUP`, and when its terminal is closed. If there is an
        access file, all servers then read this file again, and continue. If there is no access file, closing the
        terminal stops all servers, and `kill -HUP` has no effect.

        Exit codes:
        0: All servers stopped gracefully.
        2: A server could not start, or did not stop gracefully.
        """
        file = usable_topology(topology)
        check_folder(data)
        check_serving(options)
        check_identities(topology, options)
        if options.trace and (data is None or options.durability == "memory"):
            raise UsageError("--trace needs the servers' logs: give --data DIR, and do not use --durability memory")
        with contextlib.ExitStack() as stack:
            folder = data or stack.enter_context(tempfile.TemporaryDirectory(prefix="antecede-"))
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            kept = data is not None and options.durability != "memory"
            if kept and not _ready(topology, file, folder):
                return 2
            reloads = options.access is not None or (Path(topology).parent / "access.toml").exists()
            console = _Console(file, options.log)
            return asyncio.run(_run(topology, console, folder, options.arguments(), metrics_base_port, kept, reloads))


def _ready(path: str, file: TopologyFile, folder: str) -> bool:
    """Return True if the data in the folder has the topology of the file. Otherwise print the differences. If the
    change is possible and the command runs on a terminal, also ask the user whether to change the topology of the data.
    If this change is made, return True. If it is not made, return False."""
    from antecede.live.directories import differing
    from antecede.server.organisation import explain

    before = differing(folder, file)
    if before is None:
        return True
    command = shlex.join(["antecede", "topology", "apply", path, *([] if _running(before) else ["--data", folder])])
    print(
        f"antecede: {path} differs from the topology of the data in {folder}: {explain(before, file)}", file=sys.stderr
    )
    refusals = plan_change(before, file).refusals
    if refusals:
        print(f"antecede: this change is refused: {refusals[0]}", file=sys.stderr)
        return False
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        print(f"antecede: to make this change: {command} (--dry-run shows what moves)", file=sys.stderr)
        return False
    if not typer.confirm("antecede: make this change now?", err=True):
        return False
    return subprocess.call([sys.executable, "-m", *shlex.split(command)]) == 0


def _running(file: TopologyFile) -> bool:
    """Return whether the first server of a topology accepts a connection. If it does, the caller assumes that all
    servers are running. Then ``antecede topology apply`` must change the running servers, not their data in a
    folder."""
    address = next(iter(file.servers.values()))
    with socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET) as probe:
        probe.settimeout(_probe_seconds)
        try:
            probe.connect((address.host, address.port))
        except OSError:
            return False
        return True


async def _run(
    topology: str,
    console: "_Console",
    folder: str,
    options: list[str],
    metrics_base_port: int | None,
    kept: bool,
    reloads: bool,
) -> int:
    from antecede.live.process import stopping_signals, terminal_watch

    servers = console.servers
    processes: dict[str, asyncio.subprocess.Process] = {}
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if stopped.is_set():
            # A second request means that the user does not want to wait; then the servers do not wait either.
            _tell(processes, signal.SIGTERM)
        stopped.set()

    for number in stopping_signals():
        loop.add_signal_handler(number, stop)
    closed = terminal_watch() if not reloads else lambda: False
    loop.add_signal_handler(signal.SIGHUP, lambda: stop() if closed() else _tell(processes, signal.SIGHUP))
    if reloads:
        console.say("reloads", f"to read access.toml again: kill -HUP {os.getpid()}")
    for place, server in enumerate(servers):
        command = [sys.executable, "-m", "antecede", "serve", topology, "--server", server]
        if metrics_base_port is not None:
            command += ["--metrics", str(metrics_base_port + place)]
        # Use a separate session, so that Ctrl-C reaches the servers once, through us. Their standard input ends with
        # us.
        processes[server] = await asyncio.create_subprocess_exec(
            *command,
            "--data",
            f"{folder}/{server}",
            "--until-stdin-closes",
            *options,
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    printing = {server: loop.create_task(console.follow(server, processes[server])) for server in servers}
    ending = [loop.create_task(process.wait()) for process in processes.values()]
    watching = loop.create_task(stopped.wait())
    # If one server cannot start or fails, all are stopped, so that the user sees the reason.
    await _wait_for_an_end(watching, dict(zip(servers, ending, strict=True)), printing, console)
    cause = ""
    if not stopped.is_set():
        ended = {server: one.returncode for server, one in processes.items() if one.returncode is not None}
        ended = {server: code for server, code in ended.items() if code or server not in console.removed} or ended
        if len(ended) < len(processes):
            console.say("stopping", f"{', '.join(ended)} ended; stopping the others")
        reasons = [console.last[server] for server in ended if server in console.last and ended[server] > 0]
        cause = _end_text(ended, reasons[0].removeprefix("antecede: ") if reasons else "", kept)
    _tell(processes, signal.SIGTERM)
    codes = await asyncio.gather(*ending)
    await asyncio.gather(*printing.values())
    watching.cancel()
    if cause:
        # Last, below what the other servers print while they stop.
        console.say("failed", cause)
    return 0 if not any(codes) else 2


async def _wait_for_an_end(
    watching: "asyncio.Task[Any]",
    ending: "dict[str, asyncio.Task[int]]",
    printing: "dict[str, asyncio.Task[None]]",
    console: "_Console",
) -> None:
    """Wait until the user stops the servers, or until a server ends. If a server ended normally because a change of the
    topology removed it, continue to wait for the other servers. If all servers have ended, return."""
    while True:
        left = [task for task in ending.values() if not task.done()]
        done, _ = await asyncio.wait([watching, *left], return_when=asyncio.FIRST_COMPLETED)
        if watching in done:
            return
        ended = [server for server, task in ending.items() if task.done()]
        # Print their last log lines first.
        await asyncio.wait([printing[server] for server in ended], timeout=_last_output_seconds)
        removed = [server for server in ended if server in console.removed and not ending[server].result()]
        if len(removed) < len(ended) or len(ended) == len(ending):
            return


def _end_text(ended: dict[str, int], reason: str, kept: bool) -> str:
    """Return a line about the servers that ended although the user did not stop them. The line has the exit code or the
    signal of each server, and the reason if it is known. If a server was killed and the data is kept, the line also
    says how to continue."""
    parts = [
        ", ".join(
            f"{server} was killed (signal {-code})" if code < 0 else f"{server} ended (exit code {code})"
            for server, code in ended.items()
        )
        + (f": {reason}" if reason else "")
    ]
    if kept and min(ended.values()) < 0:
        parts.append("run the same command again to continue: nothing accepted is lost")
    return "; ".join(parts)


_last_output_seconds = 1.0
_probe_seconds = 0.5


def _tell(processes: dict[str, asyncio.subprocess.Process], number: int) -> None:
    for process in processes.values():
        if process.returncode is None:
            process.send_signal(number)


class _Console:
    """Prints the logs of all servers on standard error, and one line when all servers are ready."""

    def __init__(self, file: TopologyFile, style: str) -> None:
        self.servers = list(file.servers)
        self.last: dict[str, str] = {}
        """The last line of each server's log. If the server fails, this line states the reason."""
        self.removed: set[str] = set()
        """The servers that a change of the topology has removed."""
        self._style = style
        self._width = max(map(len, self.servers))
        # A server is ready when it listens and is connected to every server with which it shares a domain.
        pairs = {
            (one, two) for domain in file.domains for one in domain.servers for two in domain.servers if one != two
        }
        self._awaited = pairs | {(server, "") for server in self.servers}

    def say(self, event: str, text: str) -> None:
        """Print a line that does not come from a server, but from the command ``antecede up``."""
        self._print("", event, text, f"antecede: {text}")

    def _print(self, server: str, event: str, text: str, line: str) -> None:
        if self._style == "json":
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            level = "info" if event in ("ready", "reloads", "stopping") else "error"
            line = json.dumps({"time": now, "level": level, "server": server, "event": event, "text": text})
        print_line(line)

    async def follow(self, server: str, process: asyncio.subprocess.Process) -> None:
        """Print the log of a server until the server ends. Even if printing fails, continue to read the log. Without a
        reader, the server would block as soon as its pipe is full."""
        assert process.stderr is not None
        async for text in _lines(process.stderr):
            self.last[server] = text
            if self._style == "json" and text.startswith("{"):
                # It names its server.
                print_line(text)
            else:
                self._print(server, "output", text, f"{server.ljust(self._width)} | {text}")
            event, peer = _event(server, text)
            if event == "removed":
                self.removed.add(server)
            if self._awaited and event in ("started", "peer-connected"):
                self._awaited.discard((server, peer))
                if not self._awaited:
                    self.say("ready", f"ready: {', '.join(self.servers)}")


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yield the lines of a stream. A handler may print a line of any length. A very long line is yielded in pieces, so
    that it does not fill the memory."""
    rest = b""
    while piece := await stream.read(_line_bytes_max):
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > _line_bytes_max:
            lines, rest = [*lines, rest], b""
        for line in lines:
            yield line.decode(errors="replace").rstrip()
    if rest:
        yield rest.decode(errors="replace").rstrip()


_line_bytes_max = 65_536


def _event(server: str, line: str) -> tuple[str, str]:
    """Return two texts from a line of a server's log: the name of the event, and the name of the peer. If the line does
    not name a peer, the second text is empty. In a log in text form, a peer is found only if it is the first value
    after the event. Both texts are empty if the line is not a log message."""
    if line.startswith("{"):
        with contextlib.suppress(ValueError):
            document = json.loads(line)
            return str(document.get("event")), str(document.get("peer", ""))
        return "", ""
    words = line.split()
    if words[1:2] != [server]:
        return "", ""
    peers = [word.removeprefix("peer=") for word in words[3:4] if word.startswith("peer=")]
    return "".join(words[2:3]), "".join(peers)

"""``antecede up``: run all servers of a topology on this machine, one process each."""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    @app.command("up")
    def up(
        topology: str = typer.Argument(..., metavar="TOPOLOGY", help="A topology file (TOML)."),
        data: str | None = typer.Option(None, metavar="DIR", help="The folder of the servers' data directories."),
        durability: str = typer.Option("disk", help="disk, os or memory."),
        token_file: str | None = typer.Option(
            None, metavar="FILE", help="A token that clients and peers must present."
        ),
        certificate: str | None = typer.Option(None, metavar="FILE", help="TLS: the certificate of all servers (PEM)."),
        key: str | None = typer.Option(None, metavar="FILE", help="TLS: its key (PEM)."),
        authority: str | None = typer.Option(
            None, metavar="FILE", help="TLS: the authority that signs the servers' certificates."
        ),
        credentials: str | None = typer.Option(
            None,
            metavar="DIR",
            help="The folder that antecede credentials wrote. Default: credentials/ beside access.toml.",
        ),
        access: str | None = typer.Option(
            None, metavar="FILE", help="Who may do what. Default: access.toml beside the topology, if there is one."
        ),
        insecure: bool = typer.Option(
            False, "--insecure", help="Allow connections from other machines in plain text, without TLS."
        ),
        trace: bool = typer.Option(False, "--trace", help="Record a trace; check it with antecede verify DIR."),
        metrics_base_port: int | None = typer.Option(
            None,
            metavar="PORT",
            help="Serve /metrics, /health, /live and /ready: the first server on this port, others on the next.",
        ),
        log: str = typer.Option("text", help="text or json."),
    ) -> int:
        """Run all servers of a topology on this machine, one process each, until Ctrl-C.

        Without --data all data is lost when the servers stop. With access.toml, SIGHUP makes all servers read it
        again. Exit code 0 if all stopped gracefully.
        """
        from antecede.cli.live import check_folder
        from antecede.cli.organisation import usable_topology
        from antecede.errors import UsageError

        file = usable_topology(topology)
        check_folder(data)
        options = ["--durability", durability, "--log", log]
        given = {
            "--token-file": token_file,
            "--certificate": certificate,
            "--key": key,
            "--authority": authority,
            "--credentials": credentials,
            "--access": access,
        }
        options += [text for option, value in given.items() if value is not None for text in (option, value)]
        options += ["--insecure"] if insecure else []
        if trace:
            if data is None or durability == "memory":
                raise UsageError("--trace needs the servers' logs: expected --data DIR, and not --durability memory")
            options.append("--trace")
        with contextlib.ExitStack() as stack:
            folder = data or stack.enter_context(tempfile.TemporaryDirectory(prefix="antecede-"))
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            kept = data is not None and durability != "memory"
            reloads = access is not None or (Path(topology).parent / "access.toml").exists()
            return asyncio.run(_run(topology, list(file.servers), folder, options, metrics_base_port, kept, reloads))


async def _run(
    topology: str,
    servers: list[str],
    folder: str,
    options: list[str],
    metrics_base_port: int | None,
    kept: bool,
    reloads: bool,
) -> int:
    from antecede.live.process import stopping_signals

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
    if reloads:
        loop.add_signal_handler(signal.SIGHUP, lambda: _tell(processes, signal.SIGHUP))
        print(f"antecede: to read access.toml again: kill -HUP {os.getpid()}", file=sys.stderr, flush=True)
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
    width = max(map(len, servers))
    last: dict[str, str] = {}
    printing = {server: loop.create_task(_print(server, width, processes[server], last)) for server in servers}
    ending = [loop.create_task(process.wait()) for process in processes.values()]
    watching = loop.create_task(stopped.wait())
    # If one server cannot start or fails, all are stopped, so that the user sees the reason.
    await asyncio.wait([watching, *ending], return_when=asyncio.FIRST_COMPLETED)
    cause = ""
    if not stopped.is_set():
        ended = {server: one.returncode for server, one in processes.items() if one.returncode is not None}
        # Print their last log lines first.
        await asyncio.wait([printing[server] for server in ended], timeout=_last_words_seconds)
        if len(ended) < len(processes):
            print(f"antecede: {', '.join(ended)} ended; stopping the others", file=sys.stderr, flush=True)
        reasons = [last[server].removeprefix("antecede: ") for server in ended if server in last and ended[server] > 0]
        cause = _told(ended, reasons[0] if reasons else "", kept)
    _tell(processes, signal.SIGTERM)
    codes = await asyncio.gather(*ending)
    await asyncio.gather(*printing.values())
    watching.cancel()
    if cause:
        # Last, below what the other servers print while they stop.
        print(f"antecede: {cause}", file=sys.stderr, flush=True)
    return 0 if not any(codes) else 2


def _told(ended: dict[str, int], reason: str, kept: bool) -> str:
    """Return a line that names the servers that ended by themselves, how they ended, why, and what to do."""
    said = [
        ", ".join(
            f"{server} was killed (signal {-code})" if code < 0 else f"{server} ended (exit code {code})"
            for server, code in ended.items()
        )
        + (f": {reason}" if reason else "")
    ]
    if kept and min(ended.values()) < 0:
        said.append("run the same command again to continue: nothing accepted is lost")
    return "; ".join(said)


_last_words_seconds = 1.0


def _tell(processes: dict[str, asyncio.subprocess.Process], number: int) -> None:
    for process in processes.values():
        if process.returncode is None:
            process.send_signal(number)


async def _print(server: str, width: int, process: asyncio.subprocess.Process, last: dict[str, str]) -> None:
    """Print the log of a server, and keep its last line: if the server ends, that is the reason."""
    assert process.stderr is not None
    while line := await process.stderr.readline():
        text = line.decode(errors="replace").rstrip()
        last[server] = text
        print(f"{server.ljust(width)} | {text}", file=sys.stderr, flush=True)

"""``antecede unit``: write systemd units for the servers of a topology."""

import json
import os
import shutil
import sys
from pathlib import Path

import typer

from antecede.cli.options import JSON, TOPOLOGY
from antecede.cli.servers import usable_topology
from antecede.errors import UsageError

TEMPLATE = "antecede@.service"
TARGET = "antecede.target"
_SERVER = typer.Option(None, metavar="NAME", help="Server of this machine; may be repeated. Default: all servers.")
_OPTION = typer.Option(
    None, metavar="TEXT", help="Option for `antecede serve`, such as --option=--trace; may be repeated."
)


def register(app: typer.Typer) -> None:
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

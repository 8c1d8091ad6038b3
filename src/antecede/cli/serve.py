"""``antecede serve``: run one server of a topology."""

import typer

from antecede.cli.options import (
    ACCESS,
    AUTHORITY,
    INSECURE,
    KEEP_LOG,
    KEEP_LOG_SIZE,
    KEEP_TRACE,
    KEEP_TRACE_SIZE,
    SERVERS_KEY,
    SERVERS_TOKEN,
    TRACE,
)


def register(app: typer.Typer) -> None:
    @app.command("serve")
    def serve(
        topology: str = typer.Argument(..., metavar="TOPOLOGY", help="A topology file (TOML)."),
        server: str = typer.Option(..., metavar="NAME", help="The server to run."),
        data: str | None = typer.Option(None, metavar="DIR", help="The data directory; created if it does not exist."),
        durability: str = typer.Option("disk", help="disk (survives a power cut), os (a kill) or memory (nothing)."),
        token_file: str | None = SERVERS_TOKEN,
        host: str | None = typer.Option(None, help="The address to listen on, instead of the one in the topology."),
        certificate: str | None = typer.Option(None, metavar="FILE", help="TLS: this server's certificate (PEM)."),
        key: str | None = SERVERS_KEY,
        authority: str | None = AUTHORITY,
        credentials: str | None = typer.Option(
            None,
            metavar="DIR",
            help="This server's credentials (antecede credentials). Default: those beside the topology.",
        ),
        access: str | None = ACCESS,
        audit: str | None = typer.Option(
            None, metavar="FILE", help="The audit log, with an access file. Default: audit.jsonl in the data directory."
        ),
        insecure: bool = INSECURE,
        trace: bool = TRACE,
        keep_trace: str | None = KEEP_TRACE,
        keep_trace_size: str | None = KEEP_TRACE_SIZE,
        keep_log: str | None = KEEP_LOG,
        keep_log_size: str | None = KEEP_LOG_SIZE,
        metrics: str | None = typer.Option(
            None,
            metavar="HOST:PORT",
            help="Serve /metrics, /health, /live and /ready there; PORT: on loopback. Default: as in the topology.",
        ),
        until_stdin_closes: bool = typer.Option(
            False,
            "--until-stdin-closes",
            help="Also stop when standard input ends, for example when the parent process ends.",
        ),
        log: str = typer.Option("text", help="text or json, one line per event, on standard error."),
    ) -> int:
        """Run one server of a topology until it receives SIGTERM or Ctrl-C.

        With access.toml only the identities in that file can connect, and each may do what the file allows.

        Exit code 0 after a graceful stop, 2 if it cannot start or its disk fails.
        """
        from antecede.cli.amounts import keeping
        from antecede.cli.live import check_folder, listening_address, read_token, server_security, tls_contexts
        from antecede.cli.organisation import usable_topology
        from antecede.errors import UsageError
        from antecede.live.application import find_beside
        from antecede.live.logs import write_logs
        from antecede.live.metrics import page_address
        from antecede.live.process import run
        from antecede.live.process import serve as served

        if log not in ("text", "json"):
            raise UsageError(f"--log {log}: expected text or json")
        file = usable_topology(topology)
        if data is None and durability != "memory":
            raise UsageError("expected --data DIR, or --durability memory")
        if trace and durability == "memory":
            raise UsageError("--trace needs a log, and --durability memory keeps none")
        check_folder(data)
        token = read_token(token_file)
        find_beside(topology)
        write_logs(log)
        tls = tls_contexts(certificate, key, authority)
        security = server_security(file, topology, server, access, credentials)
        if security is not None and (token or tls is not None):
            raise UsageError("with an access file, --credentials replaces --token-file, --certificate and --authority")
        encrypted = tls is not None if security is None else security.credentials.tls
        listening_address(
            *(file, server, host, token), identities=security is not None, tls=encrypted, insecure=insecure
        )
        page = file.metrics.get(server) if metrics is None else page_address(metrics)
        main = served(
            file,
            server,
            data,
            metrics=page,
            until_stdin_closes=until_stdin_closes,
            durability=durability,
            token=token,
            host=host,
            tls=tls,
            security=security,
            audit=audit,
            trace=trace,
            keep=keeping(keep_trace, keep_trace_size, keep_log, keep_log_size),
        )
        return run(main)

"""``antecede serve``: run one server of a topology."""

import typer


def register(app: typer.Typer) -> None:
    @app.command("serve")
    def serve(
        topology: str = typer.Argument(..., metavar="TOPOLOGY", help="A topology file (TOML)."),
        server: str = typer.Option(..., metavar="NAME", help="Which of its servers."),
        data: str | None = typer.Option(None, metavar="DIR", help="The data directory; made if it is not there."),
        durability: str = typer.Option("disk", help="disk (survives a power cut), os (a kill) or memory (nothing)."),
        token_file: str | None = typer.Option(None, metavar="FILE", help="Who talks to this server must know this."),
        host: str | None = typer.Option(None, help="Where to listen, if not where the topology says."),
        certificate: str | None = typer.Option(None, metavar="FILE", help="TLS: this server's certificate (PEM)."),
        key: str | None = typer.Option(None, metavar="FILE", help="TLS: its key (PEM)."),
        authority: str | None = typer.Option(None, metavar="FILE", help="TLS: who signs the servers' certificates."),
        trace: bool = typer.Option(
            False, "--trace", help="Record: antecede verify DIR then judges what was sent and delivered."
        ),
        metrics: str | None = typer.Option(
            None,
            metavar="HOST:PORT",
            help="Serve /metrics, /health and /live there; PORT: on loopback. Default: as the topology says.",
        ),
        until_stdin_closes: bool = typer.Option(
            False,
            "--until-stdin-closes",
            help="Stop also when standard input ends: with the process that writes to it.",
        ),
        log: str = typer.Option("text", help="text or json, one line an event, on standard error."),
    ) -> int:
        """Run one server of a topology until it is told to stop (SIGTERM, Ctrl-C).

        Exit code 0 after a graceful stop, 2 if it cannot start or its disk fails.
        """
        from antecede.cli.live import check_folder, listening_address, read_token, tls_contexts
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
            raise UsageError("--trace reads the log, and --durability memory keeps none")
        check_folder(data)
        token = read_token(token_file)
        find_beside(topology)
        write_logs(log)
        listening_address(file, server, host, token)
        tls = tls_contexts(certificate, key, authority)
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
            trace=trace,
        )
        return run(main)

"""``antecede serve``: run one server of a topology."""

import typer

from antecede.cli.options import SERVING, TOPOLOGY, Serving
from antecede.errors import UsageError


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

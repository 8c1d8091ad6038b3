"""Options that several commands share: how a command identifies itself to servers, and what the commands that start
servers have in common."""

import typer

TOKEN = typer.Option(None, "--token-file", metavar="FILE", help="The servers' token.")
AUTHORITY = typer.Option(
    None, "--authority", metavar="FILE", help="TLS: the authority that signs the servers' certificates."
)
KEEP_TRACE = typer.Option(None, metavar="TIME", help="Delete files of the trace that are older, such as 30d.")
KEEP_TRACE_SIZE = typer.Option(
    None, metavar="SIZE", help="Delete the oldest files of the trace above 20GB, for example."
)
KEEP_LOG = typer.Option(None, metavar="TIME", help="Keep the log for this time, although it is not needed any more.")
KEEP_LOG_SIZE = typer.Option(
    None, metavar="SIZE", help="Keep that much of the log, although it is not needed any more."
)
CREDENTIALS = typer.Option(
    None,
    "--credentials",
    metavar="DIR",
    help="A folder of antecede credentials. Default: credentials/ beside the topology, if access.toml is there too.",
)

SERVERS_TOKEN = typer.Option(None, "--token-file", metavar="FILE", help="A token that clients and peers must present.")
SERVERS_KEY = typer.Option(None, "--key", metavar="FILE", help="TLS: its key (PEM).")
ACCESS = typer.Option(
    None,
    "--access",
    metavar="FILE",
    help="Who may do what. Default: access.toml beside the topology, if there is one. SIGHUP: read it again.",
)
INSECURE = typer.Option(False, "--insecure", help="Allow connections from other machines in plain text, without TLS.")
TRACE = typer.Option(False, "--trace", help="Record a trace; check it with antecede verify DIR.")

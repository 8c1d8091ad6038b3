"""Options that several commands share: how a command identifies itself to servers."""

import typer

TOKEN = typer.Option(None, "--token-file", metavar="FILE", help="The servers' token.")
AUTHORITY = typer.Option(
    None, "--authority", metavar="FILE", help="TLS: the authority that signs the servers' certificates."
)
CREDENTIALS = typer.Option(
    None,
    "--credentials",
    metavar="DIR",
    help="A folder of antecede credentials. Default: credentials/ beside the topology, if access.toml is there too.",
)

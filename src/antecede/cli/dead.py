"""``antecede dead``: letters that their agents could not react to."""

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from antecede.cli.options import AUTHORITY, CREDENTIALS, TOKEN

if TYPE_CHECKING:
    from antecede.cli.live import Access

_where = typer.Argument(..., metavar="TOPOLOGY|ADDRESS", help="A topology file, or tcp://HOST:PORT.")
_letter = typer.Argument(..., metavar="ID", help="A dead letter's id, as listed.")
_as_json = typer.Option(False, "--json", help="One JSON document on standard output.")


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Letters that their agents could not react to.")
    app.add_typer(group, name="dead")

    @group.command("list")
    def list_(
        where: str = _where,
        token_file: str | None = TOKEN,
        authority: str | None = AUTHORITY,
        credentials: str | None = CREDENTIALS,
        as_json: bool = _as_json,
    ) -> None:
        """List the dead letters of all servers that answer."""
        from antecede.cli.wording import shown_name

        letters = _all(where, _access(where, token_file, authority, credentials))
        if as_json:
            print(json.dumps(letters, indent=2))
        for one in letters if not as_json else []:
            # The whole id, because the other commands of this group need it.
            label = f' "{shown_name(one["label"])}"' if one.get("label") else ""
            print(f"{one['id']}  {one['agent']}  {one['type']}{label} from {one['from']}: {one['reason']}")
        if not letters and not as_json:
            print("no dead letters", file=sys.stderr)

    @group.command("drop")
    def drop(
        where: str = _where,
        client: str = typer.Argument(..., metavar="NAME@SERVER", help="A disconnected client, as status lists it."),
        token_file: str | None = TOKEN,
        authority: str | None = AUTHORITY,
        credentials: str | None = CREDENTIALS,
    ) -> None:
        """Empty the mailbox of a client that will not return. Its letters are deleted for good."""
        print(json.dumps(_drop(where, _access(where, token_file, authority, credentials), client), indent=2))

    for name, does in (
        ("show", "Show one dead letter, with its fields."),
        ("replay", "Send a dead letter again, as a new letter to the agent that could not react."),
        ("bury", "Remove a dead letter from the list for good."),
    ):
        group.command(name, help=does)(_command(name))


def _access(where: str, token_file: str | None, authority: str | None, credentials: str | None) -> "Access":
    from antecede.cli.live import Access

    return Access(where, "operator", token_file, authority, credentials)


def _command(name: str) -> Callable[..., None]:
    def command(
        where: str = _where,
        letter: str = _letter,
        token_file: str | None = TOKEN,
        authority: str | None = AUTHORITY,
        credentials: str | None = CREDENTIALS,
    ) -> None:
        print(
            json.dumps(
                _one(where, _access(where, token_file, authority, credentials), f"dead-{name}", letter), indent=2
            )
        )

    return command


def _all(where: str, access: "Access") -> list[dict[str, Any]]:
    from antecede.cli.live import addresses, ask_server

    letters: list[dict[str, Any]] = []
    for address in addresses(where).values():
        letters += ask_server(address, access, "dead-list")
    return letters


def _drop(where: str, access: "Access", client: str) -> Any:
    from antecede.cli.live import addresses, ask_server
    from antecede.errors import UsageError

    servers = addresses(where)
    home = client.rpartition("@")[2]
    if "@" not in client or (home not in servers and not where.startswith("tcp://")):
        raise UsageError(f"client {client!r}: expected NAME@SERVER with one of {', '.join(servers)}")
    address = servers[home] if home in servers else next(iter(servers.values()))
    return ask_server(address, access, "mailbox-drop", client)


def _one(where: str, access: "Access", command: str, letter: str) -> Any:
    """Find the server that has the letter, and send it the command."""
    from antecede.cli.live import addresses, ask_server
    from antecede.errors import UsageError

    for address in addresses(where).values():
        for one in ask_server(address, access, "dead-list"):
            if letter in (one["id"], one["key"]):
                return ask_server(address, access, command, letter)
    raise UsageError(f"no server has a dead letter {letter!r}")

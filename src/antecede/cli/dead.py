"""``antecede dead``: letters that their agents could not react to."""

import json
from typing import Any

import typer

_where = typer.Argument(..., metavar="TOPOLOGY|ADDRESS", help="A topology file, or tcp://HOST:PORT.")
_letter = typer.Argument(..., metavar="ID", help="A dead letter's id, as listed.")
_token = typer.Option(None, "--token-file", metavar="FILE", help="The servers' token.")
_as_json = typer.Option(False, "--json", help="One JSON document on standard output.")


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Letters that their agents could not react to.")
    app.add_typer(group, name="dead")

    @group.command("list")
    def list_(where: str = _where, token_file: str | None = _token, as_json: bool = _as_json) -> None:
        """List them, over all servers that answer."""
        letters = _all(where, token_file)
        if as_json:
            print(json.dumps(letters, indent=2))
        for one in letters if not as_json else []:
            print(f"{one['id']}  {one['agent']}  {one['type']} from {one['from']}: {one['reason']}")

    @group.command("show")
    def show(where: str = _where, letter: str = _letter, token_file: str | None = _token) -> None:
        """One of them, with its fields."""
        print(json.dumps(_one(where, token_file, "dead-show", letter), indent=2))

    @group.command("replay")
    def replay(where: str = _where, letter: str = _letter, token_file: str | None = _token) -> None:
        """Send it again, as a new letter to the agent that could not react."""
        print(json.dumps(_one(where, token_file, "dead-replay", letter)))

    @group.command("bury")
    def bury(where: str = _where, letter: str = _letter, token_file: str | None = _token) -> None:
        """Take it off the list for good."""
        print(json.dumps(_one(where, token_file, "dead-bury", letter)))


def _all(where: str, token_file: str | None) -> list[dict[str, Any]]:
    from antecede.cli.live import addresses, ask_server, read_token

    token = read_token(token_file)
    letters: list[dict[str, Any]] = []
    for address in addresses(where).values():
        letters += ask_server(address, token, "dead-list")
    return letters


def _one(where: str, token_file: str | None, command: str, letter: str) -> Any:
    """Find the server that has the letter, and ask it."""
    from antecede.cli.live import addresses, ask_server, read_token
    from antecede.errors import UsageError

    token = read_token(token_file)
    for address in addresses(where).values():
        for one in ask_server(address, token, "dead-list"):
            if letter in (one["id"], one["key"]):
                return ask_server(address, token, command, letter)
    raise UsageError(f"no server has a dead letter {letter!r}")

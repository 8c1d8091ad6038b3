"""``antecede dead``: letters that their agents could not react to.

All commands work with the servers that answer, and name those that do not on standard error. The exit code is 2 only if
nothing could be done.
"""

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import typer

from antecede.cli.options import AUTHORITY, CREDENTIALS, TOKEN
from antecede.cli.wording import counted

_where = typer.Argument(..., metavar="TOPOLOGY|ADDRESS", help="A topology file, or tcp://HOST:PORT.")
_letter = typer.Argument(..., metavar="ID", help="A dead letter's id, as listed.")
_letter_or_not = typer.Argument(None, metavar="ID", help="A dead letter's id, as listed.")
_agent = typer.Option("", "--agent", metavar="NAME", help="Only letters to this agent or client.")
_type = typer.Option("", "--type", metavar="NAME", help="Only notifications of this type.")
_reason = typer.Option("", "--reason", metavar="TEXT", help="Only letters whose reason contains this text.")
_older = typer.Option(None, "--older", metavar="SECONDS", help="Only letters that died at least this long ago.")
_every = typer.Option(False, "--all", help="All that fit the filters; without filters, all.")
_as_json = typer.Option(False, "--json", help="Print one JSON document on standard output.")


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Letters that their agents could not react to.")
    app.add_typer(group, name="dead")

    @group.command("list")
    def list_(
        where: str = _where,
        first: int = typer.Option(0, "--first", metavar="N", help="At most this number of letters; 0: all."),
        after: str = typer.Option("", "--after", metavar="PLACE", help="Continue after this place: SERVER:NUMBER."),
        agent: str = _agent,
        type_: str = _type,
        reason: str = _reason,
        older: float | None = _older,
        token_file: str | None = TOKEN,
        authority: str | None = AUTHORITY,
        credentials: str | None = CREDENTIALS,
        as_json: bool = _as_json,
    ) -> None:
        """List the dead letters of all servers that answer, oldest first. Each has a place, such as s1:17, after which
        the next page begins: --first 100 --after s1:17."""
        from antecede.cli.dead_pages import Filter, access_of, listed
        from antecede.cli.wording import shown_name

        chosen = Filter(agent, type_, reason, older, time.time())
        letters = listed(where, access_of(where, token_file, authority, credentials), chosen, first, after)
        if as_json:
            _print_list(letters)
            return
        count, one = 0, {}
        for one in letters:
            count += 1
            label = f' "{shown_name(one["label"])}"' if one.get("label") else ""
            who = f"{one['type']}{label} from {one['from']}"
            print(f"{one['id']}  {one['agent']}  {who}: {one['reason']}{_holding(one)}")
        if not count:
            print("no dead letters", file=sys.stderr)
        elif count == first:
            print(f"there may be more: --first {first} --after {one['place']}", file=sys.stderr)

    @group.command("show")
    def show(
        where: str = _where,
        letter: str = _letter,
        token_file: str | None = TOKEN,
        authority: str | None = AUTHORITY,
        credentials: str | None = CREDENTIALS,
    ) -> None:
        """Show one dead letter, with its fields."""
        from antecede.cli.dead_pages import access_of, one_letter

        print(
            json.dumps(
                one_letter(where, access_of(where, token_file, authority, credentials), "dead-show", letter), indent=2
            )
        )

    for name, does in (
        ("replay", "Send dead letters again, as new letters to the agents that could not react."),
        ("bury", "Remove dead letters from the list for good."),
    ):
        _many(group, name, does)

    @group.command("drop")
    def drop(
        where: str = _where,
        client: str | None = typer.Argument(
            None,
            metavar="NAME@SERVER",
            help="A disconnected client, as status lists it; leave it out with --all or --like.",
        ),
        every: bool = typer.Option(False, "--all", help="Empty the mailboxes of all disconnected clients."),
        like: str = typer.Option(
            "",
            "--like",
            metavar="PATTERN",
            help="Empty the mailboxes of disconnected clients whose address matches, for example 'tmp-*@s1'.",
        ),
        token_file: str | None = TOKEN,
        authority: str | None = AUTHORITY,
        credentials: str | None = CREDENTIALS,
    ) -> None:
        """Empty the mailbox of a client that will not return. Its letters are deleted for good."""
        from antecede.cli.dead_pages import access_of, drop_all, drop_one
        from antecede.errors import UsageError

        if (client is not None) + every + bool(like) != 1:
            raise UsageError("expected one of NAME@SERVER, --all and --like PATTERN")
        access = access_of(where, token_file, authority, credentials)
        document = drop_all(where, access, like or "*") if client is None else drop_one(where, access, client)
        print(json.dumps(document, indent=2))
        if not document["dropped"]:
            print("no letters were dropped: " + _nothing_to_drop(client, like), file=sys.stderr)


def _many(group: typer.Typer, name: str, does: str) -> None:
    @group.command(
        name, help=f"{does} Give one ID, or choose many with --all or filters. If it is interrupted, run it again."
    )
    def command(
        where: str = _where,
        letter: str | None = _letter_or_not,
        every: bool = _every,
        agent: str = _agent,
        type_: str = _type,
        reason: str = _reason,
        older: float | None = _older,
        token_file: str | None = TOKEN,
        authority: str | None = AUTHORITY,
        credentials: str | None = CREDENTIALS,
    ) -> None:
        from antecede.cli.dead_pages import Filter, access_of, many, one_letter
        from antecede.errors import UsageError

        access = access_of(where, token_file, authority, credentials)
        chosen = Filter(agent, type_, reason, older, time.time())
        if (letter is not None) == (every or chosen.any):
            raise UsageError("expected the ID of one dead letter, or --all, or filters")
        if letter is not None:
            document = one_letter(where, access, f"dead-{name}", letter)
        else:
            document = many(where, access, name, chosen)
            if not document["buried" if name == "bury" else "replayed"] and not document["skipped"]:
                fit = "that fit the filters" if chosen.any else ""
                print(f"nothing to {name}: there are no dead letters {fit}".rstrip(), file=sys.stderr)
        print(json.dumps(document, indent=2))


def _holding(one: dict[str, Any]) -> str:
    """Return how many letters of its agent wait for a decision about a dead letter, and how sure it is that they follow
    from it."""
    if not one.get("holds"):
        return ""
    held, undecided = counted(one["holds"], "letter"), one["undecided"]
    return f" (holds {held}" + (f", {undecided} of which may not follow from it)" if undecided else ")")


def _nothing_to_drop(client: str | None, like: str) -> str:
    if client is not None:
        return f"the mailbox of {client} is empty"
    return f"no disconnected client fits {like}" if like else "no disconnected client has any"


def _print_list(letters: Iterator[dict[str, Any]]) -> None:
    """Print a JSON list while its elements come."""
    print("[", end="")
    gap = "\n  "
    for one in letters:
        print(gap + json.dumps(one), end="")
        gap = ",\n  "
    print("]" if gap == "\n  " else "\n]")

"""``antecede dead``: letters that could not be handled or delivered.

All commands work with the servers that answer. They print the names of the other servers on standard error. The exit
code is 2 only if nothing could be done.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import typer

from antecede.cli.dead_pages import Filters, drop_all, drop_one, listed, many, one_letter
from antecede.cli.options import JSON, KEYS, WHERE, Keys
from antecede.cli.wording import counted, shown_name, shown_text
from antecede.errors import UsageError

_filters = Filters()


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True,
        help="Manage dead letters: letters that could not be delivered or handled.",
    )
    app.add_typer(group, name="dead")

    @group.command("list")
    def list_(
        where: str = WHERE,
        first: int = typer.Option(0, metavar="N", help="List at most N letters. With 0, all letters are listed."),
        after: str = typer.Option("", metavar="PLACE", help="List only letters after this place (SERVER:NUMBER)."),
        filters: Filters = _filters,
        keys: Keys = KEYS,
        as_json: bool = JSON,
    ) -> None:
        """List the dead letters of all servers that answer, server by server, oldest first.

        If the list ends because of --first, a last line shows the options that list the next letters. With --json there
        is no such line. Instead, each letter has a "place". To list the next letters, set --after to the place of the
        last letter.
        """
        letters = listed(where, keys, filters, first, after)
        if as_json:
            _print_list(letters)
            return
        count, one = 0, {}
        for one in letters:
            count += 1
            label = f' "{shown_name(one["label"])}"' if one.get("label") else ""
            description = f"{shown_name(one['type'])}{label} from {shown_name(one['from'])}"
            reason = shown_text(one["reason"])
            print(f"{one['id']}  {shown_name(one['agent'])}  {description}: {reason}{_holding(one)}")
        if not count:
            print("no dead letters", file=sys.stderr)
        elif count == first:
            print(f"there may be more: --first {first} --after {one['place']}", file=sys.stderr)

    @group.command("show")
    def show(
        where: str = WHERE,
        letter: str = typer.Argument(..., metavar="ID", help="Id of the letter, as `antecede dead list` shows it."),
        keys: Keys = KEYS,
    ) -> None:
        """Show the fields of one dead letter."""
        print(json.dumps(one_letter(where, keys, "dead-show", letter), indent=2))

    _many(
        group,
        "replay",
        "Send dead letters again, as new letters to the same agents or clients. The dead letters are removed from the "
        "list.",
        "If the command is interrupted, run it again: no letter is sent twice.",
    )
    _many(
        group, "bury", "Remove dead letters from the list permanently.", "If the command is interrupted, run it again."
    )

    @group.command("drop")
    def drop(
        where: str = WHERE,
        client: str | None = typer.Argument(
            None,
            metavar="NAME@SERVER",
            help="A disconnected client, as `antecede client list` shows it. Give a client, or --all, or --like.",
        ),
        every: bool = typer.Option(False, "--all", help="Empty the mailboxes of all disconnected clients."),
        like: str = typer.Option(
            "",
            metavar="PATTERN",
            help="Empty the mailboxes of the disconnected clients whose address matches PATTERN, such as 'tmp-*@s1'.",
        ),
        keys: Keys = KEYS,
    ) -> None:
        """Empty the mailboxes of clients that will not return. The letters in these mailboxes are deleted
        permanently."""
        if (client is not None) + every + bool(like) != 1:
            raise UsageError("expected exactly one of NAME@SERVER, --all and --like PATTERN")
        document = drop_all(where, keys, like or "*") if client is None else drop_one(where, keys, client)
        print(json.dumps(document, indent=2))
        if not document["dropped"]:
            print("no letters were dropped: " + _nothing_to_drop(client, like), file=sys.stderr)


def _many(group: typer.Typer, name: str, does: str, again: str) -> None:
    @group.command(
        name,
        help=f"{does}\n\nGive the ID of one letter, or --all, or filters (--agent, --type, --reason, --older). A "
        f"letter is selected if it matches all given filters. {again}",
    )
    def command(
        where: str = WHERE,
        letter: str | None = typer.Argument(
            None, metavar="ID", help="Id of the letter, as `antecede dead list` shows it."
        ),
        every: bool = typer.Option(False, "--all", help="Select all dead letters. Not needed with filters."),
        filters: Filters = _filters,
        keys: Keys = KEYS,
    ) -> None:
        if (letter is not None) == (every or filters.any):
            raise UsageError("expected either the ID of one dead letter, or --all, or filters such as --agent NAME")
        if letter is not None:
            document = one_letter(where, keys, f"dead-{name}", letter)
        else:
            document = many(where, keys, name, filters)
            if not document["buried" if name == "bury" else "replayed"] and not document["skipped"]:
                fit = "that match the filters" if filters.any else ""
                print(f"nothing to {name}: there are no dead letters {fit}".rstrip(), file=sys.stderr)
        print(json.dumps(document, indent=2))


def _holding(one: dict[str, Any]) -> str:
    """Return a text about the letters that wait because of the dead letter ``one``. Such letters have the same agent as
    ``one``. They wait until an operator replays or removes this agent's dead letters. The text says how many letters
    wait, and how many of them may be independent of the dead letters. If no letter waits, return an empty text."""
    if not one.get("holds"):
        return ""
    held, undecided = counted(one["holds"], "letter"), one["undecided"]
    return f" (holds {held}" + (f"; {undecided} of them may not follow from it)" if undecided else ")")


def _nothing_to_drop(client: str | None, like: str) -> str:
    if client is not None:
        return f"the mailbox of {client} is empty"
    return f"no disconnected client matches {like}" if like else "no disconnected client has letters"


def _print_list(letters: Iterator[dict[str, Any]]) -> None:
    """Print dead letters as a JSON list. Print each letter as soon as a server has sent it."""
    print("[", end="")
    gap = "\n  "
    for one in letters:
        print(gap + json.dumps(one), end="")
        gap = ",\n  "
    print("]" if gap == "\n  " else "\n]")

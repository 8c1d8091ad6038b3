"""``antecede dead``: letters that could not be handled or delivered.

All commands work with the servers that answer. They print the names of the other servers on standard error. The exit
code is 2 only if nothing could be done. A server handles one page of letters per request
(:mod:`antecede.server.operations`). The functions here repeat requests until all pages are handled, and
show the progress."""

import fnmatch
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import typer

from antecede.cli.options import JSON, KEYS, WHERE, Keys
from antecede.cli.servers import Access, addresses, ask_server, read_topology
from antecede.cli.terminal import bar
from antecede.cli.wording import counted, shown_name, shown_text
from antecede.crashes import print_error
from antecede.errors import AntecedeError, ClosedError, MissingError, OverloadError, RefusedError, UsageError
from antecede.limits import dead_page_letters_max
from antecede.topology import Address


class Filters(NamedTuple):
    """The filters that select dead letters."""

    agent: str = typer.Option("", metavar="NAME", help="Select only letters to this agent or client.")
    type_: str = typer.Option(
        "", "--type", metavar="NAME", help="Select only letters with a notification of this type."
    )
    reason: str = typer.Option("", metavar="TEXT", help="Select only letters whose reason contains this text.")
    older: float | None = typer.Option(
        None, metavar="SECONDS", help="Select only letters that became dead letters at least SECONDS ago."
    )

    @property
    def any(self) -> bool:
        """Return whether at least one filter is set."""
        return bool(self.agent or self.type_ or self.reason or self.older is not None)

    def arguments(self) -> tuple[str, str, str, str]:
        """Return the filters as the last four arguments of a request for a page. The age ``older`` becomes a point in
        time: now minus this age, in milliseconds since 1970. If ``older`` is not set, this argument is "0"."""
        now = time.time()
        if self.older is not None and not 0 <= self.older <= now:
            raise UsageError(f"--older {self.older}: expected a number of seconds, at most the time since 1970")
        before = "0" if self.older is None else str(int((now - self.older) * 1000))
        return self.agent, self.type_, self.reason, before


class Servers:
    """The servers to which a command sends requests. If one of several servers does not answer, its error is printed
    one time only, and the command continues with the other servers.

    A server handles one page per request (:mod:`antecede.server.operations`). These functions repeat
    requests until all pages are handled, and show the progress. If a server does not answer, they print its name on
    standard error, and continue with the other servers.
    """

    def __init__(self, where: str, keys: Keys) -> None:
        self.access = Access(where, "operator", *keys)
        self.addresses = addresses(where)
        file = None if where.startswith("tcp://") else read_topology(where)
        self._moved = {} if file is None else file.moved
        """For each removed server: the server that has its clients now."""
        self.topics = [] if file is None else [one.name for one in file.agents if one.kind == "antecede:Topic"]
        self.down: dict[str, str] = {}
        self.answered = 0

    def ask(self, name: str, command: str, *arguments: str) -> Any:
        """Send one request to a server, and return the answer. If the server does not answer or refuses the connection,
        record this failure and return None."""
        try:
            return self.demand(name, command, *arguments)
        except (ClosedError, RefusedError) as error:
            self.lost(name, error)
            return None

    def demand(self, name: str, command: str, *arguments: str) -> Any:
        """Send one request to a server, and return the answer. Raise an error if the server does not answer or refuses
        the connection."""
        document = ask_server(self.addresses[name], self.access, command, *arguments)
        self.answered += 1
        return document

    def lost(self, name: str, error: AntecedeError) -> None:
        """Record that a server does not answer. If there are several servers, print the error, but only once per
        server."""
        if name not in self.down and len(self.addresses) > 1:
            print_error(f"server {name}: {error}")
        self.down[name] = str(error)

    def pages(self, name: str, request: Callable[[Any], tuple[str, ...]], retry: bool = False) -> Iterator[Any]:
        """Yield the answers of a server, page by page, until all pages have come or the server does not answer.
        ``request``: a function that gets the previous page (None before the first page), and returns the command and
        the arguments for the next page. ``retry``: whether to try again while the server is overloaded."""
        page: Any = None
        while page is None or page["more"]:
            page = self.ask_with_retries(name, *request(page)) if retry else self.ask(name, *request(page))
            if page is None:
                return
            yield page

    def ask_with_retries(self, name: str, command: str, *arguments: str) -> Any:
        """Send a request and return its answer, as :meth:`ask` does. While the server is overloaded, try again. Raise
        :class:`OverloadError` if the server is still overloaded after a minute."""
        until = time.monotonic() + _retry_seconds
        while True:
            try:
                return self.ask(name, command, *arguments)
            except OverloadError as error:
                if time.monotonic() > until:
                    raise OverloadError(
                        f"server {name}: {error}; run the same command again to continue there"
                    ) from None
                time.sleep(_pause_seconds)

    def check(self) -> None:
        """Raise an error if no server answered."""
        if not self.answered:
            raise ClosedError(next(iter(self.down.values())) if len(self.down) == 1 else "no server has answered")

    def home(self, client: str) -> str:
        """Return the name of the server that has a client. If the server in the client's address was removed, another
        server has the client."""
        name, _, server = client.rpartition("@")
        server = self._moved.get(server, server)
        alone = len(self.addresses) == 1 and next(iter(self.addresses)).startswith("tcp://")
        if not name or (server not in self.addresses and not alone):
            known = ", ".join([*self.addresses, *self._moved])
            raise UsageError(f"client {client!r}: expected NAME@SERVER, where SERVER is one of {known}")
        return server if server in self.addresses else next(iter(self.addresses))

    def drop(self, name: str, command: str, client: str) -> dict[str, Any]:
        """Delete the letters that wait for a client: repeat the request ``command`` until no letter is left. Return the
        number of deleted letters, and the names of the server and the client."""
        page: dict[str, Any] = {"left": 1}
        dropped = 0
        with bar(f"drop letters of {client}") as (_, report_progress):
            while page["left"]:
                page = self.demand(name, command, client)
                dropped += page["dropped"]
                report_progress(dropped, dropped + page["left"])
        return {"server": page["server"], "dropped": dropped, "client": client}


def listed(where: str, keys: Keys, filters: Filters, first: int, after: str) -> Iterator[dict[str, Any]]:
    """Yield dead letters, server by server, oldest first. ``first``: the largest number of letters to yield; 0 means no
    limit. ``after``: a place (SERVER:NUMBER). Only letters after this place are yielded. If ``after`` is empty, the
    list begins with the first letter."""
    servers = Servers(where, keys)
    place = _place(after, servers.addresses)
    if first < 0:
        raise UsageError(f"--first {first}: expected 0 or more")
    arguments = filters.arguments()
    shown = 0
    for name in servers.addresses:
        number = 0
        if place is not None:
            if name != place[0]:
                continue
            number, place = place[1], None

        def request(page: Any, number: int = number) -> tuple[str, ...]:
            upto = number if page is None else page["upto"]
            most = min(first or dead_page_letters_max, dead_page_letters_max)
            return "dead-page", str(upto), "0", str(most), *arguments

        for page in servers.pages(name, request):
            for letter in page["letters"]:
                yield letter
                shown += 1
                if shown == first:
                    return
    servers.check()


def _place(after: str, servers: dict[str, Address]) -> tuple[str, int] | None:
    if not after:
        return None
    server, _, number = after.rpartition(":")
    alone = next(iter(servers))
    if not number.isdecimal() or (server not in servers and not alone.startswith("tcp://")):
        raise UsageError(f"--after {after}: expected SERVER:NUMBER, as antecede dead list prints it")
    return (server if server in servers else alone), int(number)


def one_letter(where: str, keys: Keys, command: str, letter: str) -> Any:
    """Send a command about one dead letter to the servers, one by one. Stop at the first server that has the letter,
    and return the answer of this server."""
    servers = Servers(where, keys)
    for name in servers.addresses:
        try:
            document = servers.ask(name, command, letter)
        except MissingError:
            servers.answered += 1
            continue
        if document is not None:
            return document
    servers.check()
    also = f"; no answer from {', '.join(servers.down)}" if servers.down else ""
    raise UsageError(f"no server has a dead letter with the id {letter!r}{also}")


def many(where: str, keys: Keys, action: str, filters: Filters) -> dict[str, Any]:
    """Replay (deliver again) or bury (remove) all dead letters that match the filters, on all servers that answer.
    Letters that become dead letters while this function runs are not included."""
    servers = Servers(where, keys)
    done = f"{action}ed" if action == "replay" else "buried"
    document: dict[str, Any] = {done: 0, "skipped": 0, "servers": {}}
    arguments = filters.arguments()
    with bar(f"{action} dead letters") as (report_status, report_progress):
        for name in servers.addresses:
            state, total = {"last": 0, done: 0, "skipped": 0}, 0

            def request(page: Any, state: dict[str, int] = state) -> tuple[str, ...]:
                upto = 0 if page is None else page["upto"]
                return f"dead-{action}-page", str(upto), str(state["last"]), "0", *arguments

            for page in servers.pages(name, request, retry=True):
                if not state["last"]:
                    state["last"], total = page["last"], page["dead"]
                    report_status(f"{action} dead letters of {page['server']}")
                state[done] += page[done]
                state["skipped"] += page.get("skipped", 0)
                report_progress(min(state[done], total), total)
            document[done] += state[done]
            document["skipped"] += state["skipped"]
            if name not in servers.down or state[done]:
                document["servers"][name] = {done: state[done], "skipped": state["skipped"]}
    servers.check()
    return {**document, "down": servers.down}


def drop_one(where: str, keys: Keys, client: str) -> dict[str, Any]:
    """Empty the mailbox of one client."""
    servers = Servers(where, keys)
    return servers.drop(servers.home(client), "mailbox-drop", client)


def drop_all(where: str, keys: Keys, pattern: str = "*") -> dict[str, Any]:
    """Empty the mailboxes of all disconnected clients whose addresses match a shell pattern."""
    servers = Servers(where, keys)
    dropped: dict[str, int] = {}
    for name in servers.addresses:
        while (status := servers.ask(name, "status")) is not None:
            away = [client for client in fnmatch.filter(status["clients"]["away"], pattern) if client not in dropped]
            for client in away:
                try:
                    dropped[client] = servers.drop(name, "mailbox-drop", client)["dropped"]
                except (ClosedError, RefusedError) as error:
                    servers.lost(name, error)
            if not away or name in servers.down:
                break
    servers.check()
    return {"dropped": sum(dropped.values()), "clients": dropped, "down": servers.down}


_retry_seconds = 60.0
_pause_seconds = 0.5


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

"""``antecede client``: the clients of all servers, for operators."""

import json
import sys
from contextlib import suppress
from typing import Any

import typer

from antecede.cli.options import AUTHORITY, CREDENTIALS, TOKEN

_where = typer.Argument(..., metavar="TOPOLOGY|ADDRESS", help="A topology file, or tcp://HOST:PORT.")
_client = typer.Argument(..., metavar="NAME@SERVER", help="A client, as listed.")
_some_topics = typer.Argument(..., metavar="TOPIC", help="The topics.")


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Clients of the servers, their mailboxes and subscriptions.")
    app.add_typer(group, name="client")

    @group.command("list")
    def list_(
        where: str = _where,
        away: bool = typer.Option(False, "--away", help="Only disconnected clients."),
        token_file: str | None = TOKEN,
        authority: str | None = AUTHORITY,
        credentials: str | None = CREDENTIALS,
        as_json: bool = typer.Option(False, "--json", help="Print one JSON document on standard output."),
    ) -> None:
        """List the clients that the servers know, with the number of their publishes and of letters that wait."""
        from antecede.cli.dead_pages import access_of

        clients = [
            one
            for one in _listed(where, access_of(where, token_file, authority, credentials))
            if not (away and one["connected"])
        ]
        if as_json:
            print(json.dumps(clients, indent=2))
            return
        for one in clients:
            state = "connected" if one["connected"] else "away"
            print(f"{one['client']}  {state}, {one['published']} published, {one['waiting']} waiting")
        if not clients:
            print("no clients", file=sys.stderr)

    @group.command("remove")
    def remove(
        where: str = _where,
        client: str = _client,
        token_file: str | None = TOKEN,
        authority: str | None = AUTHORITY,
        credentials: str | None = CREDENTIALS,
    ) -> None:
        """Remove a client that will not return: end its subscriptions, delete its letters, forget its publishes.

        Its subscriptions end at all topics of the topology file with the class antecede:Topic. For other topics run
        "antecede client unsubscribe" first.
        """
        from antecede.cli.dead_pages import Servers, access_of, dropped_from
        from antecede.errors import MissingError

        servers = Servers(where, access_of(where, token_file, authority, credentials))
        home, topics = servers.home(client), _topics(where)
        # This comes first, because it is refused if the client is connected.
        dropped = dropped_from(servers, home, "client-remove", client)["dropped"]
        for topic in topics:
            servers.demand(home, "client-unsubscribe", client, topic)
        with suppress(MissingError):
            # Letters may have come meanwhile.
            dropped += dropped_from(servers, home, "client-remove", client)["dropped"]
        print(json.dumps({"client": client, "dropped": dropped, "unsubscribed": topics}, indent=2))

    @group.command("unsubscribe")
    def unsubscribe(
        where: str = _where,
        client: str = _client,
        topics: list[str] = _some_topics,
        token_file: str | None = TOKEN,
        authority: str | None = AUTHORITY,
        credentials: str | None = CREDENTIALS,
    ) -> None:
        """End the subscriptions of a client to some topics, as if it had done so itself."""
        from antecede.cli.dead_pages import Servers, access_of

        servers = Servers(where, access_of(where, token_file, authority, credentials))
        for topic in topics:
            servers.demand(servers.home(client), "client-unsubscribe", client, topic)
        print(json.dumps({"client": client, "unsubscribed": topics}, indent=2))


def _topics(where: str) -> list[str]:
    if where.startswith("tcp://"):
        return []
    from antecede.cli.organisation import read_topology

    return [agent.name for agent in read_topology(where).agents if agent.kind == "antecede:Topic"]


def _listed(where: str, access: Any) -> list[dict[str, Any]]:
    from antecede.cli.dead_pages import Servers

    servers = Servers(where, access)
    clients: list[dict[str, Any]] = []

    def request(page: Any) -> tuple[str, ...]:
        return "client-list", page["clients"][-1]["client"] if page is not None and page["clients"] else ""

    for name in servers.addresses:
        for page in servers.pages(name, request):
            clients += page["clients"]
    servers.check()
    return clients

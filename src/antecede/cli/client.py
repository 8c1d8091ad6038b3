"""``antecede client``: lists and removes clients, and ends their subscriptions, for operators."""

import json
import sys
from contextlib import suppress
from typing import Any

import typer

from antecede.cli.dead import Servers
from antecede.cli.options import JSON, KEYS, WHERE, Keys
from antecede.cli.wording import shown_text
from antecede.errors import MissingError

_client = typer.Argument(..., metavar="NAME@SERVER", help="The client, as `antecede client list` shows it.")
_some_topics = typer.Argument(..., metavar="TOPIC", help="One or more topics.")


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True, help="Manage the clients of the servers, their mailboxes and subscriptions."
    )
    app.add_typer(group, name="client")

    @group.command("list")
    def list_(
        where: str = WHERE,
        away: bool = typer.Option(False, "--away", help="List only disconnected clients."),
        keys: Keys = KEYS,
        as_json: bool = JSON,
    ) -> None:
        """List the clients of all servers. For each client, show the number of the last message that it published, and
        how many letters wait for it."""
        clients = [one for one in _listed(where, keys) if not (away and one["connected"])]
        if as_json:
            print(json.dumps(clients, indent=2))
            return
        for one in clients:
            state = "connected" if one["connected"] else "away"
            print(f"{shown_text(one['client'])}  {state}, last publish {one['published']}, {one['waiting']} waiting")
        if not clients:
            print("no clients", file=sys.stderr)

    @group.command("remove")
    def remove(
        where: str = WHERE,
        client: str = _client,
        keys: Keys = KEYS,
    ) -> None:
        """Remove a client that will not return: end its subscriptions, and delete the letters that wait for it.

        Messages that the client has published are still delivered. The command ends only subscriptions to topics whose
        class in the topology file is antecede:Topic. For other topics, run `antecede client unsubscribe` first.
        """
        servers = Servers(where, keys)
        home = servers.home(client)
        # This comes first, because it is refused if the client is connected.
        dropped = servers.drop(home, "client-remove", client)["dropped"]
        for topic in servers.topics:
            servers.demand(home, "client-unsubscribe", client, topic)
        with suppress(MissingError):
            # Letters may have come meanwhile.
            dropped += servers.drop(home, "client-remove", client)["dropped"]
        print(json.dumps({"client": client, "dropped": dropped, "unsubscribed": servers.topics}, indent=2))

    @group.command("unsubscribe")
    def unsubscribe(
        where: str = WHERE,
        client: str = _client,
        topics: list[str] = _some_topics,
        keys: Keys = KEYS,
    ) -> None:
        """End the subscriptions of a client to one or more topics, as if the client itself had unsubscribed."""
        servers = Servers(where, keys)
        for topic in topics:
            servers.demand(servers.home(client), "client-unsubscribe", client, topic)
        print(json.dumps({"client": client, "unsubscribed": topics}, indent=2))


def _listed(where: str, keys: Keys) -> list[dict[str, Any]]:
    servers = Servers(where, keys)
    clients: list[dict[str, Any]] = []

    def request(page: Any) -> tuple[str, ...]:
        return "client-list", page["clients"][-1]["client"] if page is not None and page["clients"] else ""

    for name in servers.addresses:
        for page in servers.pages(name, request):
            clients += page["clients"]
    servers.check()
    return clients

"""``antecede status``: how the servers of a topology are."""

import json
from typing import Any

import typer


def register(app: typer.Typer) -> None:
    @app.command("status")
    def status(
        where: str = typer.Argument(..., metavar="TOPOLOGY|ADDRESS", help="A topology file, or tcp://HOST:PORT."),
        token_file: str | None = typer.Option(None, metavar="FILE", help="The servers' token."),
        authority: str | None = typer.Option(None, metavar="FILE", help="TLS: who signs the servers' certificates."),
        as_json: bool = typer.Option(False, "--json", help="One JSON document on standard output."),
    ) -> int:
        """Health, links, queue depths, what held messages wait for. Exit code 1 unless every server is well."""
        from antecede.cli.live import Access, addresses, ask_server
        from antecede.errors import ClosedError, RefusedError

        access = Access(token_file, authority)
        servers: dict[str, Any] = {}
        for name, address in addresses(where).items():
            try:
                document = ask_server(address, access, "status")
                servers[document["server"]] = document
            except (ClosedError, RefusedError) as error:
                servers[name] = {"server": name, "health": "no answer", "trouble": str(error)}
        well = all(one["health"] == "ok" for one in servers.values())
        if as_json:
            print(json.dumps({"well": well, "servers": servers}, indent=2))
        else:
            for one in servers.values():
                _report(one)
        return 0 if well else 1


def _report(one: dict[str, Any]) -> None:
    print(f"{one['server']}: {one['health']}" + (f" ({one['trouble']})" if one["trouble"] else ""))
    if one["health"] == "no answer":
        return
    clients = ", ".join(one["clients"]["here"]) or "none"
    print(f"  letters waiting {one['waiting_letters']}, reactions {one['reactions']}, dead {one['dead']}")
    print(f"  records {one['log']['last']}, durable {one['log']['durable']}; clients here: {clients}")
    for agent, depth in one["mailboxes"].items():
        print(f"  mailbox of {agent}: {depth}")
    for name, domain in one["domains"].items():
        for peer, link in domain["links"].items():
            state = "connected" if link["connected"] else "not connected"
            print(
                f"  {name} ({domain['order']}) with {peer}: {state}, "
                f"unacknowledged {link['unacknowledged']}, held {link['held']}"
            )
        for held in domain["held"]:
            missing = "; ".join(f"{peer}: frames {numbers}" for peer, numbers in held["missing"].items() if numbers)
            print(f"  {name} holds {held['message']} of {held['from']}: waits for {missing or 'what is on its way'}")
    for stopped in one["stopped"]:
        print(f"  stopped: {stopped['domain']} with {stopped['peer']}: {stopped['reason']}")
    for peer, reason in one["refused"].items():
        print(f"  refused: {peer}: {reason}")

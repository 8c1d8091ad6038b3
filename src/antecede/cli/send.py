"""``antecede send``: send one notification, or ask one question, from the command line."""

import asyncio
import json
from difflib import get_close_matches
from typing import Any

import typer

from antecede.cli.options import CLIENT, JSON, KEYS, WHERE, Keys
from antecede.cli.servers import Access, address_of, command_line, read_topology
from antecede.crashes import print_error
from antecede.errors import ClosedError, UsageError


def register(app: typer.Typer) -> None:
    @app.command("send")
    def send(
        topology: str = WHERE,
        to: str = typer.Argument(..., metavar="TO", help="Agents that get the notification, separated by commas."),
        kind: str = typer.Argument(..., metavar="TYPE", help="Name of the notification's class."),
        fields: str = typer.Argument("{}", metavar="JSON", help="Fields of the notification."),
        client: str | None = CLIENT,
        server: str | None = typer.Option(
            None, metavar="NAME", help="Server to connect to. Default: the first server by name."
        ),
        ask: bool = typer.Option(False, "--ask", help="Wait for an answer and print it."),
        timeout: float = typer.Option(10.0, help="Seconds to wait for the server, and for an answer."),
        keys: Keys = KEYS,
        as_json: bool = JSON,
    ) -> int:
        """Send one notification and wait until the server has accepted it. With --ask, print the answer.

        An accepted notification is stored on the server: by default on disk (see --durability of `antecede serve`).

        Without --ask, the command does not wait for replies. If the client has a name (--client), the server keeps
        replies for this client. Otherwise, replies are dropped.
        """
        if not timeout > 0:
            raise UsageError(f"--timeout {timeout:g}: expected more than 0 seconds")
        address = address_of(topology, server)
        try:
            document = json.loads(fields)
        except ValueError as error:
            raise UsageError(f"fields {fields!r}: not valid JSON: {error}") from None
        if not isinstance(document, dict):
            raise UsageError(f"fields {fields!r}: expected a JSON object, such as '{{\"name\": 1}}'")
        _warn_of_mistyped(topology, to)
        access = Access(topology, "client", *keys)

        async def main() -> tuple[str, dict[str, Any] | None]:
            """Return the name of the server to which the bus is connected, and the answer (None without ``--ask``)."""
            async with command_line(address, access, client, timeout) as bus:
                if not ask:
                    ticket = bus.post(to.split(","), kind, document)
                    try:
                        async with asyncio.timeout(timeout):
                            await ticket
                    except TimeoutError:
                        reason = bus.trouble or "no answer from the server"
                        raise ClosedError(f"not accepted within {timeout} s: {reason}") from None
                    return bus.address.rpartition("@")[2], None
                try:
                    found = await bus.inquire(to, kind, document, timeout=timeout)
                except TimeoutError:
                    raise ClosedError(f"no answer from {to} within {timeout} s") from None
                answer = {"type": found.type, "from": found.sender, "fields": found.fields}
                return bus.address.rpartition("@")[2], answer

        entry, answer = asyncio.run(main())
        if as_json:
            report = {"to": to.split(","), "type": kind, "accepted_by": entry, "answer": answer}
            print(json.dumps(report, indent=2, default=str))
        elif ask:
            print(json.dumps(answer, default=str))
        else:
            print(f"accepted by {entry}; to see whether {to} failed to handle it: antecede dead list {topology}")
        return 0


def _warn_of_mistyped(topology: str, to: str) -> None:
    """Print a warning for each destination NAME@SERVER that is not an agent, but has a name similar to the name of an
    agent on this server. The user may have misspelt the name of the agent. Then the letter would wait for a client with
    the misspelt name."""
    if topology.startswith("tcp://"):
        return
    homes = {agent.name: agent.server for agent in read_topology(topology).agents}
    for target in to.split(","):
        name, at, home = target.partition("@")
        close = get_close_matches(name, [agent for agent, server in homes.items() if server == home], 1)
        if at and name not in homes and close:
            print_error(
                f"{target} is not an agent: the letter waits for a client of that name. Did you mean {close[0]}?"
            )

"""``antecede objects call``: call one operation of a replicated object from the command line."""

import asyncio
import json
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from antecede.cli.live import Access
    from antecede.topology import Address


_arguments = typer.Argument(None, metavar="JSON…", help="Its arguments; a word that is not JSON is text.")


def add_call(group: typer.Typer) -> None:
    """Add the command to its group."""

    @group.command("call")
    def call(
        topology: str = typer.Argument(..., metavar="TOPOLOGY|ADDRESS", help="A topology file, or tcp://HOST:PORT."),
        object_: str = typer.Argument(..., metavar="OBJECT", help="A replicated object of the topology."),
        operation: str = typer.Argument(..., metavar="OPERATION", help="One of its operations."),
        arguments: list[str] = _arguments,
        client: str | None = typer.Option(
            None,
            metavar="NAME",
            help="The client's durable name. Default: a temporary client, deleted when the command ends.",
        ),
        server: str | None = typer.Option(None, metavar="NAME", help="The server to call. Default: the first server."),
        timeout: float = typer.Option(10.0, help="Seconds after which the call is undone."),
        token_file: str | None = typer.Option(None, metavar="FILE", help="The servers' token."),
        authority: str | None = typer.Option(
            None, metavar="FILE", help="TLS: the authority that signs the servers' certificates."
        ),
    ) -> int:
        """Call one operation at all replicas and print its answer as JSON.

        A call that fails or times out has no effect; the command exits with code 2 and the reason.
        """
        from antecede.cli.live import Access, addresses
        from antecede.errors import UsageError

        servers = addresses(topology)
        if server is not None and server not in servers:
            raise UsageError(f"{topology} has no server {server}: expected one of {', '.join(servers)}")
        address = servers[server] if server is not None else next(iter(servers.values()))
        given = [_value(text) for text in arguments or ()]
        access = Access(token_file, authority)
        answer = asyncio.run(_call(address, access, client, object_, operation, given, timeout))
        print(json.dumps(answer, default=str))
        return 0


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


async def _call(
    address: "Address",
    access: "Access",
    client: str | None,
    object_: str,
    operation: str,
    arguments: list[Any],
    timeout: float,
) -> Any:
    from antecede.cli.live import command_line

    async with command_line(address, access, client, timeout) as bus:
        return await getattr(bus.object(object_, timeout=timeout), operation)(*arguments)

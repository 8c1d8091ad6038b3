"""An operator's question to a server: one connection, one request, one JSON document."""

import asyncio
import json
import ssl
from typing import Any

from antecede import limits, wire
from antecede.errors import ClosedError, RefusedError, UsageError
from antecede.live.client.line import why_unreached
from antecede.live.tcp import TcpConnection, dial
from antecede.server.connections import Connection
from antecede.topology import Address


class _Asked:
    def __init__(self, connection: Connection, request: wire.Request) -> None:
        self._connection = connection
        self.answer: asyncio.Future[wire.Answer] = asyncio.get_running_loop().create_future()
        connection.trust(server=True)
        connection.send([request])

    def received(self, parts: list[wire.AnyPart]) -> None:
        for part in parts:
            if self.answer.done():
                return
            if isinstance(part, wire.Answer):
                self.answer.set_result(part)
            elif isinstance(part, wire.Bye):
                self.answer.set_exception(RefusedError(part.reason))

    def closed(self, reason: str, now: float) -> None:
        if not self.answer.done():
            self.answer.set_exception(ClosedError(reason or "the server closed the connection"))

    def writable(self) -> None:
        return


async def request(
    address: Address, token: str, command: str, *arguments: str, tls: ssl.SSLContext | None = None
) -> Any:
    """Send a request to a server; return the document that it answers with."""
    asked: list[_Asked] = []

    def opened(connection: TcpConnection) -> _Asked:
        asked.append(_Asked(connection, wire.Request(token, command, list(arguments))))
        return asked[0]

    try:
        connection = await dial(opened, address.host, address.port, tls)
        async with asyncio.timeout(limits.hello_seconds_max):
            answer = await asked[0].answer
    except TimeoutError:
        raise ClosedError(f"no answer from {address}") from None
    except OSError as error:
        raise ClosedError(f"no answer from {address}: {why_unreached(error)}") from None
    connection.close("done")
    document = json.loads(answer.document)
    if not answer.ok:
        raise UsageError(str(document))
    return document

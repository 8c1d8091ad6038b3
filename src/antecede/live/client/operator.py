"""An operator's request over TCP: an adapter around :class:`antecede.server.operations.operator.OperatorRequest`."""

import asyncio
import ssl
from typing import Any

from antecede import limits, wire
from antecede.access.proof import Keyring
from antecede.errors import AntecedeError, ClosedError
from antecede.live.client.line import why_unreached
from antecede.live.tcp import TcpConnection, dial
from antecede.server.operations.operator import OperatorRequest
from antecede.topology import Address


async def request(
    address: Address,
    token: str,
    command: str,
    *arguments: str,
    tls: ssl.SSLContext | None = None,
    keyring: Keyring | None = None,
    long: bool = False,
    seconds_max: float | None = None,
) -> Any:
    """Send an operator's request to a server, and return the document in the server's answer. ``keyring``: the
    operator's identity, for servers with an access file. ``long``: whether the request has many bytes, or its answer
    may take much time. ``seconds_max``: the time limit for the answer. If it is None, the usual limit applies."""
    usual = limits.change_command_seconds_max if long else limits.hello_seconds_max
    patience = usual if seconds_max is None else seconds_max
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    # If this request is cancelled, its error is of no interest.
    answer.add_done_callback(lambda done: done.cancelled() or done.exception())

    def answered(document: Any, error: AntecedeError | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(document)
        else:
            answer.set_exception(error)

    def opened(connection: TcpConnection) -> OperatorRequest:
        return OperatorRequest(connection, wire.Request(token, command, list(arguments)), answered, keyring, long=long)

    try:
        async with asyncio.timeout(patience):
            await dial(opened, address.host, address.port, tls)
            return await answer
    except TimeoutError:
        raise ClosedError(f"no answer from {address}: nothing within {patience:g} s") from None
    except OSError as error:
        raise ClosedError(f"no answer from {address}: {why_unreached(error)}") from None

"""Shared parts of the commands that run or reach servers: addresses, tokens, TLS."""

import asyncio
import ipaddress
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antecede import limits
from antecede.documents import read_text
from antecede.errors import UsageError
from antecede.topology import Address, TopologyFile

if TYPE_CHECKING:
    from antecede.live.client import Bus


def read_token(path: str | None) -> str:
    """Return the first line of a token file, or "" without a file."""
    if path is None:
        return ""
    lines = read_text(path, 4 * limits.token_bytes_max).splitlines()
    if not lines or not lines[0].strip():
        raise UsageError(f"{path}: expected a token on its first line")
    token = lines[0].strip()
    if len(token.encode()) > limits.token_bytes_max:
        raise UsageError(f"{path}: a token of {len(token.encode())} bytes: expected at most {limits.token_bytes_max}")
    return token


def check_folder(data: str | None) -> None:
    """Refuse a data directory that is not a directory."""
    if data is not None and Path(data).exists() and not Path(data).is_dir():
        raise UsageError(f"--data {data}: is a file, expected a directory")


def listening_address(topology: TopologyFile, server: str, host: str | None, token: str) -> None:
    """Refuse to listen for other machines without a token: everybody who can connect can send."""
    if server not in topology.servers:
        raise UsageError(f"{topology.name} has no server {server}: expected one of {', '.join(topology.servers)}")
    where = host or topology.servers[server].host
    if not _is_loopback(where) and not token:
        raise UsageError(f"server {server} would listen on {where} for other machines: expected --token-file")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def tls_contexts(
    certificate: str | None, key: str | None, authority: str | None
) -> tuple[ssl.SSLContext, ssl.SSLContext] | None:
    """Return the TLS contexts to listen and to dial with."""
    if certificate is None and key is None and authority is None:
        return None
    if certificate is None or key is None:
        raise UsageError("TLS: expected --certificate and --key")
    try:
        listening = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        listening.load_cert_chain(certificate, key)
        dialing = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authority)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"TLS: {error}") from None
    return listening, dialing


def client_tls(authority: str | None) -> ssl.SSLContext | None:
    """Return the TLS context to reach servers with."""
    if authority is None:
        return None
    try:
        return ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authority)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"TLS: {error}") from None


def addresses(where: str) -> dict[str, Address]:
    """Return the servers to reach: all of a topology file, or the one at ``tcp://HOST:PORT``."""
    if where.startswith("tcp://"):
        host, _, port = where.removeprefix("tcp://").rpartition(":")
        if not host or not port.isdecimal():
            raise UsageError(f"address {where!r}: expected tcp://HOST:PORT")
        return {where: Address(host.strip("[]"), int(port))}
    from antecede.cli.organisation import read_topology

    return read_topology(where).servers


def ask_server(address: Address, access: "Access", command: str, *arguments: str) -> Any:
    """Send one request to one server; return its answer."""
    from antecede.live.client.operator import request

    return asyncio.run(request(address, access.token, command, *arguments, tls=access.tls))


@asynccontextmanager
async def command_line(address: Address, access: "Access", client: str | None, patience: float) -> AsyncIterator["Bus"]:
    """Open a bus for one command, as a temporary client unless it has a name. A temporary client ignores all letters
    except the answer that it waits for; they do not become dead letters."""
    from antecede.live.client.line import connect

    def waits(where: str) -> None:
        print(f"antecede: waiting for {where}", file=sys.stderr, flush=True)

    async with connect(
        str(address), name=client, token=access.token, tls=access.tls, patience=patience, waits=waits
    ) as bus:
        if client is None:
            bus.otherwise(lambda received: None)
        yield bus


class Access:
    """The credentials and TLS settings of a command."""

    def __init__(self, token_file: str | None, authority: str | None) -> None:
        self.token = read_token(token_file)
        self.tls = client_tls(authority)

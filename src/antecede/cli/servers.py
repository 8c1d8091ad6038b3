"""Functions that several commands share to start servers or to connect to servers: addresses, tokens, credentials and
TLS."""

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antecede import limits
from antecede.cli.options import Serving
from antecede.crashes import print_error
from antecede.documents import read_text
from antecede.errors import OrderError, TopologyError, UsageError
from antecede.orders import parse
from antecede.topology import Address, Check, OrderFacts, TopologyFile, check, parse_topology

if TYPE_CHECKING:
    from antecede.access.proof import Keyring
    from antecede.live.client import Bus
    from antecede.live.keys import Credentials, ServerSecurity


def read_token(path: str | None) -> str:
    """Return the token in the first line of a file, or "" if no file is given."""
    if path is None:
        return ""
    lines = read_text(path, 4 * limits.token_bytes_max).splitlines()
    if not lines or not lines[0].strip():
        raise UsageError(f"{path}: expected a token on its first line")
    token = lines[0].strip()
    if len(token.encode()) > limits.token_bytes_max:
        raise UsageError(f"{path}: token has {len(token.encode())} bytes: expected at most {limits.token_bytes_max}")
    return token


def check_folder(data: str | None) -> None:
    """Raise an error if ``data`` exists but is not a directory."""
    if data is not None and Path(data).exists() and not Path(data).is_dir():
        raise UsageError(f"--data {data}: is a file, expected a directory")


def check_identities(topology: str, options: Serving) -> None:
    """Raise an error if there are credentials in the folder of the topology file, but no access file. Without an access
    file, the server would not check who connects. With a token file or ``--insecure``, no access file is necessary, and
    no error is raised."""
    folder = Path(topology).parent
    if options.access is not None or options.credentials is not None or (folder / "access.toml").exists():
        return
    if options.token_file is None and not options.insecure and any(folder.glob("credentials/**/credential.toml")):
        raise UsageError(
            f"{folder / 'access.toml'} is missing, but {folder / 'credentials'} exists: create this access file, or "
            "give --access FILE, or give --insecure to let every client do everything"
        )


def listening_address(
    topology: TopologyFile, server: str, host: str | None, token: str, *, identities: bool, tls: bool, insecure: bool
) -> None:
    """Raise an error if the server must not listen at its address. At a loopback address, the server may always listen.
    At any other address, it may listen only under two conditions. (1) The server has an access file (``identities``) or
    a token of sufficient length, so that not every program can connect and send messages. (2) The server uses TLS, so
    that the messages cannot be read on the network. With ``insecure``, condition (2) does not apply."""
    if server not in topology.servers:
        raise UsageError(f"{topology.name} has no server {server}: expected one of {', '.join(topology.servers)}")
    where = host or topology.servers[server].host
    if _is_loopback(where):
        return
    listens = f"other machines could connect to server {server} at {where}"
    if not identities and not token:
        raise UsageError(f"{listens}: expected --token-file, or --credentials DIR (see antecede credentials)")
    if not identities and len(token) < limits.token_chars_min:
        raise UsageError(
            f"{listens}, and the token has {len(token)} characters: expected at least {limits.token_chars_min}"
        )
    if not tls and not insecure:
        raise UsageError(
            f"{listens} in plain text: expected --certificate and --key, or credentials with TLS, or --insecure"
        )


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
    """Return two TLS contexts, one to accept connections and one to open connections. Return None if no option for TLS
    is given."""
    if certificate is None and key is None and authority is None:
        return None
    if certificate is None or key is None:
        raise UsageError("TLS: expected --certificate and --key")
    try:
        listening = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        listening.load_cert_chain(certificate, key)
        dialing = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authority)
    except (OSError, ssl.SSLError) as error:
        from antecede.live.keys import tls_fault

        raise UsageError(f"TLS: {tls_fault(error, authority, certificate, key)}") from None
    return listening, dialing


def server_security(
    file: TopologyFile, topology: str, server: str, access: str | None, credentials: str | None
) -> "ServerSecurity | None":
    """Return the access file and the credentials of a server, or None if there is no access file."""
    default = Path(topology).parent / "access.toml"
    if access is None and not default.exists():
        if credentials is not None:
            raise UsageError(f"--credentials needs an access file: expected {default}, or --access FILE")
        return None
    if server not in file.servers:
        raise UsageError(f"{file.name} has no server {server}: expected one of {', '.join(file.servers)}")
    from antecede.live.keys import ServerSecurity

    given = credentials
    if given is None and access is not None:
        given = str(Path(access).parent / "credentials")
    own = find_credentials(given, topology, "server", server)
    if own is None:
        raise UsageError(f"{access or default} needs the credentials of server {server}: expected --credentials DIR")
    return ServerSecurity(access or default, own, server)


def client_tls(authority: str | None) -> ssl.SSLContext | None:
    """Return the TLS context with which a command connects to servers, or None if no authority is given."""
    if authority is None:
        return None
    try:
        return ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authority)
    except (OSError, ssl.SSLError) as error:
        from antecede.live.keys import tls_fault

        raise UsageError(f"TLS: {tls_fault(error, authority)}") from None


def addresses(where: str) -> dict[str, Address]:
    """Return the addresses of servers, by name. If ``where`` is the path of a topology file, return the addresses of
    all its servers. If ``where`` is an address ``tcp://HOST:PORT``, return only this address, with the key
    ``where``."""
    if where.startswith("tcp://"):
        host, _, port = where.removeprefix("tcp://").rpartition(":")
        if not host or not port.isdecimal():
            raise UsageError(f"address {where!r}: expected tcp://HOST:PORT")
        return {where: Address(host.strip("[]"), int(port))}
    if "://" in where:
        raise UsageError(f"address {where!r}: expected tcp://HOST:PORT")

    return read_topology(where).servers


def address_of(where: str, server: str | None) -> Address:
    """Return the address of the server with this name. If ``server`` is None, return the address of the first server.
    ``where``: as for :func:`addresses`."""
    servers = addresses(where)
    if server is not None and server not in servers:
        raise UsageError(f"{where} has no server {server}: expected one of {', '.join(servers)}")
    return servers[server] if server is not None else next(iter(servers.values()))


def ask_server(address: Address, access: "Access", command: str, *arguments: str) -> Any:
    """Send one request to one server and return the server's answer."""
    from antecede.live.client.operator import request

    return asyncio.run(request(address, access.token, command, *arguments, tls=access.tls, keyring=access.keyring))


@asynccontextmanager
async def command_line(address: Address, access: "Access", client: str | None, patience: float) -> AsyncIterator["Bus"]:
    """Open a bus (the connection of a client to a server) for one command. ``client``: the client's name, or None for a
    temporary client. A temporary client handles only the answer that it waits for. It ignores all other letters, so
    they do not become dead letters. ``patience``: the time limit for the first connection, in seconds."""
    from antecede.live.client.line import connect

    def waits(where: str) -> None:
        print_error(f"waiting for {where}")

    def resumes(where: str) -> None:
        print_error(f"connected to {where}")

    async with connect(
        str(address),
        name=client,
        token=access.token,
        tls=access.tls,
        patience=patience,
        waits=waits,
        resumes=resumes,
        credentials=None if access.credentials is None else access.credentials.folder,
    ) as bus:
        if client is None:
            bus.otherwise(lambda received: None)
        yield bus


class Access:
    """The token or credentials with which a command connects to servers, and its TLS settings."""

    def __init__(
        self, where: str, role: str, token_file: str | None, authority: str | None, credentials: str | None
    ) -> None:
        """``where``: the topology file, or the address of a server. ``role``: the role in which the command
        connects."""
        self.token = read_token(token_file)
        self.tls = client_tls(authority)
        self.credentials: Credentials | None = None
        self.keyring: Keyring | None = None
        if credentials is not None and (token_file is not None or authority is not None):
            raise UsageError(
                "--credentials replaces --token-file and --authority: give only --credentials, or leave it out"
            )
        own = None if token_file or authority else find_credentials(credentials, where, role)
        if own is not None:
            self.credentials = own
            own.expect(role)
            self.keyring, self.tls = own.keyring(), own.dialing()


def find_credentials(given: str | None, where: str, role: str, name: str = "") -> "Credentials | None":
    """Return the credentials of a role. If ``name`` is not empty, search only for credentials with this name.

    If the folder ``given`` itself contains credentials, return these credentials, without a check of the role and the
    name. Otherwise, search the folders below ``given``, and raise :class:`UsageError` if no credentials match.

    If ``given`` is None, search the folder ``credentials`` next to the topology file ``where``. Return None if this
    search finds no credentials, or if there is no ``access.toml`` next to the topology file. Also return None if
    ``where`` is the address of a server.

    If a search finds several credentials, raise :class:`UsageError`.
    """
    from antecede.live.keys import Credentials

    if given is not None and (Path(given) / "credential.toml").exists():
        return Credentials(given)
    if given is None:
        beside = Path(where).parent
        if where.startswith("tcp://") or not (beside / "access.toml").exists():
            return None
    root = beside / "credentials" if given is None else Path(given)
    # Also in the folder of one role, such as credentials/clients.
    below = (root / f"{role}s", root)
    folders = next((found for one in below if (found := sorted(one.glob(f"{name or '*'}/credential.toml")))), [])
    if len(folders) == 1:
        return Credentials(folders[0].parent)
    if folders:
        choices = ", ".join(str(folder.parent) for folder in folders)
        raise UsageError(f"{root} has credentials of several {role}s: expected --credentials with one of {choices}")
    if given is None:
        return None
    raise UsageError(f"--credentials {given}: no credentials of {role} {name}".rstrip() + " there")


def read_topology(path: str) -> TopologyFile:
    """Return the topology in a file."""
    return parse_topology(read_text(path, limits.topology_bytes_max, TopologyError), path)


def check_topology(file: TopologyFile) -> Check:
    """Check whether a topology can be used. The result depends on what the orders of its domains guarantee and need.
    Raise :class:`TopologyError` if an order is unknown or its options are wrong."""
    for domain in file.domains:
        try:
            parse(domain.order).create(0, len(domain.servers))
        except OrderError as error:
            raise TopologyError(f"{file.name}: domain {domain.name}: {error}") from None
    return check(file, order_facts)


def order_facts(text: str) -> OrderFacts:
    """Return the guarantees and needs of an order. ``text``: the order's name and options, as in a topology file."""
    spec = parse(text)
    return OrderFacts(spec.guarantees(), spec.kind.needs)


def usable_topology(path: str) -> TopologyFile:
    """Return the topology in a file. If the topology must not be used, raise :class:`TopologyError` with the reason."""
    file = read_topology(path)
    refusals = check_topology(file).refusals
    if refusals:
        raise TopologyError(f"{path}: {refusals[0]}")
    return file

"""A server's access file and its own credentials: read at the start, and read again when the process gets SIGHUP.

After SIGHUP, a server uses its rotated key without a restart. But a server decides only at its start whether it uses
TLS.
"""

from pathlib import Path
from time import time
from typing import TYPE_CHECKING

from antecede.access import Access, Authoriser
from antecede.access.model import SERVER
from antecede.errors import AccessError
from antecede.live.keys import KEY, Credentials, read_access

if TYPE_CHECKING:
    from antecede.server.core import ServerCore


class ServerSecurity:
    """The identity of one server, and the identities that it knows."""

    def __init__(self, access: str | Path, credentials: Credentials, server: str) -> None:
        """``access``: the path of the access file."""
        credentials.expect(SERVER, server)
        self._file = access
        self.credentials = credentials
        self.authoriser = Authoriser(self._read(credentials), clock=time)
        self.keyring = credentials.keyring(self.authoriser.servers)

    def _read(self, own: Credentials) -> Access:
        """Read the access file. Raise AccessError if it does not fit this server's own credentials. The file may
        contain servers that the topology does not contain, because a change may add these servers later or may have
        removed them."""
        access = read_access(self._file)
        entry = access.servers.get(own.name)
        if entry is None:
            raise AccessError(f"{access.name}: expected a table [servers.{own.name}] with the key of this server")
        if entry.keys and not {key.public for key in entry.keys}.intersection(own.publics):
            file = own.folder / KEY
            raise AccessError(f"{access.name}: servers.{own.name}.keys: expected the public key of {file} in this list")
        return access

    def reload(self, core: "ServerCore") -> None:
        """Read the access file and this server's credentials again. If one of the two cannot be used, keep both as they
        were."""
        try:
            newer = Credentials(self.credentials.folder)
            newer.expect(SERVER, self.credentials.name)
            access = self._read(newer)
            self.credentials.adopt(newer)
        except AccessError as error:
            core.keep_access(str(error))
        else:
            core.reload(access)


def authoriser_of(security: ServerSecurity | None, token: str) -> Authoriser:
    """Return the authoriser of a server. It uses the server's access file. Without an access file, it knows only the
    token."""
    return Authoriser(token=token, clock=time) if security is None else security.authoriser

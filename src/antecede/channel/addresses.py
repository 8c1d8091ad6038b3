"""Addresses: the server of each agent and client, and clear errors for addresses that do not exist.

An agent of the topology file has a plain name as its address. A client, or an agent that was created at run time, has
an address ``name@server``. This address never changes, even if its server is removed. In that case, the topology file
names another server, which has the addresses of the removed server from then on.
"""

from collections.abc import Iterable
from itertools import islice

from antecede.errors import UnknownAgentError, UsageError, similar


class Addresses:
    """The known addresses in one topology, and the server of each address."""

    def __init__(self, homes: dict[str, str], moved: dict[str, str], servers: Iterable[str], objects: set[str]) -> None:
        """``homes``: the server of each agent of the topology. ``moved``: for each removed server, the server that has
        its addresses now. ``objects``: the replicated objects that can be called on this server."""
        self.homes = homes
        self._moved = moved
        self._servers = {*servers, *moved}
        self._objects = objects

    def extended(self, homes: dict[str, str], moved: dict[str, str], servers: Iterable[str]) -> "Addresses":
        """Return a copy that also has the addresses of another topology. If the other topology removes a server, the
        removed server keeps its addresses in the copy, because the change to the other topology may be abandoned."""
        more = {server: successor for server, successor in moved.items() if server not in self._servers}
        return Addresses(homes | self.homes, more | self._moved, {*self._servers, *servers}, self._objects)

    def home(self, address: str) -> str:
        """Return the server of an agent or a client. Raise an error if the address is unknown."""
        server = self.homes.get(address)
        if server is None:
            if address.partition("@")[0].removesuffix("()") in self._objects:
                raise UsageError(
                    f"{address} is a replicated object: call one of its operations, and name no other destination"
                )
            server = address.rpartition("@")[2]
            if "@" not in address or server not in self._servers:
                raise UnknownAgentError(self._unknown(address))
            server = self._moved.get(server, server)
        return server

    def origin(self, sender: str) -> str:
        """Return the server to which a sender's address belongs. The sender need not exist."""
        home = self.homes.get(sender) or sender.rpartition("@")[2]
        return self._moved.get(home, home)

    def plain(self, address: str) -> str:
        """Return an address in the form that letters contain. For an agent of the topology, this form is the name
        without a server. Any other address is returned unchanged. Raise an error if the address combines the name of an
        agent of the topology with a wrong server."""
        name, at, server = address.rpartition("@")
        home = self.homes.get(name) if at else None
        if home is None:
            return address
        if home != server:
            raise UnknownAgentError(f"unknown agent {address!r}: {name} lives on {home}")
        return name

    def _unknown(self, address: str) -> str:
        """Return the reason why a letter cannot be sent to this address, and suggest a similar name."""
        suggestion = similar(address[:_name_chars].partition("@")[0], islice(self.homes, _compared_max))
        return f"unknown agent {address!r}: neither in the topology nor name@server with a known server{suggestion}"

    def no_object(self, name: str) -> str:
        """Return the reason why no object of this name can be called on this server, and suggest a similar name."""
        if name in self.homes:
            return f"{name} is an agent, not a replicated object: send it a notification"
        suggestion = similar(name[:_name_chars], islice(self._objects, _compared_max))
        return f"unknown object {name!r}: no domain of this server has it{suggestion}"


_name_chars = 64
_compared_max = 1_000
"""The maximum number of known names with which an unknown name is compared, to suggest a similar one."""

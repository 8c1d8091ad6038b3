"""Operators' commands about clients: list clients, remove a client that will not return, end a client's subscription.

A client is known to its server if it is connected, if it ever published, or if letters wait for it. Only a disconnected
client can be removed. Its letters are deleted permanently, a limited number with each request. When no letter remains,
the server forgets the number of the client's last publish. If a client of the same name connects later, it is a new
client.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from antecede import limits
from antecede.engine import name_of
from antecede.engine.agents import Unsubscribe
from antecede.errors import MissingError, OverloadError, UsageError
from antecede.server import AgentServer, Input
from antecede.server.inputs import OPERATOR, OnBehalf
from antecede.server.items import Left
from antecede.server.organisation import client_address
from antecede.server.sessions import Sessions


class ClientCommands:
    """The commands about the clients of one server."""

    def __init__(
        self,
        machine: AgentServer,
        sessions: Sessions,
        lives: Callable[[str], bool],
        change: Callable[[Input], None],
    ) -> None:
        self._machine = machine
        self._sessions = sessions
        self._lives = lives
        self._change = change
        self.commands: dict[str, tuple[int, Callable[..., Any]]] = {
            "client-list": (1, self.list),
            "client-remove": (1, self.remove),
            "client-unsubscribe": (2, self.unsubscribe),
        }
        """The commands, each with the number of its arguments."""

    def list(self, after: str) -> dict[str, Any]:
        """Return one page of the clients, sorted by address. The page begins after the address ``after``."""
        machine = self._machine
        known = {client_address(machine, client) for client in machine.clients if client != OPERATOR}
        known.update(address for address in machine.engine.mailboxes if not self._lives(address))
        known.update(client_address(machine, client) for client in self._sessions.names)
        some = sorted(address for address in known if address > after)
        shown = some[: limits.dead_page_letters_max]
        return {"server": machine.name, "more": len(some) > len(shown), "clients": [self._shown(one) for one in shown]}

    def _shown(self, address: str) -> dict[str, Any]:
        machine = self._machine
        client = address.rpartition("@")[0]
        return {
            "client": address,
            "connected": not self._sessions.is_away(address),
            "published": machine.clients.get(client, 0),
            "waiting": len(machine.engine.mailboxes.get(address, ())),
        }

    def remove(self, address: str) -> dict[str, Any]:
        """Delete the letters that wait for a disconnected client, at most ``drop_letters_max`` with each call. If no
        letter remains, forget the client."""
        machine, client = self._machine, self._checked(address)
        if not self._sessions.is_away(address):
            raise UsageError(f"client {address} is connected: only a disconnected client can be removed")
        waiting = len(machine.engine.mailboxes.get(address, ()))
        if not waiting and client not in machine.clients:
            raise MissingError(f"no client {address[:200]!r} on {machine.name}")
        dropped = self._sessions.drop(address, "its client was removed by an operator", limits.drop_letters_max)
        if dropped == waiting:
            self._change(Left(client))
        return {"server": machine.name, "client": address, "dropped": dropped, "left": waiting - dropped}

    def unsubscribe(self, address: str, topic: str) -> dict[str, Any]:
        """Ask a topic, in the name of a client, to end the client's subscription. The request travels like any message,
        so letters that are already in transit still arrive."""
        self._checked(address)
        if self._machine.organisation.closed:
            raise OverloadError(self._machine.organisation.closed)
        to = self._machine.channel.check((topic,))
        self._change(OnBehalf(address, to, name_of(Unsubscribe), msgspec.msgpack.encode(Unsubscribe()), OPERATOR))
        return {"server": self._machine.name, "client": address, "topic": topic}

    def _checked(self, address: str) -> str:
        client = address.rpartition("@")[0]
        if self._lives(address) or not client or client_address(self._machine, client) != address:
            raise UsageError(f"{address[:200]!r}: expected a client of this server, NAME@{self._machine.name}")
        return client

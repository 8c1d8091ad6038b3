"""Operators' requests to a running server: its status, its dead letters, the reset of a link.

A request is one part with a token, a command and its arguments; the answer is one JSON document. The same functions
serve a program that has the server in its own process.
"""

import json
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol

import msgspec

from antecede.engine import Dead
from antecede.errors import AntecedeError, OverloadError, UsageError
from antecede.limits import address_chars_max, counter_max, frame_bytes_max, message_id_chars_max
from antecede.live.reactions import Reactions
from antecede.live.recorder import Recorder
from antecede.server import AgentServer, Replay
from antecede.server.core import ServerCore
from antecede.server.items import Buried, Forgot
from antecede.server.sessions import OPERATOR
from antecede.store import Store


class _Server(Protocol):
    machine: AgentServer
    store: Store
    core: ServerCore
    reactions: Reactions
    recorder: Recorder | None
    epoch: str
    stopping: bool

    @property
    def trouble(self) -> str: ...

    def submit(self, given: Any) -> None: ...


class Operations:
    """An operator's commands on one server."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._commands: dict[str, tuple[int, Callable[..., Any]]] = {
            "status": (0, self.status),
            "dead-list": (0, self.dead_list),
            "dead-show": (1, self.dead_show),
            "dead-replay": (1, self.dead_replay),
            "dead-bury": (1, self.dead_bury),
            "mailbox-drop": (1, self.mailbox_drop),
            "forget": (2, self.forget),
        }

    def run(self, command: str, arguments: list[str]) -> tuple[bool, bytes]:
        """Run a command; return whether it succeeded, and the document: the result, or the error."""
        try:
            count, do = self._commands.get(command, (0, None))
            if do is None or len(arguments) != count:
                raise UsageError(f"unknown request {command[:64]!r} with {len(arguments)} arguments")
            long = next((one for one in arguments if len(one) > argument_chars_max), None)
            if long is not None:
                raise UsageError(f"argument of {len(long)} characters: expected at most {argument_chars_max}")
            document = json.dumps(do(*arguments)).encode()
            if len(document) > frame_bytes_max // 2:
                raise UsageError(f"the answer has {len(document)} bytes, too many for one answer")
            return True, document
        except AntecedeError as error:
            return False, json.dumps(str(error)).encode()

    def health(self) -> str:
        """The health of the server, in a word or two."""
        server = self._server
        if server.trouble:
            return "in trouble"
        if server.machine.stopped:
            return "link stopped"
        return "stopping" if server.stopping else "overloaded" if server.machine.overloaded else "ok"

    def status(self) -> dict[str, Any]:
        """Return health, links, queue depths, and what each held message waits for."""
        server = self._server
        machine, store = server.machine, server.store
        stopped = [
            {"domain": domain, "peer": peer, "reason": reason} for (domain, peer), reason in machine.stopped.items()
        ]
        mailboxes = {agent: len(mailbox) for agent, mailbox in machine.engine.mailboxes.items()}
        shown = dict(sorted(mailboxes.items(), key=lambda pair: -pair[1])[:_shown_max])
        return {
            "server": machine.name,
            "health": self.health(),
            "trouble": server.trouble,
            "epoch": server.epoch,
            "incarnation": f"{machine.incarnation:016x}",
            "log": {
                "last": store.last,
                "durable": store.durable,
                "pending_bytes": store.pending_bytes,
                "bytes": store.log_bytes,
            },
            "trace": None if server.recorder is None else server.recorder.status(),
            "domains": {name: self._domain(name) for name in machine.channel.consumers},
            "stopped": stopped,
            "refused": dict(server.core.peering.refusals),
            "clients": {
                "here": server.core.sessions.names,
                "known": len(machine.clients),
                "away": {address: depth for address, depth in shown.items() if self._is_away(address)},
            },
            "mailboxes": shown,
            "waiting_letters": sum(mailboxes.values()),
            "reactions": server.core.driver.retries.done,
            "failed_reactions": server.core.driver.retries.failed,
            "timers": len(machine.timers),
            "questions": len(machine.engine.asks),
            "calls": machine.calls.open,
            "dead": len(machine.engine.dead),
        }

    def _is_away(self, address: str) -> bool:
        return not self._server.reactions.host.lives(address) and self._server.core.sessions.is_away(address)

    def _domain(self, name: str) -> dict[str, Any]:
        consumer = self._server.machine.channel.consumers[name]
        peers = self._server.core.peering.peers
        return {
            "order": str(consumer.spec),
            "generation": consumer.generation,
            "links": {
                peer: {
                    "connected": peers[peer].ready,
                    "sent": link.sent,
                    "unacknowledged": link.unacknowledged,
                    "held": link.pending,
                }
                for peer, link in consumer.links.items()
            },
            "held": consumer.waiting(_shown_max),
            "unposted": consumer.leaving(),
        }

    def dead_list(self) -> list[dict[str, Any]]:
        """All dead letters, oldest first."""
        return [self._shown(key, dead) for key, dead in self._server.machine.engine.dead.items()]

    def dead_show(self, id_: str) -> dict[str, Any]:
        """One dead letter with its fields."""
        key, dead = self._find(id_)
        letter = dead.letter
        try:
            fields = json.loads(msgspec.json.encode(msgspec.msgpack.decode(letter.body)))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError, ValueError):
            # MessagePack can contain what JSON cannot: a key that is a list, an extension type.
            fields = None
        return {**self._shown(key, dead), "to": list(letter.to), "fields": fields, "bytes": letter.body.hex()[:4_000]}

    def dead_replay(self, id_: str) -> dict[str, Any]:
        """Send a dead letter again, as a new letter to the agent that could not react, and remove it from the list. It
        keeps its sender and its question: an asker that still waits gets the answer."""
        key, dead = self._find(id_)
        server, letter = self._server, dead.letter
        machine = server.machine
        # A letter that died at a server, not at an agent, goes to its destinations.
        to = machine.channel.check(letter.to if dead.agent == machine.name else (dead.agent,))
        if machine.overloaded:
            raise OverloadError(f"server {machine.name} is catching up: try again later")
        server.submit(Replay(key, to, OPERATOR))
        return {"replayed": letter.id, "agent": dead.agent, "from": letter.source}

    def dead_bury(self, id_: str) -> dict[str, Any]:
        """Remove a dead letter from the list for good."""
        key, dead = self._find(id_)
        self._server.submit(Buried(key))
        return {"buried": dead.letter.id, "agent": dead.agent}

    def mailbox_drop(self, address: str) -> dict[str, Any]:
        """Empty the mailbox of a disconnected client for good. Askers of questions among these letters are not
        informed."""
        server = self._server
        machine = server.machine
        if server.reactions.host.lives(address):
            raise UsageError(f"{address} is an agent: only a client's mailbox can be dropped")
        if not server.core.sessions.is_away(address):
            raise UsageError(f"client {address} is connected: only the mailbox of a disconnected client can be dropped")
        dropped = server.core.sessions.drop(address, "dropped by an operator")
        if not dropped:
            raise UsageError(f"no letters wait for {address[:200]!r} on {machine.name}")
        return {"server": machine.name, "dropped": dropped, "client": address}

    def forget(self, domain: str, generation: str) -> dict[str, Any]:
        """Reset a domain at this server: its order and its links, for good. Unacknowledged messages are sent again."""
        server = self._server
        consumer = server.machine.channel.consumers.get(domain)
        if consumer is None:
            raise UsageError(f"server {server.machine.name} is not in domain {domain}")
        digits = generation if generation.isdecimal() and len(generation) <= len(str(counter_max)) else "0"
        if not consumer.generation < int(digits) <= counter_max:
            raise UsageError(f"generation {generation[:32]}: expected a number larger than {consumer.generation}")
        if server.machine.calls.site is not None:
            raise UsageError(
                f"domain {domain} has replicated objects, and their replicas would differ: restore the lost data"
            )
        again = len(consumer.unsettled())
        server.core.peering.reset(domain, monotonic())
        server.submit(Forgot(domain, int(generation)))
        return {"server": server.machine.name, "domain": domain, "generation": int(generation), "sent_again": again}

    def _find(self, id_: str) -> tuple[str, Dead]:
        dead = self._server.machine.engine.dead
        found = [(key, one) for key, one in dead.items() if id_ in (key, one.letter.id)]
        if len(found) != 1:
            raise UsageError(
                f"{'several' if found else 'no'} dead letters {id_[:200]!r} on {self._server.machine.name}"
            )
        return found[0]

    def _shown(self, key: str, dead: Dead) -> dict[str, Any]:
        letter = dead.letter
        return {
            "key": key,
            "id": letter.id,
            "server": self._server.machine.name,
            "agent": dead.agent,
            "from": letter.source,
            "type": letter.type,
            "reason": dead.reason,
        }


_shown_max = 50
argument_chars_max = message_id_chars_max + 1 + address_chars_max
"""One argument of a request. The longest is the key of a dead letter: its id and the agent's address."""

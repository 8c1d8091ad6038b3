"""Operators' commands to a running server: status, dead letters, mailboxes, and the reset of a domain.

A request is one *part* (message) of the wire protocol. It contains a token, a command and the command's arguments. The
answer is one JSON document, or an error with its code. A program that runs a server in its own process calls the same
functions directly.
"""

import json
from collections.abc import Callable
from typing import Any

from antecede import wire
from antecede.access import Refusal, Who
from antecede.access.audit import REFUSED
from antecede.access.authoriser import OPERATE
from antecede.errors import AntecedeError, OverloadError, UsageError
from antecede.limits import (
    address_chars_max,
    counter_max,
    drop_letters_max,
    frame_bytes_max,
    message_id_chars_max,
)
from antecede.server import AgentServer, Input
from antecede.server.admission import Guard
from antecede.server.change.reorganising import Reorganising
from antecede.server.driver import Driver
from antecede.server.driver.marks import LogView
from antecede.server.items import Acknowledged, Forgot
from antecede.server.operations.backups import Backups
from antecede.server.operations.client_commands import ClientCommands
from antecede.server.operations.dead_letters import DeadLetters
from antecede.server.peering import Peering
from antecede.server.sessions import Sessions


class Operations:
    """The commands that operators can run on one server."""

    def __init__(
        self,
        machine: AgentServer,
        store: LogView,
        driver: Driver,
        peering: Peering,
        sessions: Sessions,
        guard: Guard,
        changes: Reorganising,
        epoch: str,
        lives: Callable[[str], bool],
        trouble: Callable[[], str],
    ) -> None:
        """``lives``: a function that returns whether an address belongs to an agent of this server. ``trouble``: a
        function that returns the reason why the server cannot work, or an empty string if the server can work."""
        self._machine = machine
        self._store = store
        self._driver = driver
        self._peering = peering
        self._sessions = sessions
        self._guard = guard
        self._reorganising = changes
        self._epoch = epoch
        self._lives = lives
        self._trouble = trouble
        self._changes = False
        """Whether the command that runs now changes something."""
        self.stopping = False
        """Whether the server is stopping, so that it accepts no more publishes and no more connections."""
        self.trace: Callable[[], dict[str, Any] | None] = lambda: None
        """A function that returns the progress of the trace that is being recorded, or None if no trace is being
        recorded."""
        self.dead = DeadLetters(machine, self._change)
        self.clients = ClientCommands(machine, sessions, lives, self._change)
        self.backups = Backups(machine, driver, peering)
        self._commands: dict[str, tuple[int, Callable[..., Any]]] = {
            "status": (0, self.status),
            **self.dead.commands,
            **self.clients.commands,
            **self.backups.commands,
            "mailbox-drop": (1, self.mailbox_drop),
            "forget": (2, self.forget),
            "acknowledge": (0, self.acknowledge),
        }

    def request(
        self, who: Who, remote: str, command: str, arguments: list[str], answer: Callable[[wire.Answer], None]
    ) -> None:
        """Run a command that an operator has sent over a connection, if the operator has the permission. If the command
        changed something, the answer is sent when the change is durable. Otherwise the answer is sent immediately. A
        command about a change of the topology may take longer; its answer is sent when the command has ended."""
        self._changes = False
        # The commands that work in pages or phases need the permission of the command that they serve.
        permission = "dead-list" if command == "dead-page" else command.removesuffix("-page")
        permission = permission if permission not in self.backups.commands else "backup"
        permission = permission if permission not in self._reorganising.commands else "topology"
        refusal = self._guard.authoriser.refusal(who, OPERATE, permission) or self._too_many(who)
        if refusal is not None:
            self._guard.note(REFUSED, who, remote, command=command, code=refusal.code, reason=refusal.reason)
            answer(wire.Answer(False, json.dumps(refusal.reason).encode(), refusal.code))
            return
        if command in self._reorganising.commands:
            self._reorganise(who, remote, command, arguments, answer)
            return
        ok, document, code = self._run(command, arguments)
        reply = wire.Answer(ok, document, code)
        if self._changes or not ok or command in self.backups.audited:
            self._guard.note("command", who, remote, command=command, arguments=arguments, ok=ok)
        if self._changes:
            driver = self._driver
            driver.when_taken(lambda: driver.when_durable(lambda: answer(reply)))
        else:
            answer(reply)

    def _reorganise(
        self, who: Who, remote: str, command: str, arguments: list[str], answer: Callable[[wire.Answer], None]
    ) -> None:
        """Run a command about a change of the topology. Write the command to the audit log if it changes something or
        fails. Write only the beginning of its first argument, because the arguments can be whole topologies or
        letters."""

        def done(result: Any, error: AntecedeError | None) -> None:
            if error is not None or command not in _only_looks:
                short = [one[:_audited_chars] for one in arguments[:1]]
                self._guard.note("command", who, remote, command=command, arguments=short, ok=error is None)
            if error is None:
                answer(wire.Answer(True, json.dumps(result).encode()))
            else:
                answer(wire.Answer(False, json.dumps(str(error)).encode(), error.code))

        self._reorganising.request(command, arguments, done)

    def _too_many(self, who: Who) -> Refusal | None:
        rate = self._guard.authoriser.rate(who)
        exceeded = "" if rate is None else rate.take(1, 0, self._driver.now)
        return Refusal(OverloadError.code, f"{who.label} sends {exceeded}: try again later") if exceeded else None

    def run(self, command: str, arguments: list[str]) -> tuple[bool, bytes]:
        """Run a command. Return whether it succeeded, and a JSON document: the result of the command, or the error's
        text."""
        return self._run(command, arguments)[:2]

    def _run(self, command: str, arguments: list[str]) -> tuple[bool, bytes, str]:
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
            return True, document, ""
        except AntecedeError as error:
            return False, json.dumps(str(error)).encode(), error.code

    def health(self) -> str:
        """Return the server's health in a few words."""
        machine = self._machine
        if self._trouble():
            return "in trouble"
        if machine.stopped:
            return "link stopped"
        if machine.organisation.outside:
            return "not yet part"
        return "stopping" if self.stopping else "overloaded" if machine.overloaded else "ok"

    def status(self) -> dict[str, Any]:
        """Return the server's status: its health, its links, the lengths of its queues, what the first held messages of
        each domain wait for, and more."""
        machine, store, sessions = self._machine, self._store, self._sessions
        stopped = [
            {"domain": domain, "peer": peer, "reason": reason} for (domain, peer), reason in machine.stopped.items()
        ]
        mailboxes = {agent: len(mailbox) for agent, mailbox in machine.engine.mailboxes.items()}
        shown = dict(sorted(mailboxes.items(), key=lambda pair: -pair[1])[:_shown_max])
        return {
            "server": machine.name,
            "health": self.health(),
            "trouble": self._trouble(),
            "epoch": machine.epoch or self._epoch,
            "topology": machine.organisation.state(machine.channel.letters_waiting),
            "access": self._guard.authoriser.status(),
            "incarnation": f"{machine.incarnation:016x}",
            "log": {
                "last": store.last,
                "durable": store.durable,
                "pending_bytes": store.pending_bytes,
                "bytes": store.log_bytes,
            },
            "truncations": machine.truncations.status(),
            "clock_ahead_seconds": machine.clock.times.ahead_ms / 1000,
            "trace": self.trace(),
            "domains": {name: self._domain(name) for name in machine.channel.consumers},
            "stopped": stopped,
            "refused": {one.name: one.claim for one in self._peering.peers.values() if one.claim}
            | self._peering.refusals,
            "unreachable": {name: one.status(self._driver.now) for name, one in self._peering.unreachable.items()},
            "clients": {
                "here": sessions.names,
                "known": len(machine.clients),
                "away": {address: depth for address, depth in shown.items() if self._is_away(address)},
            },
            "mailboxes": shown,
            "waiting_letters": sum(mailboxes.values()),
            "reactions": self._driver.retries.done,
            "failed_reactions": self._driver.retries.failed,
            "timers": len(machine.timers),
            "questions": len(machine.engine.asks),
            "calls": machine.calls.open,
            "dead": len(machine.engine.dead),
            "dead_dropped": machine.engine.forgotten,
            "held_letters": machine.engine.following.count(),
            "crowded": sorted(machine.engine.quotas.crowded)[:_shown_max],
        }

    def _is_away(self, address: str) -> bool:
        return not self._lives(address) and self._sessions.is_away(address)

    def _domain(self, name: str) -> dict[str, Any]:
        consumer = self._machine.channel.consumers[name]
        peers = self._peering.peers
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

    def mailbox_drop(self, address: str) -> dict[str, Any]:
        """Delete the first letters of a disconnected client's mailbox, at most ``drop_letters_max``. The letters cannot
        be restored. Return the number of deleted letters and the number of remaining letters. If a deleted letter is a
        question, its sender is not informed."""
        machine, sessions = self._machine, self._sessions
        if self._lives(address):
            raise UsageError(f"{address} is an agent: only a client's mailbox can be dropped")
        if not sessions.is_away(address):
            raise UsageError(f"client {address} is connected: only the mailbox of a disconnected client can be dropped")
        self._check_room()
        waiting = len(machine.engine.mailboxes.get(address, ()))
        dropped = sessions.drop(address, "dropped by an operator", drop_letters_max)
        if not dropped:
            raise UsageError(f"no letters wait for {address[:200]!r} on {machine.name}")
        self._changes = True
        return {"server": machine.name, "dropped": dropped, "client": address, "left": waiting - dropped}

    def acknowledge(self) -> dict[str, Any]:
        """Acknowledge all truncations of the log (removals of torn writes), and return them. From then on, ``status``
        does not show them."""
        truncations = self._machine.truncations
        shown = truncations.status()
        if shown:
            self._change(Acknowledged(truncations.newest))
        return {"server": self._machine.name, "acknowledged": shown}

    def forget(self, domain: str, generation: str) -> dict[str, Any]:
        """Reset the order and the links of a domain at this server. This cannot be undone. Unacknowledged messages are
        sent again. ``generation``: the new generation number of the domain, which must be larger than the present
        number."""
        machine = self._machine
        consumer = machine.channel.consumers.get(domain)
        if consumer is None:
            raise UsageError(f"server {machine.name} is not in domain {domain}")
        digits = generation if generation.isdecimal() and len(generation) <= len(str(counter_max)) else "0"
        if not consumer.generation < int(digits) <= counter_max:
            raise UsageError(f"generation {generation[:32]}: expected a number larger than {consumer.generation}")
        if machine.calls.site is not None:
            raise UsageError(
                f"domain {domain} cannot be reset, because the replicas of its objects would differ: restore the lost "
                "data"
            )
        self._check_room()
        again = len(consumer.unsettled())
        self._peering.reset(domain, self._driver.now)
        self._change(Forgot(domain, int(generation)))
        return {"server": machine.name, "domain": domain, "generation": int(generation), "sent_again": again}

    def _check_room(self) -> None:
        """Raise OverloadError if records wait for space on the disk. Commands that change something call this method
        before the change. While records wait, the operator cannot learn whether a change is durable."""
        if self._driver.behind:
            raise OverloadError(f"server {self._machine.name} cannot write its log: {self._driver.trouble}")

    def _change(self, given: Input) -> None:
        self._check_room()
        self._changes = True
        self._driver.feed(given)


_shown_max = 50
_audited_chars = 200
_only_looks = (
    *("change-look", "change-classes", "change-transit", "change-ready", "change-left"),
    *("change-history", "change-lesson"),
)
argument_chars_max = message_id_chars_max + 1 + address_chars_max
"""The largest number of characters in an argument of a request. The longest argument is the key of a dead letter: the
letter's id and the agent's address."""

"""Operators' commands to a running server: status, dead letters, mailboxes, and the reset of a domain.

A request is one *part* (message) of the wire protocol. It contains a token, a command and the command's arguments. The
answer is one JSON document, or an error with its code. A program that runs a server in its own process calls the same
functions directly.
"""

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from antecede import limits, wire
from antecede.access import Refusal, Who
from antecede.access.audit import REFUSED
from antecede.access.authoriser import OPERATE
from antecede.engine import Choice, Dead, Page, Range, name_of, page_of
from antecede.engine.agents import Unsubscribe
from antecede.errors import AntecedeError, MissingError, OverloadError, UsageError
from antecede.labels import label_in
from antecede.limits import address_chars_max, counter_max, drop_letters_max, frame_bytes_max, message_id_chars_max
from antecede.server.admission import Guard
from antecede.server.driver import Driver
from antecede.server.inputs import OPERATOR, OnBehalf, Replay, ReplayMany
from antecede.server.items import Acknowledged, Buried, BuriedMany, Forgot, Left
from antecede.server.node import AgentServer, Input
from antecede.server.participation import Reorganising
from antecede.server.peering import Peering
from antecede.server.sessions import Sessions
from antecede.server.upkeep import LogView

# A server's part in a backup of the whole system: take part in a consistent cut, then send its files to the operator.
#
# **The cut.** A server's durable state is a prefix of its log. Copies of several logs form a working system if two
# conditions hold:
#
# 1. if a receiver's log shows a frame as accepted, the sender's log contains this frame (otherwise the sender would
#    give the number of this frame to another frame); and
# 2. if a sender has deleted a frame because the frame was acknowledged, the receiver's log shows this frame as
#    accepted.
#
# (Frames that were sent and not accepted are in transit: the sender's copy sends them again.) Copies that are made at
# different moments can break both conditions. The state of all servers at one *instant* fulfils both, because frames
# and acknowledgements leave a server only when their records are durable. Several servers cannot be copied in one
# instant, but two rounds are enough (:mod:`antecede.server.operator`):
#
# - ``backup`` **holds** a server: from now on nothing that peers send is accepted (:meth:`Peering.pause`). Agents,
# timers
#   and clients continue, and the log grows. The operator begins the second round only when *all* servers are held.
# - ``backup-cut`` takes the **cut**: the records that are durable now, with the newest snapshot. Then the server
# accepts
#   messages from peers again.
#
# The first condition: if the receiver's cut shows a frame as accepted, the receiver accepted the frame before the
# receiver was held. So the frame was durable at the sender before the first cut. The second condition: if the sender
# has already deleted a frame at its cut, the frame was acknowledged before the sender was held. So the frame was
# durable at the receiver before the first cut. A server that was restarted, or that waited too long for the cut, is not
# held any more, and refuses the cut.
#
# Afterwards the operator reads the files of the cut, page by page (``backup-read``), and ends the backup
# (``backup-end``). The adapter (the code that does the server's I/O) keeps these files as they were at the cut,
# although the log grows.


class Frozen(Protocol):
    """The files of a server as they were at one moment."""

    position: int
    """The number of the last record that was durable at this moment, or 0 if no record was durable."""
    files: dict[str, int]
    """Name and length of each file."""

    def read(self, name: str, offset: int, count: int) -> bytes:
        """Return ``count`` bytes of a file from ``offset`` on, or fewer if the file ends earlier."""
        ...

    def end(self) -> None:
        """Release the files: they are not needed any more."""
        ...


class Backups:
    """The operators' commands with which one server takes part in a backup."""

    def __init__(self, machine: AgentServer, driver: Driver, peering: "Peering") -> None:
        self._machine = machine
        self._driver = driver
        self._peering = peering
        self.freeze: Callable[[], Frozen] | None = None
        """A function that returns the files as they are at the time of the call, and keeps them unchanged. The adapter
        (the code that does the server's I/O) sets this function. It is None if this server has no files."""
        self._id = ""
        """The name of the backup in which this server takes part now, or an empty string if it takes part in no
        backup."""
        self._until = 0.0
        """The time at which this server gives up the backup if no further command of this backup comes."""
        self._frozen: Frozen | None = None
        self.commands: dict[str, tuple[int, Callable[..., Any]]] = {
            "backup": (1, self.hold),
            "backup-cut": (1, self.cut),
            "backup-read": (3, self.read),
            "backup-end": (1, self.end),
        }
        """The commands, each with the number of its arguments."""
        self.audited = ("backup", "backup-cut", "backup-end")
        """The commands that are written to the audit log even if they change nothing."""

    def hold(self, id_: str) -> dict[str, Any]:
        """Begin a backup: accept nothing from peers until the command ``backup-cut``. If this command does not come
        within ``backup_hold_seconds_max``, the server gives up the backup."""
        name = self._machine.name
        if self.freeze is None or not self._machine.kept:
            raise UsageError(f"server {name} keeps no log: with --durability memory there is nothing to back up")
        if self._driver.behind:
            raise OverloadError(f"server {name} cannot write its log: {self._driver.trouble}")
        if self._id and self._id != id_:
            seconds = max(0.0, self._until - self._driver.now)
            raise OverloadError(
                f"server {name} is part of another backup: try again later (if no command of that backup comes, the "
                f"server gives it up in {seconds:.0f} s)"
            )
        if not 0 < len(id_) <= _id_chars_max:
            raise UsageError(f"the name of the backup has {len(id_)} characters: expected 1 to {_id_chars_max}")
        self._id, self._until = id_, self._driver.now + limits.backup_hold_seconds_max
        self._peering.pause()
        return {"server": name}

    def cut(self, id_: str) -> dict[str, Any]:
        """Keep the files as they are at this moment, and accept messages from peers again. Return the names and lengths
        of the files."""
        self._check(id_)
        if not self._peering.paused or self.freeze is None:
            raise MissingError(f"server {self._machine.name} no longer waits for the cut: start the backup again")
        try:
            self._frozen = self.freeze()
        finally:
            self._peering.resume()
        if not self._frozen.position:
            raise OverloadError(f"server {self._machine.name} has no durable record in its log yet: try again later")
        self._until = self._driver.now + limits.backup_idle_seconds_max
        frozen = self._frozen
        incarnation = f"{self._machine.incarnation:016x}"
        return {
            "server": self._machine.name,
            "incarnation": incarnation,
            "position": frozen.position,
            "files": frozen.files,
        }

    def read(self, id_: str, name: str, offset: str) -> dict[str, Any]:
        """Return the bytes of a file from ``offset`` on, at most one page."""
        self._check(id_)
        frozen = self._frozen
        size = None if frozen is None else frozen.files.get(name)
        if frozen is None or size is None:
            raise UsageError(f"the backup has no file {name[:100]!r}")
        if not (offset.isascii() and offset.isdecimal() and len(offset) <= _digits_max):
            raise UsageError(
                f"offset {offset[:_digits_max]!r}: expected a whole number of at most {_digits_max} digits"
            )
        self._until = self._driver.now + limits.backup_idle_seconds_max
        count = min(limits.backup_page_bytes, max(0, size - int(offset)))
        return {"bytes": b64encode(frozen.read(name, int(offset), count)).decode()}

    def end(self, id_: str) -> dict[str, Any]:
        """End the backup: the files of the cut are not needed any more."""
        self._check(id_)
        self._leave()
        return {"server": self._machine.name}

    def watch(self, now: float) -> None:
        """Give up the backup if its operator has sent no command for too long. Call this about once per second."""
        if self._id and now > self._until:
            self._leave()

    def _check(self, id_: str) -> None:
        if not self._id or id_ != self._id:
            raise MissingError(
                f"server {self._machine.name} is not part of this backup any more: start the backup again"
            )

    def _leave(self) -> None:
        self._id = ""
        if self._peering.paused:
            self._peering.resume()
        frozen, self._frozen = self._frozen, None
        if frozen is not None:
            frozen.end()


_id_chars_max = 64
_digits_max = 18


# Operators' commands about clients: list clients, remove a client that will not return, end a client's subscription.
#
# A client is known to its server if it is connected, if it ever published, or if letters wait for it. Only a
# disconnected client can be removed. Its letters are deleted permanently, a limited number with each request. When no
# letter remains, the server forgets the number of the client's last publish. If a client of the same name connects
# later, it is a new client.


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
        known = {machine.client_address(client) for client in machine.clients if client != OPERATOR}
        known.update(address for address in machine.engine.mailboxes if not self._lives(address))
        known.update(machine.client_address(client) for client in self._sessions.names)
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
        if self._lives(address) or not client or self._machine.client_address(client) != address:
            raise UsageError(f"{address[:200]!r}: expected a client of this server, NAME@{self._machine.name}")
        return client


# Operators' commands about dead letters: list them, show one, send letters again, and remove letters from the list.
# Some commands are about one letter, others about many letters.
#
# Commands about many letters work on one page at a time (:func:`antecede.engine.page_of`). Each page is one request,
# one step and one record of limited size, so the server's other work waits at most a few milliseconds. An operator's
# program repeats the request with the number at which the last page ended. If the program is interrupted, the operator
# can simply start it again.


class DeadLetters:
    """The commands about the dead letters of one server."""

    def __init__(self, machine: AgentServer, change: Callable[[Input], None]) -> None:
        """``change``: a function that gives an input to the server. It raises an error if the server cannot write its
        log now."""
        self._machine = machine
        self._change = change
        self.commands: dict[str, tuple[int, Callable[..., Any]]] = {
            "dead-list": (0, self.list),
            "dead-page": (7, self.page),
            "dead-show": (1, self.show),
            "dead-replay": (1, self.replay),
            "dead-bury": (1, self.bury),
            "dead-replay-page": (7, self.replay_page),
            "dead-bury-page": (7, self.bury_page),
        }
        """The commands, each with the number of its arguments."""

    def list(self) -> list[dict[str, Any]]:
        """Return all dead letters, oldest first."""
        return [self._shown(dead) for dead in self._machine.engine.dead.values()]

    def show(self, id_: str) -> dict[str, Any]:
        """Return one dead letter, with the fields of its message in ``fields``. ``fields`` is None if the message is
        too long to be shown, or if JSON cannot express it."""
        dead = self._find(id_)
        letter = dead.letter
        try:
            text = msgspec.json.encode(msgspec.msgpack.decode(letter.body))
            fields = json.loads(text) if len(text) <= limits.dead_shown_bytes_max else None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError, ValueError):
            # MessagePack can contain what JSON cannot: a key that is a list, an extension type.
            fields = None
        shown = {**self._shown(dead), "to": list(letter.to[:_to_max]), "destinations": len(letter.to)}
        return {**shown, "fields": fields, "bytes": letter.body.hex()[:4_000], "length": len(letter.body)}

    def replay(self, id_: str) -> dict[str, Any]:
        """Send a dead letter again, as a new letter, and remove the dead letter from the list. Usually a dead letter
        belongs to one agent or client, which did not handle the letter. Then the new letter goes only to this agent
        or client. But if a server could not forward the letter to any agent or client, the new letter goes to all
        destinations of the old letter. The new letter keeps the original sender. If the letter was a question and its
        sender still waits, the sender gets the answer."""
        dead = self._find(id_)
        to = self._destinations(dead)
        self._check_load()
        if self._machine.engine.is_frozen(dead.agent):
            raise OverloadError(f"agent {dead.agent} is being moved or removed: try again later")
        self._change(Replay(dead.key, to, OPERATOR))
        return {"replayed": dead.letter.id, "agent": dead.agent, "from": dead.letter.source}

    def bury(self, id_: str) -> dict[str, Any]:
        """Remove a dead letter from the list permanently."""
        dead = self._find(id_)
        self._change(Buried(dead.key))
        return {"buried": dead.letter.id, "agent": dead.agent}

    # Many at once. The arguments are those of ``_page``.

    def page(self, *arguments: str) -> dict[str, Any]:
        """Return one page of dead letters, oldest first."""
        page = self._page(*arguments, letters_max=limits.dead_page_letters_max, size=_shown_bytes)
        return {**self._page_fields(page), "letters": [self._shown(dead) for dead in page.letters]}

    def replay_page(self, *arguments: str) -> dict[str, Any]:
        """Send the dead letters of one page again. Letters without a valid destination, or for an agent that is being
        moved or removed, stay on the list."""
        self._check_load()
        page = self._page(*arguments, letters_max=limits.dead_page_letters_max, size=_body_bytes)
        replays, size = [], 0
        for dead in page.letters:
            if self._machine.engine.is_frozen(dead.agent):
                continue
            try:
                replays.append(Replay(dead.key, self._destinations(dead), OPERATOR))
            except UsageError:
                continue
            size += len(dead.letter.body)
        if replays:
            self._change(ReplayMany(tuple(replays), size))
        return {**self._page_fields(page), "replayed": len(replays), "skipped": len(page.letters) - len(replays)}

    def bury_page(self, *arguments: str) -> dict[str, Any]:
        """Remove the dead letters of one page permanently."""
        page = self._page(*arguments, letters_max=limits.drop_letters_max, size=lambda dead: 0)
        if page.letters:
            self._change(BuriedMany([dead.key for dead in page.letters]))
        return {**self._page_fields(page), "buried": len(page.letters)}

    def _page(
        self,
        after: str,
        last: str,
        first: str,
        agent: str,
        type_: str,
        reason: str,
        before_ms: str,
        *,
        letters_max: int,
        size: Callable[[Dead], int],
    ) -> Page:
        """Return one page of the dead letters that meet all these conditions. The letter's number is larger than
        ``after``, and at most ``last``. Its agent is ``agent``, and its type is ``type_``. Its reason contains the text
        ``reason``. It became a dead letter before the wall clock time ``before_ms``. The page has at most
        ``letters_max`` letters, and at most ``first`` letters. An empty text or the number 0 sets no condition.
        ``size``: a function that returns the size of a letter. The total size of a page is limited."""
        wanted = _number("first", first)
        within = Range(
            _number("after", after),
            _number("last", last),
            min(wanted or letters_max, letters_max),
            limits.dead_page_bytes_max,
            limits.dead_page_examined_max,
        )
        # An operator's times are those of the wall clock.
        before = _number("before_ms", before_ms)
        choice = Choice(agent, type_, reason, before and max(1, before - self._machine.clock.times.ahead_ms))
        return page_of(self._machine.engine.dead, choice, within, size)

    def _page_fields(self, page: Page) -> dict[str, Any]:
        engine = self._machine.engine
        return {
            "server": self._machine.name,
            "upto": page.upto,
            "more": page.more,
            "dead": len(engine.dead),
            "last": engine.deaths,
        }

    def _destinations(self, dead: Dead) -> tuple[str, ...]:
        # A letter that died at a server, not at an agent, goes to its destinations.
        machine = self._machine
        return machine.channel.check(dead.letter.to if dead.agent == machine.name else (dead.agent,))

    def _check_load(self) -> None:
        if self._machine.overloaded:
            raise OverloadError(f"server {self._machine.name} is catching up: try again later")
        if self._machine.organisation.closed:
            raise OverloadError(self._machine.organisation.closed)

    def _find(self, id_: str) -> Dead:
        dead = self._machine.engine.dead
        if id_ in dead:
            return dead[id_]
        found = [one for one in dead.values() if one.letter.id == id_]
        if not found:
            raise MissingError(f"no dead letter {id_[:200]!r} on {self._machine.name}")
        if len(found) > 1:
            raise UsageError(
                f"several dead letters have the id {id_[:200]!r} on {self._machine.name}: give a key (dead list --json)"
            )
        return found[0]

    def _shown(self, dead: Dead) -> dict[str, Any]:
        letter, following = dead.letter, self._machine.engine.following
        held = len(following.held.get(dead.agent, ())) if dead.key in following.blocks.get(dead.agent, ()) else 0
        return {
            "key": dead.key,
            "id": letter.id,
            "server": self._machine.name,
            "agent": dead.agent,
            "from": letter.source,
            "type": letter.type,
            "label": label_in(letter.context),
            "reason": dead.reason,
            "place": f"{self._machine.name}:{dead.number}",
            "since_ms": dead.since_ms and dead.since_ms + self._machine.clock.times.ahead_ms,
            "holds": held,
            "undecided": following.undecided(dead.agent) if held else 0,
        }


def _number(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > _dead_letters_digits_max or not text.isascii():
        raise UsageError(f"{name} {text[:32]!r}: expected a whole number of at most {_dead_letters_digits_max} digits")
    return int(text)


def _shown_bytes(dead: Dead) -> int:
    letter = dead.letter
    return _line_bytes + len(dead.reason) + 2 * len(dead.agent) + len(letter.source) + len(letter.type)


def _body_bytes(dead: Dead) -> int:
    return len(dead.letter.body)


_line_bytes = 300
_to_max = 1_000
"""The largest number of destinations that are shown for one letter."""
_dead_letters_digits_max = 19


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

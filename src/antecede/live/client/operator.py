"""An operator's request over TCP: an adapter around :class:`antecede.server.operator.OperatorRequest`."""

import asyncio
import ssl
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from random import random
from secrets import token_hex
from time import monotonic
from typing import Any

import msgspec

from antecede import limits, wire
from antecede.access.proof import Keyring
from antecede.backups.copying import Cut, ServerCopy
from antecede.backups.folder import NewBackup, SavedServer
from antecede.errors import AntecedeError, ClosedError, OverloadError, RefusedError
from antecede.live.client.line import why_unreached
from antecede.live.tcp import TcpConnection, dial
from antecede.server.change import BusyServerError, Command, Outcome, Steps, Wait
from antecede.server.operator import Cutting, OperatorRequest
from antecede.topology import Address, TopologyFile, parse_topology


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


# Change the topology of a running system over TCP, for an operator. :mod:`antecede.server.change` decides
# the steps of the change. This module does the I/O.
#
# The operator's process sends all commands of one step of the change to their servers at the same time. If a server
# is busy, the process sends the command again later, and reports the reason for the wait. It is safe to kill the
# process at any point.


Progress = Callable[[str], None]
"""A function that gets a text about the progress of the change: the current step, or the reason to wait."""


class RunningServers:
    """Carries out one change of a running system: sends the commands of the change to the servers."""

    def __init__(
        self,
        files: Iterable[TopologyFile],
        token: str = "",
        tls: ssl.SSLContext | None = None,
        keyring: Keyring | None = None,
        progress: Progress = lambda text: None,
        slow: Progress = lambda text: None,
    ) -> None:
        """``files``: topologies with the addresses of the servers. If a server sends the topology that is in force, the
        addresses in it are also used. ``slow``: called with a text when a server has not answered for a while."""
        self._addresses: dict[str, list[Address]] = {}
        for file in files:
            self._add(file)
        self._token, self._tls, self._keyring = token, tls, keyring
        self._progress, self._slow = progress, slow
        self.begun = 0
        """The number of the change that was begun last; 0 if no change was begun, or if it was abandoned."""

    def _add(self, file: TopologyFile) -> None:
        for server, address in file.servers.items():
            known = self._addresses.setdefault(server, [])
            if address not in known:
                known.append(address)

    async def drive(self, steps: Steps) -> Outcome:
        """Carry out the steps of a change until the change has ended; return the outcome."""
        try:
            asked = next(steps)
            while True:
                commands = [] if isinstance(asked, Wait) else asked
                if isinstance(asked, Wait):
                    if asked.reason:
                        self._progress(f"waits for {asked.reason}")
                    await asyncio.sleep(asked.seconds)
                elif asked:
                    self._progress(_doing.get(asked[0].name, asked[0].name))
                    self.begun = 0 if asked[0].name == "change-abandon" else asked[0].begins or self.begun
                found = await asyncio.gather(*map(self._answer, commands))
                failures = [one for one in found if isinstance(one, AntecedeError)]
                answers = [one for one in found if not isinstance(one, AntecedeError)]
                asked = steps.throw(failures[0]) if failures else steps.send(answers)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome

    async def _answer(self, command: Command) -> dict[str, object] | AntecedeError | None:
        """Send a command to its server, several times if necessary. Return the answer of the server, or an error.
        Return None if the server does not answer."""
        begun, problem = monotonic(), ""
        while True:
            late = f"server {command.server} has not answered for {_slow_seconds:g} s"
            timer = asyncio.get_running_loop().call_later(_slow_seconds, self._slow, late)
            try:
                return await self._ask(command)
            except OverloadError as error:
                # It takes part in a backup, its disk is full, or the operator's commands are limited.
                problem, most = str(error), _busy_seconds_max
            except ClosedError as error:
                problem, most = str(error), 0.0 if not command.patient else float("inf")
                if command.name not in _unhurried and not command.patient:
                    most = _again_seconds_max
            except AntecedeError as error:
                return error
            finally:
                timer.cancel()
            if monotonic() - begun > most:
                return None if most < _busy_seconds_max else BusyServerError(command.server, problem)
            self._progress(f"waits for server {command.server}: {problem}")
            await asyncio.sleep(_pause_seconds)

    async def _ask(self, command: Command) -> dict[str, object]:
        failure: AntecedeError = ClosedError(f"the address of server {command.server} is not known")
        for address in self._addresses.get(command.server, []):
            try:
                document: Any = await request(
                    address,
                    self._token,
                    command.name,
                    *command.arguments,
                    tls=self._tls,
                    keyring=self._keyring,
                    long=True,
                    seconds_max=command.seconds_max,
                )
            except ClosedError as error:
                failure = error
                continue
            except RefusedError as error:
                raise RefusedError(f"server {command.server} at {address}: {error}", error.code) from None
            if document.get("server") != command.server:
                failure = ClosedError(f"server {document.get('server')} answers at {address}, not {command.server}")
                continue
            if command.name == "change-look" and document.get("topology"):
                self._add(parse_topology(str(document["topology"]), "the topology in force"))
            return dict(document)
        raise failure


_doing = {
    "change-look": "reads the state of the servers",
    "change-classes": "checks the classes of agents",
    "change-join": "lets new servers join the restored system",
    "change-lesson": "lets servers learn earlier changes",
    "change-learn": "lets servers learn earlier changes",
    "change-pause": "lets letters wait",
    "change-transit": "waits until everything in transit has arrived",
    "change-stage": "imports classes and stages the change",
    "change-ready": "checks that every server is ready",
    "change-left": "hands over agents and clients",
    "change-receive": "hands over agents and clients",
    "change-commit": "puts the new topology in force",
    "change-abandon": "abandons the change",
    "change-history": "reads the history of changes",
}
_unhurried = ("change-look", "change-classes", "change-history", "change-abandon")
"""Commands that are not sent again if the server does not answer."""
_pause_seconds = 0.2
_slow_seconds = 4.0
"""The time after which ``slow`` reports a server that has not answered."""
_again_seconds_max = 5.0
"""The time in which a command is sent again and again to a server that does not answer (perhaps because it restarts).
After this time, the change is made without the server, or is abandoned. There are two exceptions. The commands in
``_unhurried`` are not sent again. A command whose ``patient`` is true is sent until the server answers."""
_busy_seconds_max = 30.0
"""The time in which a command is sent again and again to a server that is busy. A backup keeps a server busy for less
time than this."""
assert limits.change_idle_seconds_max > _again_seconds_max, "the others must still wait when a server is back"


# Back up a running system over TCP for an operator. First, make a consistent *cut*: each server chooses a position in
# its log (:class:`antecede.server.operator.Cutting`). Then copy the files of the servers.


ReportProgress = Callable[[int, int], None]
"""A function that reports the progress of a backup. Its arguments are the number of bytes that are copied so far, and
an upper bound for the size of the whole backup."""


class Remote:
    """Makes one backup of a running system: sends requests to its servers and stores their files."""

    def __init__(
        self, servers: Mapping[str, Address], token: str, tls: ssl.SSLContext | None, keyring: Keyring | None
    ) -> None:
        self._servers = servers
        self._token = token
        self._tls = tls
        self._keyring = keyring
        self._cutting = Cutting(servers, token_hex(16))
        self.held_seconds = 0.0
        """The duration of the cut, in seconds. During this time, or a part of it, each server accepted no messages from
        other servers."""

    async def cut(self) -> dict[str, Cut]:
        """Ask all servers to stop accepting messages from each other. When all have stopped, ask each server for its
        cut: the position in its log, and the files to copy. Return the cuts, by server."""
        cutting, begun = self._cutting, monotonic()
        while not cutting.over:
            due = cutting.requests()
            await asyncio.gather(*(self._ask(*one) for one in due))
        self.held_seconds = monotonic() - begun
        if cutting.failure is not None:
            server, error = cutting.failure
            raise type(error)(f"server {server}: {error}") if not isinstance(error, RefusedError) else error
        return {server: msgspec.convert(cutting.cuts[server], Cut) for server in self._servers}

    async def copy(
        self, cuts: Mapping[str, Cut], new: NewBackup, report_progress: ReportProgress
    ) -> dict[str, SavedServer]:
        """Copy the files of all servers into the new backup, one server after the other. After each page (a piece of a
        file that one request reads), call ``report_progress``."""
        copies = {server: ServerCopy(new.folder(server), cut) for server, cut in cuts.items()}
        total = sum(copy.total for copy in copies.values())
        for server, copy in copies.items():
            for name, offset in copy.pages():
                document = await self._read(server, name, offset)
                copy.take(b64decode(document["bytes"]))
                report_progress(sum(one.bytes for one in copies.values()), total)
        return {server: copy.result() for server, copy in copies.items()}

    async def end(self) -> None:
        """Inform all servers that the backup has ended. A server that does not answer ends the backup by itself after
        some time."""
        await asyncio.gather(*(self._end(*one) for one in self._cutting.releases()))

    async def _end(self, server: str, command: str, arguments: list[str]) -> None:
        with suppress(AntecedeError):
            await self._request(server, command, *arguments)

    async def _ask(self, server: str, command: str, arguments: list[str]) -> None:
        try:
            self._cutting.answered(server, await self._request(server, command, *arguments), None)
        except AntecedeError as error:
            self._cutting.answered(server, None, error)

    async def _read(self, server: str, name: str, offset: int) -> Any:
        """Read a page of a file. If the server refuses the request because of a rate limit, wait and try again."""
        [(_, _, [id_])] = [one for one in self._cutting.releases() if one[0] == server]
        for left in reversed(range(_tries)):
            try:
                return await self._request(server, "backup-read", id_, name, str(offset))
            except OverloadError:
                if not left:
                    raise
                await asyncio.sleep(_backup_pause_seconds * (1 + random()))
        raise ClosedError(f"server {server}: {_tries} tries to read {name} failed")

    async def _request(self, server: str, command: str, *arguments: str) -> Any:
        address = self._servers[server]
        return await request(address, self._token, command, *arguments, tls=self._tls, keyring=self._keyring)


_tries = 50
_backup_pause_seconds = 0.2

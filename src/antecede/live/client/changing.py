"""Change the topology of a running system over TCP, for an operator. :mod:`antecede.server.change.changing` decides the
steps of the change. This module does the I/O.

The operator's process sends all commands of one step of the change to their servers at the same time. If a server is
busy, the process sends the command again later, and reports the reason for the wait. It is safe to kill the process
at any point.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any

from antecede import limits
from antecede.access.proof import Keyring
from antecede.errors import AntecedeError, ClosedError, OverloadError, RefusedError
from antecede.live.client.operator import request
from antecede.server.change.changing import BusyServerError, Outcome, Steps
from antecede.server.change.requests import Command
from antecede.server.change.surveying import Wait
from antecede.topology import Address, TopologyFile, parse_topology

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

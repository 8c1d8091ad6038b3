"""The work of a running server when the topology changes: import classes, use new addresses, end a removed server.

The rules are in :mod:`antecede.server.change.reorganising`. Work that may take long (importing classes, reading the
trace) is done by another thread, so that the server's other work continues.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from antecede.backups.folder import write_system
from antecede.engine.belongings import Belongings
from antecede.errors import AgentError, AntecedeError, TopologyError
from antecede.live.apart import is_imported, try_apart
from antecede.live.application import Classes, agents_of, load_class, readable
from antecede.live.isolation import isolated_agents
from antecede.recording.segments import next_indices
from antecede.server.change.reorganising import Adapter
from antecede.server.organisation import topology_in
from antecede.topology import TopologyFile
from antecede.whereabouts import described

if TYPE_CHECKING:
    from antecede.live.server import ServerRuntime


class LiveChanges(Adapter):
    """Does the work of a running server for a change of the topology: see
    :class:`antecede.server.change.reorganising.Adapter`."""

    def __init__(self, runtime: "ServerRuntime", given: Classes | None) -> None:
        """``given``: classes, by the name of the agent or object. These classes are used as they are; all other classes
        are imported."""
        self._runtime = runtime
        self._given = given or {}

    def prepare(self, file: TopologyFile, came: list[Belongings]) -> None:
        self._check(file, lambda: readable(file, self._runtime.name, came, self._given))

    def check(self, file: TopologyFile, came: list[Belongings]) -> None:
        name = self._runtime.name
        if self._given or is_imported(file, name):
            self.prepare(file, came)
        else:
            self._check(file, lambda: try_apart(file, name))

    def _check(self, file: TopologyFile, classes: Callable[[], None]) -> None:
        runtime = self._runtime
        if runtime.name not in file.servers:
            return
        try:
            classes()
        except AgentError as error:
            raise AgentError(
                f"server {runtime.name}: {error} (a running server uses the modules that it has imported already: "
                "restart it to use newer files)"
            ) from None
        address = file.servers[runtime.name]
        if address != runtime.topology.servers[runtime.name]:
            _check_free(runtime.host or address.host, address.port, runtime.name)

    def indices(self, addresses: list[str]) -> dict[str, int]:
        runtime = self._runtime
        if not addresses or not runtime.data:
            return {}
        return next_indices(runtime.data, runtime.topology, addresses)

    def offload(self, work: Callable[[], None], then: Callable[[AntecedeError | None], None]) -> None:
        async def do() -> None:
            failure: AntecedeError | None = None
            try:
                await asyncio.to_thread(work)
            except AntecedeError as error:
                failure = error
            except Exception as error:
                failure = AgentError(f"server {self._runtime.name}: {described(error)}")
            then(failure)

        self._runtime.background.start("a change of the topology", do())

    async def _listen(self) -> None:
        """Listen on the new address of this server, and make its clients connect to this address."""
        runtime = self._runtime
        address = runtime.topology.servers[runtime.name]
        while True:
            try:
                await runtime.listen_elsewhere()
                break
            except AntecedeError as error:
                runtime.log.error("cannot-listen", reason=str(error))
                await asyncio.sleep(_listen_seconds)
        runtime.log.info("listens", address=str(address))
        runtime.core.sessions.move(str(address))

    def drop_agents(self, agents: list[str]) -> None:
        self._runtime.reactions.drop_agents(agents)

    def organised(self, file: TopologyFile) -> None:
        runtime = self._runtime
        before, runtime.topology, runtime.epoch = runtime.topology, file, file.epoch
        host, reactions, name = runtime.reactions.host, runtime.reactions, runtime.name
        kinds = agents_of(file, name, self._given)
        for agent in before.agents:
            if agent.server == name and agent.name not in kinds:
                host.retire(agent.name)
        for agent_name, kind in kinds.items():
            host.declare(agent_name, kind)
        for address, born in runtime.machine.engine.born.items():
            host.declare(address, load_class(born))
        fresh = isolated_agents(file, host, runtime.log)
        for agent_name, isolated in list(runtime.isolated.items()):
            if agent_name in fresh:
                fresh[agent_name] = isolated.renewed(fresh[agent_name])
            else:
                isolated.close()
        runtime.isolated.clear()
        runtime.isolated.update(fresh)
        reactions.organised()
        if before.servers[name] != file.servers[name]:
            runtime.background.start("listening on the new address", self._listen())
        runtime.set_timer()

    def belong(self, restored: str) -> None:
        if self._runtime.machine.kept:
            write_system(self._runtime.data, restored)

    def removed(self) -> None:
        if not self._runtime.removed.done():
            self._runtime.removed.set_result(None)


def addresses_of(runtime: "ServerRuntime", server: str) -> list[tuple[str, int]]:
    """Return the addresses of a server in the topology in force and in the staged topology, if there is one. (A staged
    topology is in the log, but not in force yet.)"""
    staged = runtime.machine.organisation.staged
    files = [runtime.topology] if staged is None else [runtime.topology, topology_in(staged.topology)]
    known = [file.servers[server] for file in files if server in file.servers]
    return list(dict.fromkeys((address.host, address.port) for address in known))


def staged_classes(runtime: "ServerRuntime", given: Classes | None) -> None:
    """Import the classes for a *staged* change of the topology: a change that is in the log, but not in force yet. It
    may come into force at any moment. ``given``: classes that are used as they are, without an import."""
    organisation = runtime.machine.organisation
    if organisation.staged is None:
        return
    file = topology_in(organisation.staged.topology)
    try:
        readable(file, runtime.name, organisation.came, given)
    except AntecedeError as error:
        runtime.log.error("change-unprepared", change=organisation.staged.change, reason=str(error))


def _check_free(host: str, port: int, server: str) -> None:
    """Raise TopologyError if this computer cannot listen on a new address of the server."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        raise TopologyError(f"server {server} cannot listen on {host}:{port}: {error.strerror or error}") from None


_listen_seconds = 1.0
"""The number of seconds before the server tries again to listen on an address."""

"""Change the topology of stopped servers, in their data directories.

Each directory is opened as a server would open it, and the server's state machine replays the log to its end. These
state machines answer the commands of a change (:mod:`antecede.server.change`) without a network. Messages that
were in transit when the servers stopped are passed from one state machine to the other in memory
(:mod:`antecede.server.change`). Every record is durable before anything depends on it. So it is safe to kill
the operator's command at any point. If the operator runs the command again, it continues the change or begins it again.
"""

import os
from collections.abc import Callable
from secrets import randbits, token_hex

import msgspec

from antecede.backups.copying import judged_in
from antecede.backups.folder import system_in, write_system
from antecede.engine import Belongings
from antecede.errors import AntecedeError, StoreError, TopologyError
from antecede.live.application import plan_of, readable
from antecede.recording.segments import is_data_directory, next_indices
from antecede.server import AgentServer, Input
from antecede.server.change import ChangeRequest, Command, Outcome, Wait, carry_out, drain
from antecede.server.items import Committed, Epoch, Learned, Organised, Staged, decode_record, joined, pieces_of
from antecede.server.participation import Participant
from antecede.server.recovery import replay, resume, topology_of
from antecede.store import Store, open_store
from antecede.store.recovery import Recovered
from antecede.topology import TopologyFile, parse_topology

Progress = Callable[[str], None]


class _Stopped:
    """One stopped server: its data directory, and the state machine that has replayed the log."""

    def __init__(
        self, name: str, directory: str, store: Store | None, found: Recovered, new: TopologyFile | None
    ) -> None:
        """``store``: the log to append to, or None if nothing may be written. ``new``: the topology with which an empty
        log begins."""
        self.name = name
        self.directory = directory
        self.store = store
        snapshot = None if found.snapshot is None else found.snapshot.data()
        stored = [record for _, record in found.records()] if snapshot is None else []
        _, text = topology_of(snapshot, stored)
        file = parse_topology(text, "the topology in force") if text else new
        if file is None or (found.last and not text):
            raise StoreError(f"{directory}: its log does not contain the topology of a server")
        if name not in file.servers:
            raise StoreError(f"{directory}: its topology has no server {name}")
        self.machine = AgentServer(name, plan_of(file), found.incarnation)
        records = (record for _, record in found.records())
        if replay(self.machine, snapshot, records, file.epoch, 0.0):
            first = resume(self.machine)
        else:
            first = self.machine.begin(file.epoch)
        self.machine.begin_life(randbits(63) + 1)
        self.append(first)
        self.participant = Participant(self.machine, self.feed, self._prepare, self._indices)
        self.restored = system_in(directory)
        """The id of the restored system to which the directory belongs; empty if the directory was not restored from a
        backup."""
        self.participant.restored = lambda: self.restored
        self.participant.belong = self._belong

    def feed(self, given: Input) -> None:
        record = self.machine.step([given], 0.0, 0).record
        if record is not None:
            self.append(record)
            self.sync()

    def append(self, record: bytes) -> None:
        if self.store is not None:
            for piece in pieces_of(record):
                self.store.append(piece)

    def sync(self) -> None:
        if self.store is not None and not self.store.wait(self.store.last, _sync_seconds):
            raise StoreError(f"{self.directory}: the disk did not finish writing within {_sync_seconds:g} s")

    def close(self) -> None:
        if self.store is not None:
            self.store.close()

    def _prepare(self, file: TopologyFile, came: list[Belongings]) -> None:
        readable(file, self.name, came)

    def _belong(self, restored: str) -> None:
        self.restored = restored
        if self.store is not None:
            write_system(self.directory, restored)

    def _indices(self, addresses: list[str]) -> dict[str, int]:
        if self.store is None or not addresses:
            return {}
        return next_indices(self.directory, addresses)


def differing(folder: str, new: TopologyFile) -> TopologyFile | None:
    """Read the data directories in a folder, one after the other. Return the first topology in force that differs from
    ``new``; None if there is no such topology. Different directories can have different topologies if a change was
    decided but not finished. Nothing is written."""
    for name in _names_in(folder):
        directory = f"{folder}/{name}"
        found = judged_in(directory).recovered
        text, staged = "" if found.snapshot is None else topology_of(found.snapshot.data(), [])[1], ""
        for record in joined(record for _, record in found.records()):
            for item in decode_record(record):
                if isinstance(item, Organised | Learned):
                    text = item.topology
                elif isinstance(item, Staged):
                    staged = item.topology
                elif isinstance(item, Committed) and staged:
                    text = staged
        file = parse_topology(text, "the topology in force") if text else None
        if file is not None and file.epoch != new.epoch and name in file.servers:
            return file
    return None


def histories(folder: str) -> dict[str, tuple[dict[str, object], list[Epoch]]]:
    """Return two values for each data directory in a folder: ``Organisation.state``, which contains the change in
    progress, and the list of the topologies that are or were in force. Nothing is written."""
    organisations = {one.name: one.machine.organisation for one in _all_in(folder)}
    return {name: (organisation.state(), organisation.history) for name, organisation in organisations.items()}


def finish(folder: str, clock_ms: int, resolve: str = "") -> Outcome:
    """End a change that is in progress. If the coordinator of the change has decided that the change takes effect,
    finish the change. If the coordinator has not decided this, abandon the change. ``resolve``: the decision to use if
    the data of the coordinator is lost."""
    machines = [one.machine for one in _all_in(folder)]
    newest = max(machines, key=lambda machine: machine.organisation.change, default=None)
    if newest is None or newest.plan.file is None:
        raise TopologyError(f"{folder}: this folder contains no data directories of servers")
    return change_directories(folder, ChangeRequest(newest.plan.file, (), "", clock_ms, resolve=resolve))


def _names_in(folder: str) -> list[str]:
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return [name for name in names if is_data_directory(f"{folder}/{name}")]


def _all_in(folder: str) -> list[_Stopped]:
    """Read the data directories of all servers in the folder, except for servers that an earlier change has removed.
    Nothing is written."""
    names = _names_in(folder)
    if not names:
        raise TopologyError(f"{folder}: this folder contains no data directories of servers")
    opened = [_opened(name, f"{folder}/{name}", True, None) for name in names]
    return [one for one in opened if one is not None]


def change_directories(folder: str, request: ChangeRequest, progress: Progress = lambda text: None) -> Outcome:
    """Change the topology of stopped servers. The folder contains one data directory per server, with the name of the
    server."""
    servers: dict[str, _Stopped] = {}
    try:
        for name in _names_in(folder):
            progress(f"reading {name}")
            opened = _opened(name, f"{folder}/{name}", request.dry, request.new)
            if opened is not None:
                servers[name] = opened
            elif name in request.new.servers:
                raise TopologyError(
                    f"{folder}/{name}: this directory contains the data of a server that an earlier change removed: "
                    "move the directory away, to add the server again"
                )
        if not servers:
            raise TopologyError(f"{folder}: this folder contains no data directories of servers")
        for server in servers.values():
            server.sync()
        plans = [server.machine.plan.file for server in servers.values()]
        known = {name for file in plans if file is not None for name in file.servers}
        for name in [name for name in request.new.servers if name not in servers and name not in known]:
            # Its directory is made when the change is staged.
            found = open_store(durability="memory").recovered
            servers[name] = _Stopped(name, f"{folder}/{name}", None, found, request.new)
        request = msgspec.structs.replace(request, servers=tuple(servers), attempt=token_hex(8), live=False)
        return _drive(request, servers, progress)
    finally:
        for server in servers.values():
            server.close()


def _drive(request: ChangeRequest, servers: dict[str, _Stopped], progress: Progress) -> Outcome:
    steps = carry_out(request)
    drained = False
    try:
        asked = next(steps)
        while True:
            commands = [] if isinstance(asked, Wait) else asked
            try:
                if not drained and any(one.name == "change-transit" for one in commands):
                    progress("letting letters arrive")
                    # Only servers of the topology in force are asked this.
                    machines = {one.server: servers[one.server].machine for one in commands if one.server in servers}
                    drain(machines, lambda records: _keep(servers, records))
                    drained = True
                answers = [_run(command, servers, request.new) for command in commands]
            except AntecedeError as error:
                asked = steps.throw(error)
            else:
                asked = steps.send(answers)
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome


def _run(command: Command, servers: dict[str, _Stopped], new: TopologyFile) -> dict[str, object] | None:
    server = servers.get(command.server)
    if server is None:
        return None
    if command.name == "change-pause":
        # Nothing is sent here, so nothing has to wait; letters that wait for others must be able to leave.
        return {"server": server.name}
    if command.name == "change-transit":
        domains = command.arguments[1].split(",")
        return {"server": server.name, "in_transit": server.machine.channel.in_transit(domains), "sent": 0}
    if command.name == "change-stage" and server.store is None:
        restored = server.restored
        server = servers[server.name] = _continued(server.name, server.directory, new)
        if restored and not server.restored:
            server.participant.belong(restored)
    work = server.participant.preparation(command.name, list(command.arguments))
    if work is not None:
        work()
    answer: dict[str, object] = server.participant.commands[command.name][1](*command.arguments)
    return answer


def _keep(servers: dict[str, _Stopped], records: dict[str, bytes]) -> None:
    for name, record in records.items():
        servers[name].append(record)
    for name in records:
        servers[name].sync()


def _opened(name: str, directory: str, dry: bool, new: TopologyFile | None) -> _Stopped | None:
    """Open the data directory of a server. Return None if an earlier change has removed the server."""
    found = judged_in(directory).recovered
    if found.snapshot is not None:
        text = topology_of(found.snapshot.data(), [])[1]
        if text and name not in parse_topology(text).servers:
            return None
    opened = _Stopped(name, directory, None, found, new) if dry else _continued(name, directory, new)
    if opened.machine.organisation.removed:
        opened.close()
        return None
    return opened


def _continued(name: str, directory: str, new: TopologyFile | None) -> _Stopped:
    """Open a data directory to append to its log. Create the directory if it does not exist."""
    store = open_store(directory)
    try:
        return _Stopped(name, directory, store, store.recovered, new)
    except BaseException:
        store.close()
        raise


_sync_seconds = 600.0

"""The survey before a change of the topology: it asks the servers for their state, and finds the topology in force.

The functions here do the first parts of a change; :mod:`antecede.server.change.changing` does the other parts. Each
part is a generator, see :data:`Part`. ``teach`` lets servers learn changes that they have missed. ``join`` lets new
servers join a restored system.
"""

from collections.abc import Generator, Iterable
from typing import TypeVar

import msgspec

from antecede.errors import AntecedeError, TopologyError
from antecede.server.change.requests import Command, View, read_view
from antecede.topology import TopologyFile, parse_topology


class Wait(msgspec.Struct, frozen=True):
    """A pause before the next commands."""

    seconds: float
    reason: str = ""
    """A description of what the change waits for, as text for the operator."""


class ChangeRequest(msgspec.Struct, frozen=True):
    """The change that an operator wants."""

    new: TopologyFile
    servers: tuple[str, ...]
    """The servers that are asked first. Other servers of the topology in force are asked after them."""
    system: str
    """A random name for the whole system of servers. It is used if the system has no name yet."""
    clock_ms: int
    dry: bool = False
    drop: bool = False
    """True if letters of removed agents and clients may be lost."""
    attempt: str = ""
    """A random name for this attempt to make the change."""
    live: bool = True
    """True if the servers are running. If they are stopped, they send nothing, so no letters have to wait for the
    change."""
    limit_seconds: float = 60.0
    """During a change, new letters wait until everything in transit has arrived. If that takes longer than this time,
    the change is abandoned."""
    resolve: str = ""
    """The operator's decision about an unfinished change: ``commit`` or ``abandon``. It is needed only if the
    coordinator of that change does not answer."""
    basis: str = ""
    """The epoch that the topology in force must have. If the text is empty, any epoch is accepted."""


_Result = TypeVar("_Result")
Part = Generator[list[Command] | Wait, list[dict[str, object] | None], _Result]
"""A generator for a part of a change. It yields commands or a pause. For each command it gets the server's answer, or
None if the server does not answer. It returns the result of this part."""


class SilentServerError(TopologyError):
    """Raised if a server does not answer."""

    def __init__(self, server: str) -> None:
        super().__init__(f"server {server} does not answer")
        self.server = server


def all_of(commands: Iterable[Command]) -> Part[list[dict[str, object]]]:
    """Yield commands and return the servers' answers. Raise SilentServerError if a server does not answer."""
    given = list(commands)
    answers = yield given
    for command, answer in zip(given, answers, strict=True):
        if answer is None:
            raise SilentServerError(command.server)
    return [answer for answer in answers if answer is not None]


def survey(request: ChangeRequest, without: frozenset[str] = frozenset()) -> Part[tuple[dict[str, View], TopologyFile]]:
    """Ask servers for their state: first ``request.servers``, then the other servers of the topology in force. Return
    the answers, and the topology in force. ``without``: servers that are not asked."""
    views = yield from _look(request, [server for server in request.servers if server not in without])
    old = _in_force(views)
    # Their addresses may be known only now.
    asked = {server for server in request.servers if request.new.servers.get(server) == old.servers.get(server)}
    missing = [server for server in old.servers if not (server in views or server in without or server in asked)]
    if missing:
        views |= yield from _look(request, missing)
        old = _in_force(views)
    return views, old


def _look(request: ChangeRequest, servers: Iterable[str]) -> Part[dict[str, View]]:
    text, drop = request.new.text(), "drop" if request.drop else ""
    asked = list(servers)
    answers = yield [Command(server, "change-look", (text, drop)) for server in asked]
    views = [read_view(one, answer) for one, answer in zip(asked, answers, strict=True) if answer is not None]
    return {view.server: view for view in views if not view.removed}


def _in_force(views: dict[str, View]) -> TopologyFile:
    """Return the topology in force, according to the servers' answers. A server that the change will add reports the
    new topology, which is ignored here."""
    if not views:
        raise TopologyError(
            "no server answers: start the servers, or name the file of the topology in force (--from OLD)"
        )
    newest = max(view.change for view in views.values())
    current = [view for view in views.values() if view.change == newest]
    files = {view.epoch: parse_topology(view.topology, "the topology in force") for view in current if view.topology}
    # A server that will be added already reports the new topology. The other servers of this topology do not report it.
    agreed = [
        file
        for epoch, file in files.items()
        if all(view.epoch == epoch for view in current if view.server in file.servers)
    ]
    if len(agreed) != 1:
        files_of: dict[str, list[str]] = {}
        for view in current:
            files_of.setdefault(view.epoch, []).append(view.server)
        shown = "; ".join(f"{epoch} at {', '.join(names)}" for epoch, names in files_of.items())
        raise TopologyError(
            f"the servers were started with different topology files (change {newest}; epochs: {shown}): start all "
            "servers again with the same file, and with empty data directories"
        )
    return agreed[0]


def behind_of(views: dict[str, View], old: TopologyFile) -> dict[str, View]:
    """Find the servers of the topology in force that have missed changes. Return their answers, by server."""
    members = {name: view for name, view in views.items() if name in old.servers}
    newest = max(view.change for view in members.values())
    return {name: view for name, view in members.items() if view.change < newest}


def teach(views: dict[str, View], old: TopologyFile, behind: dict[str, View]) -> Part[dict[str, str]]:
    """Let servers learn the changes that they have missed. For each server that cannot learn, return the reason. Each
    server learns only from the first server in its own topology (:func:`antecede.server.peering.learning.trusts`), so
    that no other server can deceive it with a false topology. There are two exceptions: the first server was removed,
    or the first server itself has lost its data and must learn. In both cases, the server with the newest change sends
    the lesson."""
    unable: dict[str, str] = {}
    members = [views[name] for name in old.servers if name in views]
    leader = max(members, key=lambda view: view.change)
    for view in behind.values():
        first = next(iter(parse_topology(view.topology, "the topology in force").servers))
        teacher = leader if first == view.server or first not in old.servers else views.get(first)
        if teacher is None or teacher.change <= view.change:
            unable[view.server] = f"server {first}, from which it learns changes, has no newer change"
            continue
        try:
            answers = yield [Command(teacher.server, "change-lesson")]
            if answers[0] is not None:
                yield [Command(view.server, "change-learn", (str(answers[0]["lesson"]),))]
        except AntecedeError as error:
            unable[view.server] = str(error)
    return unable


def join(views: dict[str, View]) -> Part[None]:
    """Let the servers that were not restored from a backup join the restored system (:mod:`antecede.backups.folder`).
    Do nothing if no server was restored. The joining servers must have no earlier data: they are new, or were started
    again with empty directories. If they did not join, no restored server would connect to them. Raise TopologyError if
    servers belong to different restored systems."""
    restored = {view.restored: view.server for view in views.values() if view.restored}
    if len(restored) > 1:
        one, other = list(restored.values())[:2]
        raise TopologyError(
            f"servers {one} and {other} belong to different systems, because they were restored separately: stop the "
            "servers of one of the two systems"
        )
    for system in restored:
        yield from all_of(
            Command(view.server, "change-join", (system,)) for view in views.values() if not view.restored
        )

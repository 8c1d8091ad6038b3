"""Carry out a change of the topology: look, pause, drain, stage, hand over, commit.

This is the sequence of commands to all servers (:mod:`antecede.server.participation`), without I/O. It begins with a
survey of the servers. :func:`carry_out` is a generator: it yields batches of commands, receives their answers as the
values of ``yield``, and returns the outcome. The commands of one batch are independent of each other. The process that
drives this generator may be killed at any point and start again. Three rules make this safe:

* One server, the **coordinator**, decides. The change is decided as soon as the coordinator's log contains the
  commit. First, all servers that take part *stage* the change (write it to their logs), and receive their new agents.
  Then the process sends the commit command to the coordinator. The other servers get this command after the
  coordinator has answered.
* If the process starts again before the change is decided, it abandons the change, and the old topology stays in
  force. It sends the abandon command to the coordinator first. From then on the coordinator cannot commit the change.
* If the change is decided, every other server that has staged it gets the commit command, or learns the decision from
  another server (:mod:`antecede.server.participation`).

**Servers that are down.** A server for which nothing changes may be down. Such a server is *absent*, and learns the
change when it connects (:mod:`antecede.server.learning`). Until the change is decided, the servers that take
part have no connections to absent servers. Therefore every server that answers takes part, even if nothing changes for
it. In this way it keeps its connections. A server that was absent from earlier changes first learns these changes.

During the change, a server that is not needed may stop answering, or may be unable to write its log. If the change is
not decided yet, it is then abandoned and begun again without this server. If the change is already decided, it is
finished without this server.

The first server of the topology in force takes part in every change. So two operators cannot make different changes
at the same time, even if each of them reaches only some servers.

Each execution of this sequence is an **attempt** with a random name. From ``change-pause`` on, every command contains
this name. If two operators begin a change at the same time, the second operator waits until the first one has ended
the change, or has sent no command for a while.

**Drained.** A frame is in transit until its receiver has acknowledged it. A server acknowledges a frame in the step
that has delivered or forwarded the letters of the frame. Suppose that two checks in a row find nothing in transit, and
that no server has sent anything between the checks. Then nothing was in transit in the time between the two checks.
After that, nothing is sent in the *region* of the change (the domains that pause), because letters wait before they
enter the region (:mod:`antecede.topology.change`).

The durable state of a server (the topology in force, the history, a change that is staged) is in
:mod:`antecede.server.organisation`. ``docs/design/change.md`` explains why no letter is lost, repeated or overtaken.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from antecede import limits
from antecede.errors import AntecedeError, DecidedError, OverloadError, TopologyError, UsageError
from antecede.server.inputs import FromPeer
from antecede.server.items import ChangeNumber, ClockMs, History, Mark, Name, Since, TopologyText
from antecede.server.node import AgentServer, Input
from antecede.topology import Change, TopologyFile, parse_topology, plan_change

# The commands with which an operator's process makes a change, and their answers
# (:mod:`antecede.server.participation`). Servers do not trust the content of a command: every number, text and
# list in it has a bound.


Names = Annotated[list[Name], Meta(max_length=limits.topology_servers_max)]
"""The names of servers."""


class Command(msgspec.Struct, frozen=True):
    """A command to one server."""

    server: str
    name: str
    arguments: tuple[str, ...] = ()
    patient: bool = False
    """True if the command is sent again until the server answers, without a time limit. This is the case only for
    ``change-commit``, and only if the server must take part in the change."""

    @property
    def seconds_max(self) -> float:
        """The longest time that the answer may take."""
        quick = self.name in ("change-look", "change-lesson", "change-abandon")
        return limits.change_look_seconds_max if quick else limits.change_command_seconds_max

    @property
    def begins(self) -> int:
        """The number of the change, if this command is ``change-pause``, ``change-stage`` or ``change-commit``;
        otherwise 0."""
        if self.name == "change-stage":
            return read_stage(self.arguments[0]).change
        return read_attempt(self.arguments[0])[0] if self.name in ("change-pause", "change-commit") else 0


class Stage(msgspec.Struct, frozen=True):
    """The content of the command ``change-stage``: the new topology, and how to change to it."""

    system: Mark
    change: ChangeNumber
    topology: TopologyText
    since: Since
    coordinator: Name
    clock_ms: ClockMs
    attempt: Mark = ""
    pausing: Names = []
    """The servers that must be paused, so that letters wait there. A server that is not paused refuses the change."""
    drop: bool = False
    """True if letters of removed agents and clients may be lost."""
    absent: Names = []
    """The servers that do not take part."""
    basis: Mark = ""
    """The epoch of the topology in force (a hash of the topology)."""
    members: Names = []
    """The servers of the topology in force; the change adds all other servers of the new topology."""
    history: History = []
    """The last topologies that were in force (at most ``limits.changes_kept_max``), oldest first. Only servers that the
    change adds use this field."""


class View(msgspec.Struct, frozen=True):
    """A server's answer to ``change-look``, the first command of a change: the state of the server, and the obstacles
    to the change."""

    server: str
    system: Mark
    change: ChangeNumber
    epoch: Mark
    topology: TopologyText
    removed: bool = False
    staged: ChangeNumber = 0
    """The number of the change that the server has staged, or for which the server pauses. It is 0 if there is no
    such change."""
    coordinator: Name = ""
    attempt: Mark = ""
    """The name of the attempt in which the server takes part, or an empty text if it takes part in no attempt. An
    attempt is one try to make a change."""
    idle: float | None = None
    """The seconds since the last command of ``attempt``. It is None if there is no attempt, or if the server does not
    count the seconds."""
    since: Since = {}
    obstacles: list[str] = []
    leaving: dict[str, int] = {}
    """The agents and clients that will leave the server, each with the number of its letters."""
    history: History = []
    """The last topologies that were in force (at most ``limits.changes_kept_max``), the present one included, oldest
    first."""
    restored: Mark = ""
    """The id of the restored system that the server belongs to. It is empty if the server does not belong to a restored
    system."""


def attempt_of(change: int, attempt: str) -> str:
    """Return the argument that names an attempt in a command, such as ``7:ab12`` for change 7 and attempt ``ab12``."""
    return f"{change}:{attempt}"


def read_attempt(text: str) -> tuple[int, str]:
    """Return the number of the change, and the name of the attempt, from an argument such as ``7:ab12``."""
    number, mark, id_ = text.partition(":")
    if not mark or len(id_) > limits.mark_chars_max:
        raise UsageError(f"{text[:32]!r}: expected the number and the attempt of a change, such as 7:ab12")
    return read_number(number, limits.change_number_max), id_


def read_stage(given: str) -> Stage:
    """Read the content of ``change-stage``."""
    try:
        return msgspec.json.decode(given, type=Stage)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"unreadable change: {error}") from None


def read_view(server: str, answer: object) -> View:
    """Read the answer of a server to ``change-look``."""
    try:
        return msgspec.convert(answer, View)
    except msgspec.ValidationError as error:
        raise TopologyError(f"unreadable answer of server {server}: {error}") from None


def read_number(text: str, most: int = limits.counter_max) -> int:
    """Return the number in a text. Raise UsageError if the text is not a number from 0 to ``most``."""
    if not text.isdecimal() or len(text) > len(str(most)) or int(text) > most:
        raise UsageError(f"{text[:32]!r}: expected a number, at most {most}")
    return int(text)


# The survey before a change of the topology: it asks the servers for their state, and finds the topology in force.
#
# The functions here do the first parts of a change; :mod:`antecede.server.change` does the other parts. Each
# part is a generator, see :data:`Part`. ``teach`` lets servers learn changes that they have missed. ``join`` lets new
# servers join a restored system.


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
    server learns only from the first server in its own topology (:func:`antecede.server.learning.trusts`), so
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


class Outcome(msgspec.Struct, frozen=True):
    """The result of a change."""

    state: str
    """``unchanged``, ``planned`` (only in a dry run), ``refused`` or ``done``."""
    old: TopologyFile
    """The topology in force before the change. If ``end_change`` returns this outcome: the topology in force now."""
    change: Change
    number: int
    """The number of the newest change in force. After a successful change, this is the number of that change."""
    system: str
    refusals: tuple[str, ...] = ()
    letters: dict[str, int] = {}
    """The agents and clients that moved or were removed, each with the number of its letters."""
    absent: tuple[str, ...] = ()
    """The servers that did not take part, and learn the change when they connect."""
    ended: dict[int, str] = {}
    """For each earlier change that was still in progress, by its number: ``abandoned`` or ``finished``."""


Steps = Part[Outcome]
"""A generator that yields lists of commands, and receives lists of their answers. An answer is None if the server did
not answer. After a :class:`Wait` the generator receives an empty list. If a command fails, an error is raised inside
the generator. The error is a :class:`BusyServerError` if the server was busy for too long. After an error, the
generator abandons the change, unless the change is already decided."""


class BusyServerError(OverloadError):
    """An error about a server that answers, but cannot carry out a command, for example because its disk is full. The
    code that runs the steps of the change first repeats the command for a while, and then raises this error."""

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(reason)
        self.server = server


def carry_out(request: ChangeRequest, without: frozenset[str] = frozenset()) -> Steps:
    """Make a change. ``without``: the servers to leave out, because they went away or were busy during an earlier
    attempt."""
    views, old = yield from survey(request, without)
    ended: dict[int, str] = {}
    if any(view.staged for view in views.values()):
        yield from _wait_for_others(request, views)
        views, old = yield from survey(request, without)
        ended = yield from _finish(views, request)
        views, old = yield from survey(request, without)
    if not request.dry:
        yield from join(views)
    unable: dict[str, str] = {}
    for _ in views:
        # A server may have to wait until the one that it learns from has learned.
        behind = behind_of(views, old)
        if request.dry or behind.keys() == unable.keys():
            break
        unable = yield from teach(views, old, behind)
        views, old = yield from survey(request, without)
    outcome, leader = _examined(request, views, old, unable)
    outcome = msgspec.structs.replace(outcome, ended=ended)
    wrong = (yield from _classes(request, views, old)) if request.dry else []
    if wrong:
        outcome = msgspec.structs.replace(outcome, state="refused", refusals=(*outcome.refusals, *wrong))
    change, absent = outcome.change, outcome.absent
    if request.dry or outcome.state != "planned":
        return outcome
    number = leader.change + 1
    servers = [server for server in {**old.servers, **request.new.servers} if server not in absent]
    stage = _stage_of(old, leader, request, change, number, outcome.system, absent)
    attempt = attempt_of(number, request.attempt)
    try:
        yield from _prepare([server for server in servers if server in old.servers], request, change, attempt)
        text = msgspec.json.encode(stage).decode()
        yield from all_of(Command(server, "change-stage", (text,)) for server in servers)
        ready = yield from all_of(Command(server, "change-ready", (attempt,)) for server in servers)
        yield from _hand_over(ready, attempt)
    except AntecedeError as error:
        spare = error.server if isinstance(error, SilentServerError | BusyServerError) else ""
        # A server that is busy would keep the others waiting. It gives up the change by itself.
        busy = spare if isinstance(error, BusyServerError) else ""
        yield [Command(server, "change-abandon", (attempt,)) for server in servers if server != busy]
        if spare and spare not in change.needed:
            again = msgspec.structs.replace(request, attempt=f"{request.attempt.partition('.')[0]}.{len(without) + 1}")
            return (yield from carry_out(again, without | {spare}))
        raise
    moment = (attempt, str(request.clock_ms))
    yield from all_of([Command(stage.coordinator, "change-commit", moment, patient=True)])
    rest = [server for server in request.new.servers if server != stage.coordinator and server not in absent]
    needed = [server for server in rest if server in change.needed]
    yield from all_of(Command(server, "change-commit", moment, patient=True) for server in needed)
    # The others learn it from these if they have gone away meanwhile. Servers that are removed come last: their clients
    # then find their new server ready. One may have learned the decision from another server and have ended already, so
    # an answer is not needed.
    late = yield from _send_commit([server for server in rest if server not in change.needed], moment)
    yield from _send_commit([server for server in servers if server not in request.new.servers], moment)
    return msgspec.structs.replace(outcome, state="done", number=number, absent=(*absent, *late))


def _examined(
    request: ChangeRequest, views: dict[str, View], old: TopologyFile, unable: dict[str, str]
) -> tuple[Outcome, View]:
    """Return the plan of a change with the reasons to refuse it, and the :class:`View` of a server that has the
    topology in force. ``unable``: the servers that cannot learn earlier changes, each with the reason."""
    change = plan_change(old, request.new)
    leader = max((view for view in views.values() if view.server in old.servers), key=lambda view: view.change)
    servers = list({**old.servers, **request.new.servers})
    behind = behind_of(views, old)
    parties = [views[server] for server in servers if server in views and server not in behind]
    present = {view.server for view in parties}
    absent = tuple(server for server in servers if server not in present)
    members = [view for view in parties if view.server in old.servers]
    letters = {one: count for view in members for one, count in view.leaving.items()}
    silent = [server for server in absent if server in change.needed and server not in views]
    refusals = [_why_silent(server, old, request.new) for server in silent]
    if not request.dry:
        # A dry run teaches nothing, so it does not know whether these can learn.
        late = [view for view in behind.values() if view.server in change.needed]
        refusals += [_why_behind(view, leader.change, unable) for view in late]
    state = "planned"
    if not change.differences:
        # If the first server is not there, this topology may have been replaced.
        refusals = refusals if next(iter(old.servers)) in absent else []
        state = "unchanged"
    else:
        obstacles = [one for view in members for one in view.obstacles]
        other = f"the topology in force has epoch {old.epoch}, and --from has {request.basis}: check the change again"
        basis = [other] if request.basis not in ("", old.epoch) else []
        refusals = [*basis, *change.refusals, *refusals, *obstacles]
    state = "refused" if refusals else state
    head = (state, old, change, leader.change, leader.system or request.system)
    return Outcome(*head, tuple(refusals), letters, absent), leader


def _classes(request: ChangeRequest, views: dict[str, View], old: TopologyFile) -> Part[list[str]]:
    """Let servers check that they can use the classes of their agents. If the application's module changes, ask all
    servers. Otherwise ask only the servers with an agent that is new there or gets another class. Return a list with
    the first error, or an empty list."""
    every = old.module != request.new.module
    new = {agent.server for agent in {*request.new.agents} - {*old.agents}}
    asked = [name for name in views if every or name in new]
    try:
        yield [Command(server, "change-classes", (request.new.text(),)) for server in asked]
    except AntecedeError as error:
        return [str(error)]
    return []


def _send_commit(servers: list[str], moment: tuple[str, str]) -> Part[list[str]]:
    """Send ``change-commit`` to servers after the change is decided. Return the servers that do not answer. If a
    server refuses this command, return an empty list."""
    if not servers:
        return []
    try:
        answers = yield [Command(server, "change-commit", moment) for server in servers]
    except AntecedeError:
        return []
    return [server for server, answer in zip(servers, answers, strict=True) if answer is None]


def end_change(request: ChangeRequest) -> Steps:
    """End a change that was begun: finish it if it was decided, otherwise abandon it. The topology ``request.new`` does
    not come into force. The field ``absent`` of the outcome has the servers that do not answer."""
    views, old = yield from survey(request)
    ended = yield from _finish(views, request)
    views, old = yield from survey(request, frozenset(server for server in old.servers if server not in views))
    leader = max((view for view in views.values() if view.server in old.servers), key=lambda view: view.change)
    silent = tuple(server for server in old.servers if server not in views)
    return Outcome("done", old, plan_change(old, old), leader.change, leader.system, absent=silent, ended=ended)


def _wait_for_others(request: ChangeRequest, views: dict[str, View]) -> Part[None]:
    """Wait until no other operator makes a change. Raise TopologyError if the wait takes too long. In a dry run, do not
    wait: raise TopologyError immediately if another operator makes a change."""
    for _ in range(_others_max):
        busy = [view for view in views.values() if view.staged and view.idle is not None]
        if not busy or min(view.idle or 0.0 for view in busy) >= _others_idle_seconds:
            return
        if request.dry:
            break
        yield Wait(_others_wait_seconds, f"another change ({busy[0].staged}) to end")
        views, _ = yield from survey(request)
    raise TopologyError(f"change {busy[0].staged} is in progress: try again later, or end it: antecede topology abort")


def _why_silent(server: str, old: TopologyFile, new: TopologyFile) -> str:
    if server in old.servers:
        return f"server {server} does not answer, and must take part in this change"
    return f"new server {server} does not answer: start it first (antecede serve {new.name} --server {server})"


def _why_behind(view: View, newest: int, unable: dict[str, str]) -> str:
    reason = unable.get(view.server, "it has not learned the newer changes yet: try again")
    return f"server {view.server} has change {view.change}, and others have {newest}: {reason}"


def _made(views: Iterable[View], number: int, attempt: str) -> bool:
    """Return whether one of these servers knows that this attempt has made the change. A server may not know any more
    which attempt made the change. Then it is enough that the change came into force there."""
    return any(
        view.change >= number
        and next((one.attempt for one in view.history if one.change == number), "") in ("", attempt)
        for view in views
    )


def _finish(views: dict[str, View], request: ChangeRequest) -> Part[dict[int, str]]:
    """End each change that was begun: finish it if its coordinator has decided it, otherwise abandon it. Return
    ``finished`` or ``abandoned`` for the number of each change. Sometimes no server knows the decision, and the
    coordinator does not answer. Then ``request.resolve`` decides. If ``request.resolve`` is empty in this case, raise
    TopologyError."""
    ended: dict[int, str] = {}
    for number, id_ in sorted({(view.staged, view.attempt) for view in views.values() if view.staged}):
        parts = [view for view in views.values() if (view.staged, view.attempt) == (number, id_)]
        coordinator = next((view.coordinator for view in parts if view.coordinator), "")
        decided = _made(views.values(), number, id_)
        attempt = attempt_of(number, id_)
        if not decided and coordinator and coordinator not in views:
            if not request.resolve:
                raise TopologyError(
                    f"change {number} was begun, but server {coordinator} does not answer, and only this server knows "
                    "whether the change was made: start the server; if its data is lost, run antecede topology resolve "
                    f"{request.new.name if request.live else '--data DIR'} --decision abandon"
                )
            decided = request.resolve == "commit"
        elif not decided and coordinator:
            try:
                # From here on it cannot commit any more.
                yield from all_of([Command(coordinator, "change-abandon", (attempt,))])
            except DecidedError:
                decided = True
        if decided:
            yield from all_of(Command(view.server, "change-commit", (attempt, "0")) for view in parts)
        else:
            yield from all_of(Command(view.server, "change-abandon", (attempt,)) for view in parts)
        ended[number] = "finished" if decided else "abandoned"
    return ended


def _prepare(servers: list[str], request: ChangeRequest, change: Change, attempt: str) -> Part[None]:
    """Pause the region of the change (the domains in which nothing may be in transit), and return when nothing is in
    transit there. Raise TopologyError if the wait takes too long. During the pause, letters wait before they enter the
    region, and agents that leave their server do not react. These agents are paused even if the region is empty."""
    if not change.paused:
        return
    region = ",".join(change.region)
    agents = ",".join(change.leaving)
    yield from all_of(
        Command(server, "change-pause", (attempt, region, agents, "0" if server in request.new.servers else "1"))
        for server in servers
    )
    before: list[object] = []
    for _ in range(max(2, int(request.limit_seconds / _look_seconds))):
        answers = yield from all_of(Command(server, "change-transit", (attempt, region)) for server in servers)
        busy = next((answer for answer in answers if answer["in_transit"]), None)
        now = [] if busy is not None else [answer["sent"] for answer in answers]
        if busy is None and now == before:
            return
        before = now
        if busy is not None:
            yield Wait(_look_seconds, f"server {busy['server']}: {busy['in_transit']}")
    state = "servers still send letters" if busy is None else f"server {busy['server']}: {busy['in_transit']}"
    raise TopologyError(
        f"the change is abandoned, because letters were still in transit after {request.limit_seconds:g} s ({state}): "
        "try again, or use a longer --limit"
    )


def _stage_of(
    old: TopologyFile,
    leader: View,
    request: ChangeRequest,
    change: Change,
    number: int,
    system: str,
    absent: tuple[str, ...],
) -> Stage:
    since = {
        name: number if name in change.begun else leader.since.get(name, 0) for name in request.new.organisation.domains
    }
    coordinator = next(server for server in request.new.servers if server in old.servers)
    pausing = [server for server in old.servers if server not in absent] if change.paused and request.live else []
    head = (system, number, request.new.text(), since, coordinator, request.clock_ms)
    return Stage(
        *head, request.attempt, pausing, request.drop, list(absent), old.epoch, list(old.servers), leader.history
    )


def _hand_over(ready: list[dict[str, object]], attempt: str) -> Part[None]:
    """Copy agents and clients, with all their data, from the servers that they leave to their new servers. ``ready``:
    the answers of all servers to ``change-ready``. New clients may connect until the change is staged, so
    ``change-ready`` is sent only after that."""
    for source, targets in [(str(one["server"]), one["targets"]) for one in ready]:
        for target in targets if isinstance(targets, list) else ():
            page, more = 0, True
            while more:
                answers = yield from all_of([Command(source, "change-left", (attempt, target, str(page)))])
                more, piece = bool(answers[0]["more"]), str(answers[0]["data"])
                yield from all_of(
                    [Command(target, "change-receive", (attempt, str(page), "0" if more else "1", piece))]
                )
                page += 1


_look_seconds = 0.1
"""The pause before the next check, if something is in transit."""
_others_idle_seconds = 2.0
"""An operator that has sent no commands for this time is regarded as gone. A working operator sends commands more
often."""
_others_wait_seconds = 0.5
_others_max = 60
"""The largest number of times to wait for another operator. All these waits together take half a minute."""


# Exchange the letters that are in transit between stopped servers, in memory, until all have arrived.
#
# The state machines of all servers are connected directly. There are no sockets, no clients, no reactions and no
# timers. The state machines follow the same rule as running servers: a step processes frames, and the frames that this
# step sends reach other servers only after the step's record is durable. So this process can be killed at any point. At
# the next start, the servers continue from their logs.


Keep = Callable[[dict[str, bytes]], None]
"""A function that stores one record per server (server → record). When it returns, the records are durable."""


def drain(machines: Mapping[str, AgentServer], keep: Keep) -> None:
    """Exchange frames until every letter is in a mailbox. Raise TopologyError, with the reason, if a letter cannot
    arrive."""
    inputs: dict[str, list[Input]] = {name: [] for name in machines}
    for name, machine in machines.items():
        for domain, peer, _ in machine.channel.links.ends:
            if peer not in machines:
                raise TopologyError(
                    f"domain {domain}: server {name} needs the data of server {peer}, but this data is missing: "
                    f"add the data directory of server {peer}"
                )
            other = machines[peer].channel.consumers.get(domain)
            if other is None or name not in other.links:
                raise TopologyError(f"domain {domain}: servers {name} and {peer} do not agree on its members")
            inputs[name].append(FromPeer(domain, peer, other.links[name].hello()))
    now, idle = 0.0, 0
    while idle < _idle_rounds:
        busy = any(inputs.values())
        records: dict[str, bytes] = {}
        sent: dict[str, list[Input]] = {name: [] for name in machines}
        for name, machine in machines.items():
            step = machine.step(inputs[name], now, 0)
            if step.record is not None:
                records[name] = step.record
            for domain, peer, reason in step.faults:
                raise TopologyError(f"domain {domain}: the link of {name} and {peer} is stopped: {reason}")
            for one in step.outgoing:
                sent[one.peer].append(FromPeer(one.domain, name, one.content))
        if records:
            keep(records)
        inputs = sent
        if not busy and not any(sent.values()):
            # Links may have more to send again than fits into one step.
            idle += 1
            now += _resend_seconds
    for name, machine in machines.items():
        if machine.stopped:
            (domain, peer), reason = next(iter(machine.stopped.items()))
            raise TopologyError(f"domain {domain}: the link of {name} and {peer} is stopped: {reason}")
        left = machine.channel.in_transit(list(machine.channel.consumers))
        if left:
            raise TopologyError(f"server {name} has letters in transit ({left}), but no server sends anything more")


_idle_rounds = 3
_resend_seconds = 60.0
"""A time that is longer than any pause before a frame is sent again."""

"""Carry out a change of the topology: look, pause, drain, stage, hand over, commit.

This is the sequence of commands to all servers (:mod:`antecede.server.change.participation`), without I/O. It begins
with a survey of the servers (:mod:`antecede.server.change.surveying`). :func:`carry_out` is a generator: it yields
batches of commands, receives their answers as the values of ``yield``, and returns the outcome. The commands of one
batch are independent of each other. The process that drives this generator may be killed at any point and start again.
Three rules make this safe:

* One server, the **coordinator**, decides. The change is decided as soon as the coordinator's log contains the commit.
  First, all servers that take part *stage* the change (write it to their logs), and receive their new agents. Then the
  process sends the commit command to the coordinator. The other servers get this command after the coordinator has
  answered.
* If the process starts again before the change is decided, it abandons the change, and the old topology stays in force.
  It sends the abandon command to the coordinator first. From then on the coordinator cannot commit the change.
* If the change is decided, every other server that has staged it gets the commit command, or learns the decision from
  another server (:mod:`antecede.server.change.deciding`).

**Servers that are down.** A server for which nothing changes may be down. Such a server is *absent*, and learns the
change when it connects (:mod:`antecede.server.peering.learning`). Until the change is decided, the servers that take
part have no connections to absent servers. Therefore every server that answers takes part, even if nothing changes for
it. In this way it keeps its connections. A server that was absent from earlier changes first learns these changes.

During the change, a server that is not needed may stop answering, or may be unable to write its log. If the change is
not decided yet, it is then abandoned and begun again without this server. If the change is already decided, it is
finished without this server.

The first server of the topology in force takes part in every change. So two operators cannot make different changes at
the same time, even if each of them reaches only some servers.

Each execution of this sequence is an **attempt** with a random name. From ``change-pause`` on, every command contains
this name. If two operators begin a change at the same time, the second operator waits until the first one has ended the
change, or has sent no command for a while.

**Drained.** A frame is in transit until its receiver has acknowledged it. A server acknowledges a frame in the step
that has delivered or forwarded the letters of the frame. Suppose that two checks in a row find nothing in transit, and
that no server has sent anything between the checks. Then nothing was in transit in the time between the two checks.
After that, nothing is sent in the *region* of the change (the domains that pause), because letters wait before they
enter the region (:mod:`antecede.topology.change`).
"""

from collections.abc import Iterable

import msgspec

from antecede.errors import AntecedeError, DecidedError, OverloadError, TopologyError
from antecede.server.change.requests import Command, Stage, View, attempt_of
from antecede.server.change.surveying import (
    ChangeRequest,
    Part,
    SilentServerError,
    Wait,
    all_of,
    behind_of,
    join,
    survey,
    teach,
)
from antecede.topology import Change, TopologyFile, plan_change


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

"""Carry out a change of the topology: look, pause, drain, stage, hand over, commit.

This is the sequence of commands to all servers (:mod:`antecede.server.participation`), without I/O. :func:`carry_out`
is a generator: it yields commands, is sent their answers, and returns the outcome. The commands of one batch are
independent of each other. The process that drives it may be killed at any point and start again:

* One server, the **coordinator**, decides. The change is made once its log contains the commit. It gets the command to
  commit first, after all servers have staged the change and have received the agents that will live there.
* Before that, a change that was begun is abandoned, and the old topology continues.
* After that, every server that has staged the change gets the command, or learns the decision from a peer.

**Drained.** A frame counts as in transit until its receiver has acknowledged it, and a server acknowledges a frame in
the step that has delivered or forwarded its letters. So if two looks in a row find nothing in transit, and no server
has sent anything in between, then nothing was in transit between the two looks. Letters that would enter the region
wait, so this stays true.
"""

from collections.abc import Generator, Iterable

import msgspec

from antecede.errors import AntecedeError, TopologyError
from antecede.server.participation import Stage, View
from antecede.topology import Change, TopologyFile, parse_topology, plan_change


class Command(msgspec.Struct, frozen=True):
    """A command to one server."""

    server: str
    name: str
    arguments: tuple[str, ...] = ()
    patient: bool = False
    """Whether to wait for a server that does not answer: the change is decided."""


class Wait(msgspec.Struct, frozen=True):
    """Nothing to do for a moment."""

    seconds: float


class Outcome(msgspec.Struct, frozen=True):
    """The result of a change."""

    state: str
    """``unchanged``, ``planned`` (with ``dry``), ``refused`` or ``done``."""
    old: TopologyFile
    change: Change
    number: int
    """The number of the change in force."""
    system: str
    refusals: tuple[str, ...] = ()
    letters: dict[str, int] = {}
    """The agents and clients that moved or were removed, each with the number of its letters."""


class Wish(msgspec.Struct, frozen=True):
    """The change that an operator wants."""

    new: TopologyFile
    servers: tuple[str, ...]
    """The servers to ask at first; those of the topology in force are added."""
    system: str
    """The identity for a system that has none."""
    clock_ms: int
    dry: bool = False
    drop: bool = False
    """Whether letters of removed agents and clients may be lost."""


Steps = Generator[list[Command] | Wait, list[dict[str, object] | None], Outcome]
"""Yields commands, and is sent their answers; None: the server did not answer. A wait is sent an empty list. If a
command fails, its error is thrown into the generator, which then abandons the change, unless it is decided."""


def carry_out(wish: Wish) -> Steps:
    """Make a change."""
    views = yield from _look(wish, wish.servers)
    old = _in_force(views)
    missing = [server for server in old.servers if server not in views and server not in wish.servers]
    if missing:
        views |= yield from _look(wish, missing)
        old = _in_force(views)
    if any(view.staged for view in views.values()):
        yield from _finish(views)
        views = yield from _look(wish, [*views])
        old = _in_force(views)
    change = plan_change(old, wish.new)
    leader = max((view for view in views.values() if view.server in old.servers), key=lambda view: view.change)
    system = leader.system or wish.system
    letters = {
        one: count for view in views.values() for one, count in view.leaving.items() if view.server in old.servers
    }
    outcome = Outcome("unchanged", old, change, leader.change, system, letters=letters)
    if not change.differences:
        return outcome
    absent = [server for server in {**old.servers, **wish.new.servers} if server not in views]
    refusals = [*change.refusals]
    refusals += [
        f"server {server} does not answer: all servers of both topologies must be reached" for server in absent
    ]
    refusals += _behind(old, views, leader.change)
    refusals += [one for view in views.values() for one in view.obstacles if view.server in old.servers]
    if refusals or wish.dry:
        state = "refused" if refusals else "planned"
        return msgspec.structs.replace(outcome, state=state, refusals=tuple(refusals))
    number = leader.change + 1
    try:
        yield from _prepare(old, wish, change, number)
        stage = _stage_of(old, leader, wish, change, number, system)
        servers = list({**old.servers, **wish.new.servers})
        text = msgspec.json.encode(stage).decode()
        yield from _all(Command(server, "change-stage", (text,)) for server in servers)
        yield from _all(Command(server, "change-ready", (str(number),)) for server in servers)
        yield from _hand_over(old, wish.new, views, number)
    except AntecedeError:
        yield [Command(server, "change-abandon", (str(number),)) for server in {**old.servers, **wish.new.servers}]
        raise
    moment = (str(number), str(wish.clock_ms))
    yield from _all([Command(stage.coordinator, "change-commit", moment, patient=True)])
    rest = [server for server in servers if server != stage.coordinator]
    yield from _all(Command(server, "change-commit", moment, patient=True) for server in rest)
    return msgspec.structs.replace(outcome, state="done", number=number)


def _look(
    wish: Wish, servers: Iterable[str]
) -> Generator[list[Command], list[dict[str, object] | None], dict[str, View]]:
    text, drop = wish.new.text(), "drop" if wish.drop else ""
    answers = yield [Command(server, "change-look", (text, drop)) for server in servers]
    views = [msgspec.convert(answer, View) for answer in answers if answer is not None]
    return {view.server: view for view in views if not view.removed}


def _all(
    commands: Iterable[Command],
) -> Generator[list[Command], list[dict[str, object] | None], list[dict[str, object]]]:
    """Give commands that all must be answered."""
    given = list(commands)
    answers = yield given
    for command, answer in zip(given, answers, strict=True):
        if answer is None:
            raise TopologyError(f"server {command.server} does not answer")
    return [answer for answer in answers if answer is not None]


def _in_force(views: dict[str, View]) -> TopologyFile:
    """Return the topology in force. Servers that are to be added have the new one; they are not part of it yet."""
    if not views:
        raise TopologyError("no server answers: expected the servers of the topology in force (--from FILE)")
    newest = max(view.change for view in views.values())
    current = [view for view in views.values() if view.change == newest]
    files = {view.epoch: parse_topology(view.topology, "the topology in force") for view in current if view.topology}
    # A server that is to be added has a topology whose other servers have another one.
    agreed = [
        file
        for epoch, file in files.items()
        if all(view.epoch == epoch for view in current if view.server in file.servers)
    ]
    if len(agreed) != 1:
        raise TopologyError(f"the servers do not agree on the topology in force (change {newest})")
    return agreed[0]


def _behind(old: TopologyFile, views: dict[str, View], newest: int) -> list[str]:
    return [
        f"server {view.server} has change {view.change}, and others have {newest}: its data is older"
        for view in views.values()
        if view.server in old.servers and view.change != newest
    ]


def _finish(views: dict[str, View]) -> Generator[list[Command], list[dict[str, object] | None], None]:
    """Finish or abandon a change that was begun: its coordinator has decided, or it has not."""
    for number in sorted({view.staged for view in views.values() if view.staged}):
        servers = [view.server for view in views.values() if view.staged == number]
        coordinators = {view.coordinator for view in views.values() if view.staged == number and view.coordinator}
        decided = any(view.change >= number for view in views.values())
        lost = [one for one in coordinators if one not in views]
        if lost and not decided:
            raise TopologyError(
                f"change {number} was begun and only server {lost[0]} knows whether it was made, but it does not answer"
            )
        name = "change-commit" if decided else "change-abandon"
        moment = (str(number), "0") if decided else (str(number),)
        yield from _all(Command(server, name, moment) for server in servers)


def _prepare(
    old: TopologyFile, wish: Wish, change: Change, number: int
) -> Generator[list[Command] | Wait, list[dict[str, object] | None], None]:
    """Let letters wait that would enter the region, until nothing is in transit there."""
    if not change.region:
        return
    region = ",".join(change.region)
    agents = ",".join(change.leaving)
    yield from _all(
        Command(server, "change-pause", (str(number), region, agents, "0" if server in wish.new.servers else "1"))
        for server in old.servers
    )
    before: list[object] = []
    for _ in range(_looks_max):
        answers = yield from _all(Command(server, "change-transit", (region,)) for server in old.servers)
        quiet = all(not answer["in_transit"] for answer in answers)
        now = [answer["sent"] for answer in answers] if quiet else []
        if quiet and now == before:
            return
        before = now
        if not quiet:
            yield Wait(_look_seconds)
    busy = next((answer for answer in answers if answer["in_transit"]), answers[0])
    raise TopologyError(f"server {busy['server']}: {busy['in_transit']} for too long: the change is abandoned")


def _stage_of(old: TopologyFile, leader: View, wish: Wish, change: Change, number: int, system: str) -> Stage:
    since = {
        name: number if name in change.begun else leader.since.get(name, 0) for name in wish.new.organisation.domains
    }
    coordinator = next(server for server in wish.new.servers if server in old.servers)
    return Stage(system, number, wish.new.text(), since, coordinator, wish.clock_ms)


def _hand_over(
    old: TopologyFile, new: TopologyFile, views: dict[str, View], number: int
) -> Generator[list[Command], list[dict[str, object] | None], None]:
    """Bring what leaves each server to the server where it will live."""
    for target in new.servers:
        page = 0
        pieces: list[str] = []
        for source in [one for one in old.servers if one != target and views[one].leaving]:
            at, more = 0, True
            while more:
                answers = yield from _all([Command(source, "change-left", (str(number), target, str(at)))])
                at, more = at + 1, bool(answers[0]["more"])
                if answers[0]["agents"]:
                    pieces.append(str(answers[0]["data"]))
            if pieces:
                for page, piece in enumerate(pieces):
                    last = "1" if page == len(pieces) - 1 else "0"
                    arguments = (str(number), str(page), last, piece)
                    yield from _all([Command(target, "change-receive", arguments)])
                pieces = []


_looks_max = 600
_look_seconds = 0.1
"""How long to wait between two looks for what is in transit: a minute altogether."""

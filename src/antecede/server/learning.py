"""A server learns changes of the topology that were made without it. Another server sends the changes, before frames
flow between the two servers.

A server for which a change alters nothing (see :mod:`antecede.topology.change`) need not be running when the change is
made. While it is *behind*, it continues with the topology that it knows. When two servers connect, the one that is
ahead sends a **lesson**: the topology in force, and the history of changes that led to it. The other server records the
lesson (``Learned``). The two servers exchange frames only after the lesson is recorded. So a server accepts no frame
from a server with a newer topology, and it knows all senders and destinations in the frames that it accepts. One lesson
may contain several missed changes, because none of them altered anything for this server.

**Which servers are believed.** An attacker who controls a server could invent changes. Servers that believe such a
change would follow a false topology, and could never again connect to the servers that did not make this change. So a
server learns only from the **first server** in its topology (the topology that is in force at this server). The first
server takes part in every change of this topology, so it knows whether the topology was changed. If any other server is
ahead, this server asks the first one (:mod:`antecede.server.peering`), even if the two share no domain. If a
change makes another server the first one, this server learns the later changes from that server. The coordinator of a
staged change is believed, too, because its log decides whether the change is made. The first server itself learns only
from the coordinator of a change that is staged on the first server. But if the first server has lost its data, it
learns from any server.

**What is checked.** The sender has proved its identity, and this server believes it. But its lesson is accepted only if
all of these conditions hold:

* The lesson is about this system: the system id is the same, or this server has none because it has missed the first
  change.
* The history in the lesson continues the history of this server, without a gap. It contains the change that is in force
  here, and every later change. For the change in force here, both histories name the same topology and the same
  attempt. A system that was restored, or copied and changed elsewhere, has another history.
* An operator's command can change this server's topology to the new one (``Change.refusals`` is empty).
* This server need not take part in such a change, and none of the missed changes let a domain of this server start with
  a new state. Otherwise the data of this server is an old copy, or the other server sends a false lesson.

A server without any data, which was started with the topology in force, learns the number of the last change and the
history: it has no data that could be lost. A server that is being added has no earlier data of the system, so it cannot
compare histories. It believes a history if the history contains the staged change, made by the same attempt. It learns
nothing from a history that ends before that change.

**A staged change** may have been made or not. The history names the attempt that made each change. If the history names
the attempt that is staged here, this server finishes the change. If the history names another attempt, the staged
change was abandoned. The number of the change alone proves nothing, because the other servers can make another change
with the same number while this server is away.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

import msgspec

from antecede import limits, wire
from antecede.errors import TopologyError
from antecede.server.items import (
    Abandoned,
    ChangeNumber,
    Committed,
    Epoch,
    History,
    Learned,
    Mark,
    Since,
    Staged,
    TopologyText,
)
from antecede.server.node import AgentServer, Organisation
from antecede.server.organisation import plan_for, topology_in
from antecede.topology import Change, TopologyFile, parse_topology, plan_change


class Lesson(msgspec.Struct, frozen=True):
    """The topology in force at a server, and the history of changes that led to it."""

    system: Mark
    change: ChangeNumber
    topology: TopologyText
    since: Since
    history: History


def lesson_of(organisation: Organisation) -> bytes:
    """Return the lesson that this server sends to a server that has missed changes, as JSON."""
    fields = (organisation.system, organisation.change, organisation.topology, organisation.since)
    return msgspec.json.encode(Lesson(*fields, organisation.history))


def read_lesson(content: bytes | str) -> Lesson:
    """Read a lesson; raise :class:`TopologyError` for any error in it."""
    if len(content) > limits.lesson_bytes_max:
        raise TopologyError(
            f"the topology and its history have {len(content)} bytes: expected at most {limits.lesson_bytes_max}"
        )
    try:
        return msgspec.json.decode(content, type=Lesson)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TopologyError(f"unreadable topology of another server: {error}") from None


def teaches(machine: AgentServer, hello: wire.ServerHello) -> bool:
    """Return whether the authenticated sender of a hello has missed changes and can learn them from this server."""
    organisation, file = machine.organisation, machine.plan.file
    if hello.change >= organisation.change or file is None:
        return False
    if hello.system or hello.change:
        return hello.system == organisation.system
    # It has missed the first change, or takes part in it; a server that is not added yet learns nothing.
    return hello.server in file.servers or bool(hello.attempt)


def learns(machine: AgentServer, hello: wire.ServerHello) -> bool:
    """Return whether this server has missed changes and can learn them from the sender of a hello."""
    organisation, file = machine.organisation, machine.plan.file
    if hello.change <= organisation.change or file is None or organisation.removed:
        return False
    if organisation.system or organisation.change:
        return hello.system == organisation.system
    return hello.teaches or (hello.server in file.servers and bool(hello.links))


def trusts(machine: AgentServer, server: str) -> bool:
    """Return whether this server may learn changes of the topology from ``server``."""
    organisation, file, staged = machine.organisation, machine.plan.file, machine.organisation.staged
    if file is None or server == machine.name:
        return False
    first = next(iter(file.servers))
    if first == machine.name and staged is None and organisation.is_new(machine.channel):
        # It has lost its data. Any server may teach it; all others then learn from it.
        return True
    return server == first or (staged is not None and server == staged.coordinator)


def teachers_of(machine: AgentServer) -> list[str]:
    """Return the servers to ask for a lesson: the first server of the topology, and the coordinator of a staged
    change. They are asked when any other server has a newer topology, because this server does not believe others."""
    file = machine.plan.file
    known = [] if file is None else [next(iter(file.servers))]
    known += [] if machine.organisation.staged is None else [machine.organisation.staged.coordinator]
    return [one for one in dict.fromkeys(known) if one != machine.name]


def item_of(machine: AgentServer, lesson: Lesson) -> Learned | Committed | Abandoned | None:
    """Return the item that this server must write to its log next, to follow a lesson. Another item may be necessary
    after it. Return None in each of these cases. (1) This server already has the newest change of the lesson. (2) This
    server was removed from the system. (3) This server was not added to the system yet. (4) This server takes part in a
    change that is newer than the lesson. Raise :class:`TopologyError` if the lesson must not be believed."""
    organisation = machine.organisation
    if lesson.change <= organisation.change or organisation.removed:
        return None
    outside = organisation.is_new(machine.channel) and machine.name not in _read(lesson.topology).servers
    if outside and not organisation.attempt:
        # It was about to be added, and the change was abandoned before this lesson came.
        return None
    staged = organisation.staged
    number = organisation.paused if staged is None else staged.change
    if number > lesson.change:
        # It is not decided there. A server that is being added has missed all earlier changes: its past is another one.
        return None
    _check_lineage(machine, lesson)
    if number:
        made = next((one for one in lesson.history if one.change == number), None)
        if made is None:
            raise TopologyError(
                f"the history that another server sent with change {lesson.change} does not contain change {number}, "
                f"which is in progress on server {machine.name}"
            )
        if staged is not None and _is_made(staged, made):
            return Committed(number, made.clock_ms, staged.attempt)
        return Abandoned(number, organisation.attempt)
    _check_part(machine, lesson)
    return Learned(lesson.system, lesson.change, lesson.topology, lesson.since, lesson.history)


def preparation(machine: AgentServer, lesson: Lesson) -> Callable[[], None] | None:
    """Return a function to call before ``item_of``, or None if there is nothing to prepare. The function plans the
    change to the topology of the lesson, which takes seconds in large topologies. The function does not use
    ``machine``, so another thread may call it."""
    organisation = machine.organisation
    if lesson.change <= organisation.change or not organisation.topology:
        return None
    old, new = organisation.topology, lesson.topology

    def work() -> None:
        _planned(old, new)

    return work


def _is_made(staged: Staged, made: Epoch) -> bool:
    """Return whether ``made``, a change in a lesson's history, is the change that is staged here: both have the same
    attempt and the same epoch."""
    return made.attempt == staged.attempt and made.epoch == topology_in(staged.topology).epoch


def _check_lineage(machine: AgentServer, lesson: Lesson) -> None:
    """Raise :class:`TopologyError` if a lesson comes from another system, or if its history is not acceptable. The
    history must continue the history of this server, have no gaps, and end with the change and the topology of the
    lesson."""
    organisation, name = machine.organisation, machine.name
    system = organisation.system or ("" if organisation.staged is None else organisation.staged.system)
    if system and lesson.system != system:
        raise TopologyError(f"server {name} belongs to another system ({system}, not {lesson.system[:64]})")
    new = _read(lesson.topology)
    known = [one for one in lesson.history if one.change == organisation.change]
    mine = next((one for one in organisation.history if one.change == organisation.change), None)
    attempt = "" if mine is None else mine.attempt
    same = bool(known) and known[0].epoch == machine.epoch and known[0].attempt in ("", attempt or known[0].attempt)
    # A server that is being added has no past; but it may have met others that are being added with it.
    fresh = organisation.is_new(machine.channel) and (new.epoch == machine.epoch or bool(organisation.attempt))
    staged = organisation.staged
    added = staged is not None and any(one.change == staged.change and _is_made(staged, one) for one in lesson.history)
    if not same and not fresh and not added:
        raise TopologyError(
            f"change {lesson.change} does not continue from change {organisation.change} of server {name} (epoch "
            f"{machine.epoch}): the two servers have different histories; the data of one was restored or copied"
        )
    if not lesson.history or (lesson.history[-1].change, lesson.history[-1].epoch) != (lesson.change, new.epoch):
        raise TopologyError(
            f"the history that another server sent with change {lesson.change} does not end with change {lesson.change}"
        )
    since = organisation.change if same or staged is None else staged.change
    numbers = [one.change for one in lesson.history if one.change >= since]
    if any(later != earlier + 1 for earlier, later in pairwise(numbers)):
        raise TopologyError(
            f"the history that another server sent with change {lesson.change} has gaps: expected every change since "
            f"{since}"
        )


def _check_part(machine: AgentServer, lesson: Lesson) -> None:
    """Raise :class:`TopologyError` in each of these cases. (1) The domains of the lesson's topology form a cycle, or an
    order in this topology is not valid. (2) No command can change the topology in force here to the topology of the
    lesson. (3) This server must take part in such a change. (4) One of the missed changes let a domain of this server
    start with a new state. If this server has never been part of a system and was started with the topology of the
    lesson, only case 1 is checked."""
    organisation, name = machine.organisation, machine.name
    old, new = topology_in(organisation.topology), _read(lesson.topology)
    if new.organisation.cycle is not None:
        raise TopologyError(f"change {lesson.change}: the domains of the topology form a cycle")
    plan_for(new, machine.plan)
    if organisation.is_new(machine.channel) and new.epoch == old.epoch:
        return
    change = _planned(organisation.topology, lesson.topology)
    if change.refusals:
        # No command makes such a change: for example, the clients of another server would move.
        raise TopologyError(f"change {lesson.change} of the topology: {change.refusals[0]}")
    if name in change.concerned:
        raise TopologyError(
            f"change {lesson.change} of the topology needs server {name}, which did not take part: the data of "
            "this server is an old copy"
        )
    for domain in machine.channel.consumers:
        if lesson.since.get(domain, 0) != organisation.since.get(domain, 0):
            raise TopologyError(
                f"change {lesson.change}: domain {domain} started with a new state without server {name}: the data of "
                "this server is an old copy"
            )


@lru_cache(maxsize=4)
def _read(text: str) -> TopologyFile:
    return parse_topology(text, "the topology of another server")


@lru_cache(maxsize=4)
def _planned(old: str, new: str) -> Change:
    return plan_change(topology_in(old), _read(new))

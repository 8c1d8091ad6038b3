"""The checks of a world in which the topology changed, when nothing is pending.

* The trace from the logs keeps causal order; every letter is delivered once, none is lost or dead.
* The indices of each process continue, over all its servers.
* The state of each agent lists exactly its deliveries, in sequence.
* Every dead letter was sent again by the operator.
* Every timer has fired once, and every question was answered once or has timed out.
* Each client has published as often as its server knows, and no accepted publish is missing.
"""

from collections.abc import Mapping

import msgspec

from antecede.engine import Reaction
from antecede.server import AgentServer, Plan
from antecede.server.items import Reacted, decode_record
from antecede.server.projection import Projection
from antecede.simulator.servers.changes_load import ANSWERED
from antecede.topology import TopologyFile
from antecede.trace import DELIVER, LOCAL, SEND, Event, judge, match

Log = tuple[int, Plan, list[bytes]]
"""The incarnation of a server, its first plan, and its records."""


def projected(server: str, incarnation: int, plan: Plan, log: list[bytes]) -> tuple[list[Event], dict[str, int]]:
    """Return the rows of a server's log, and the next index of each process."""
    file = plan.file
    assert file is not None
    homes = {agent.name: agent.server for agent in file.agents}
    projection = Projection(server, incarnation, file.organisation, homes)
    rows = [row for record in log for row in projection.rows(record)]
    return rows, projection.indices


def judged(
    machines: Mapping[str, AgentServer], logs: Mapping[str, Log], final: TopologyFile, numbers: Mapping[str, int]
) -> list[str]:
    """Return what went wrong, one line each. ``final``: the topology in force. ``numbers``: for each client the number
    of its publishes that were accepted."""
    rows = [row for name, log in logs.items() for row in projected(name, *log)[0]]
    lines: dict[str, list[Event]] = {}
    for row in rows:
        if row.kind in (SEND, DELIVER, LOCAL):
            lines.setdefault(row.process, []).append(row)
    found: list[str] = []
    for process, line in lines.items():
        line.sort(key=lambda row: row.index)
        if [row.index for row in line] != list(range(len(line))):
            found.append(f"the indices of {process} are not 0, 1, 2 …: {[row.index for row in line][:50]}")
    found += _deliveries(rows)
    died, again = sum(bool(row.dead) for row in rows), sum(bool(row.replays) for row in rows)
    if died != again:
        found.append(f"{died} letters have died, and {again} of them were sent again")
    fired = sum(row.kind == LOCAL for row in rows)
    wanted = sum(_timers(record) for _, _, log in logs.values() for record in log)
    if fired != wanted:
        found.append(f"{wanted} timers were set, and {fired} have fired")
    asked = sum(_questions(record) for _, _, log in logs.values() for record in log)
    found += _states(machines, lines, final, asked)
    found += _clients(machines, lines, final, numbers)
    for name, machine in machines.items():
        if machine.engine.dead:
            dead = next(iter(machine.engine.dead.values()))
            found.append(f"{name}: a dead letter of {dead.agent}: {dead.reason}")
        if machine.engine.asks or len(machine.timers):
            found.append(f"{name}: questions or timers are left")
        if machine.stopped:
            found.append(f"{name}: a link stopped: {machine.stopped}")
    if not found:
        verdict = judge(match(rows), ("fifo", "causal"))
        for order, late in (("fifo", verdict.fifo), ("causal", verdict.causal)):
            if late:
                found.append(f"{order} order is broken: {late[0]}")
    return found


def _timers(record: bytes) -> int:
    """Return how many timers a record sets: alarms, and the time limits of questions."""
    return sum(len(one.alarms) for one in _reactions(record)) + _questions(record)


def _questions(record: bytes) -> int:
    """Return how many questions a record asks."""
    return sum(bool(sent.reply) for one in _reactions(record) for sent in one.outbound)


def _reactions(record: bytes) -> list[Reaction]:
    return [one for item in decode_record(record) if isinstance(item, Reacted) for one in item.reactions]


def _deliveries(rows: list[Event]) -> list[str]:
    found: list[str] = []
    sent = {(row.message, to) for row in rows if row.kind == SEND for to in row.to or ()}
    delivered = [(row.message, row.process) for row in rows if row.kind == DELIVER]
    if len(set(delivered)) < len(delivered):
        twice = next(one for one in delivered if delivered.count(one) > 1)
        found.append(f"delivered twice: {twice}")
    if set(delivered) != sent:
        found.append(f"lost: {sorted(map(str, sent - set(delivered)))[:3]}, of {len(sent)}")
    return found


def _clients(
    machines: Mapping[str, AgentServer], lines: dict[str, list[Event]], final: TopologyFile, numbers: Mapping[str, int]
) -> list[str]:
    found = []
    for address, number in numbers.items():
        client, _, server = address.rpartition("@")
        machine = machines[final.home_of(server)]
        known, sent = machine.clients.get(client, 0), len(lines.get(address, ()))
        if not number <= known <= number + 1 or sent != known:
            found.append(f"{address} has published {number}, its server knows {known}, and the trace {sent}")
    return found


def _states(
    machines: Mapping[str, AgentServer], lines: dict[str, list[Event]], final: TopologyFile, asked: int
) -> list[str]:
    """Compare the saved state of each agent with its deliveries and timers. ``asked``: the number of questions."""
    found, answered = [], 0
    for agent in final.agents:
        state = machines[agent.server].engine.states.get(agent.name)
        noted = [] if state is None else msgspec.msgpack.decode(state, type=list[str])
        handled = [one for one in noted if not one.startswith(ANSWERED)]
        answered += len(set(noted) - set(handled))
        rows = [row for row in lines.get(agent.name, []) if row.kind in (DELIVER, LOCAL) and not row.dead]
        known = [row.message or str((row.extra or {}).get("timer")) for row in rows]
        if handled != known:
            found.append(f"the state of {agent.name} lists {len(handled)} letters, and the trace {len(known)}")
        if len(set(handled)) < len(handled):
            found.append(f"{agent.name} handled a letter twice")
    if answered != asked:
        found.append(f"{asked} questions were asked, and {answered} were answered or have timed out")
    return found

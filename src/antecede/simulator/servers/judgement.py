"""The checks of a simulated world after all its work has ended. They read the logs on the world's disks.

1. The world has reported no errors, and nothing waits: links, orders, mailboxes, questions, timers and publishes have
   no work left.
2. The trace from the logs is well formed, every letter is delivered once at each destination, and the guarantees of the
   topology hold. The ids in the trace are those that the servers really used.
3. Each publish that was reported to its client as accepted is in the log exactly once. The log has the publishes of a
   client in the sequence in which the client sent them. If a client had begun to handle a letter before it published,
   the letter comes before the publish in the trace. Clients received exactly the letters in the log. There is one
   exception: a *sure* answer to a call (an answer that a crash cannot change) may come twice. A sure answer may leave
   the server before its record is durable. If a crash then loses the record, the server sends the answer again.
4. Every letter is delivered once, or is dead with a reason. A letter that expired was not handed to anyone, and the
   mailbox of a client that never returns holds no more than its quota.
5. A replay of the log alone gives the same state: agents, questions, timers, orders, counters.
"""

import re
from collections import Counter
from collections.abc import Iterator

import msgspec

from antecede import wire
from antecede.channel import Letter
from antecede.engine.agents import Returned, name_of
from antecede.objects.calls import is_call
from antecede.server import AgentServer
from antecede.server.inputs import OPERATOR
from antecede.server.items import Published, PublishedMany, Reacted
from antecede.simulator.servers.client import Publish, SimulatedClient
from antecede.simulator.servers.server import SimulatedServer
from antecede.simulator.servers.world import Logs, ServerWorld
from antecede.trace import DELIVER, LOCAL, SEND, Event, judge, match
from antecede.trace.conflicts import conflicts_in
from antecede.trace.significant import judge_significant

_returned = name_of(Returned)
_life = re.compile(r"-\d+$")
"""A pattern for the last part of an id. The id of an answer to a call ends with a hyphen and a number. The number says
in which life of the server (the time from one start to the next) the answer was given."""
TRAITOR = "traitor"
"""The client name under which a server's log records forged letters (letters that the server sends with a false
source)."""


def findings(
    world: ServerWorld, logs: Logs, orders: tuple[str, ...], dead: int | None = 0, replayed: bool = True
) -> list[str]:
    """Return the errors, one line each. ``logs``: the logs of the world as they are now. ``orders``: the guarantees
    that must hold, such as ``causal``. ``dead``: the expected number of dead letters, or None if any number is correct.
    ``replayed``: whether to check also that a replay of each log gives the server's state."""
    found = list(world.errors)
    present = [server for name, server in world.servers.items() if name not in world.gone]
    for server in present:
        found += (f"{server.name}: {line}" for line in _unsettled(server, world.absent))
    rows, gone = logs.rows, expired(logs)
    found += _trace(world, rows, orders, gone)
    found += _clients(world, logs, gone)
    buried = sum(len(server.machine.engine.dead) for server in world.servers.values())
    recorded = sum(bool(row.dead) for row in rows)
    if dead is not None and (buried != dead or recorded != dead):
        found.append(f"dead letters: {buried}, and {recorded} in the trace, expected {dead}")
    if replayed:
        for server in present:
            found += _replayed(server, logs.records[server.name])
    return found


def expired(logs: Logs) -> set[tuple[str, str]]:
    """Return all letters that expired. Each is a pair: the letter's id, and the address of its mailbox."""
    return {
        (reaction.letter, item.agent)
        for items in logs.items.values()
        for item in items
        if isinstance(item, Reacted)
        for reaction in item.reactions
        if reaction.expired
    }


def _unsettled(server: SimulatedServer, absent: set[str]) -> Iterator[str]:
    if not server.up:
        yield "is down"
        return
    machine = server.machine
    for (domain, peer), reason in machine.stopped.items():
        yield f"link {domain} to {peer} stopped: {reason}"
    for domain, consumer in machine.channel.consumers.items():
        for peer, link in consumer.links.items():
            if link.unacknowledged or link.pending:
                yield f"link {domain} to {peer}: {link.unacknowledged} unacknowledged, {link.pending} pending"
        if consumer.own.unacknowledged or consumer.own.pending:
            yield f"domain {domain}: packets from the server to itself wait"
    if machine.channel.returns.away or machine.channel.returns.waiting:
        yield "letters of its own agents have not come back from a domain with total order"
    for agent, mailbox in machine.engine.mailboxes.items():
        if agent in absent:
            most = machine.engine.quotas.of(agent).letters
            if len(mailbox) > most:
                yield f"{len(mailbox)} letters wait for {agent}, whose quota is {most}"
            continue
        yield f"{len(mailbox)} letters wait in the mailbox of {agent}"
    if machine.engine.asks or len(machine.timers):
        yield f"{len(machine.engine.asks)} questions and {len(machine.timers)} timers are open"
    site = machine.calls.site
    if site is not None and site.unended():
        yield f"objects: {len(site.unended())} things are left, such as {site.unended()[0]}"
    yield from server.oversight.findings()
    if server.store.durable < server.store.last:
        yield f"records after {server.store.durable} are not durable"


def _trace(world: ServerWorld, rows: list[Event], orders: tuple[str, ...], gone: set[tuple[str, str]]) -> Iterator[str]:
    sends = {row.message: row for row in rows if row.kind == SEND}
    if len(sends) < sum(row.kind == SEND for row in rows):
        yield "two send rows have the same message id"
        return
    known = True
    for row in rows:
        if row.kind != DELIVER:
            continue
        sent = sends.get(row.message)
        letter = world.letters.get(row.message or "")
        if sent is None or row.process not in (sent.to or ()):
            yield f"{row.message} was delivered at {row.process} but never sent there"
            known = False
        elif row.type is not None:
            # A message between objects is not a letter.
            continue
        elif row.dead and (wire.is_temporary(row.process) or (row.message, row.process) in gone):
            # Dropped with the mailbox of a client that is gone, or expired; perhaps it was never handed out.
            continue
        elif letter is None or (_sender(letter, sent), tuple(sorted(set(letter.to)))) != (sent.process, sent.to):
            yield f"the trace has {row.message} of {sent.process}, but the server handed out {letter}"
    places = Counter((row.process, row.index) for row in rows if row.kind != "hop")
    yield from (
        f"{process} has two events with index {index}" for (process, index), count in places.items() if count > 1
    )
    copies = Counter((row.message, row.process) for row in rows if row.kind == DELIVER)
    yield from (
        f"{message} was delivered {count} times at {at}" for (message, at), count in copies.items() if count > 1
    )
    if not known:
        return
    forged = {row.message: len(row.to or ()) for row in rows if row.kind == SEND and _is_forged(row)}
    for row in rows:
        if row.kind == DELIVER and row.message in forged:
            yield f"{row.process} got the forged letter {row.message} of {sends[row.message].process}"
    verdict = judge(rows, orders)
    waiting = 0
    for engine in [server.machine.engine for server in world.servers.values()]:
        for address in world.absent:
            # A client that published while it handled a letter, and is gone, leaves a letter that was delivered.
            waiting += sum((letter.id, address) not in copies for letter in engine.mailboxes.get(address, ()))
    if verdict.undelivered != waiting + sum(forged.values()):
        yield f"{verdict.undelivered} copies were never delivered, and {waiting} wait for clients that are absent"
    site = next(iter(world.servers.values())).machine.calls.site
    if site is not None and any(row.instance for row in rows):
        table = conflicts_in(site.conflicts, "objects")
        for late in judge_significant(match(rows), table).late[:3]:
            yield f"significant order does not hold: {late}"
    for order in orders:
        if verdict.holds(order) is False:
            first = (verdict.causal if order == "causal" else verdict.fifo if order == "fifo" else [None])[:1]
            yield f"{order} order does not hold: {first[0] if first else ''}"


def _given_again(client: SimulatedClient, logged: list[str | None]) -> dict[str, str]:
    """Return the answers that this client got twice, because a crash lost the server's record of the first answer. A
    key of the result is the id of the first answer. Its value is the id of the second answer, which is in the log. Only
    a *sure* answer (an answer that a crash cannot change) may come twice, because only a sure answer may be sent before
    its record is durable."""
    site = client.home.machine.calls.site
    later = {_life.sub("", one): one for one in logged if one is not None}
    again = {}
    for letter in client.inbox if site is not None else ():
        recorded = later.get(_life.sub("", letter.id), letter.id)
        if letter.type == _returned and recorded != letter.id and site is not None:
            result = msgspec.msgpack.decode(letter.body, type=Returned)
            if result.ok and site.is_sure(result.object, result.operation):
                again[letter.id] = recorded
    return again


def _is_forged(row: Event) -> bool:
    return row.process.partition("@")[0] == TRAITOR


def _sender(letter: Letter, sent: Event) -> str:
    """Return the sender that the trace must name for a letter. If an operator sent a dead letter again, the sender is
    this operator. Otherwise the sender is the source of the letter."""
    return letter.source if not letter.replays else f"{OPERATOR}@{sent.process.rpartition('@')[2]}"


def _clients(world: ServerWorld, logs: Logs, gone: set[tuple[str, str]]) -> Iterator[str]:
    rows, logged = logs.rows, dict[str, list[Published]]()
    for name, items in logs.items.items():
        for item in items:
            if isinstance(item, Published | PublishedMany):
                if isinstance(item, Published) and item.deadline_ms:
                    item = msgspec.structs.replace(item, deadline_ms=0)
                address = world.servers[name].machine.client_address(item.client)
                logged.setdefault(address, []).extend(_singly(item))
    got: dict[str, list[str | None]] = {}
    # A client that publishes while it handles a letter has received it, and the letter may die afterwards.
    died = {(row.process, dead_letter(row)) for row in rows if row.dead and row.kind == LOCAL}
    for row in sorted((row for row in rows if _received(row)), key=lambda row: row.index):
        if not row.dead and (row.process, row.message) not in died:
            got.setdefault(row.process, []).append(row.message or (row.extra or {})["call"])
    for address, client in world.clients.items():
        published = _matched(logged.get(address, []), client.published)
        if published is None:
            yield f"{address} published {len(client.published)} times, but the log has {len(logged.get(address, []))}"
        else:
            yield from _begun(address, published, rows)
        waiting = sum(publish.state == "sent" for publish in client.published)
        if waiting:
            yield f"{address}: {waiting} of {len(client.published)} publishes are not accepted"
        both = [letter.id for letter in client.inbox if (letter.id, address) in gone and not client.over]
        if both:
            yield f"{address} handled {both}, but according to the log these letters have expired"
        handled, logged_ids = [letter.id for letter in client.inbox], got.get(address, [])
        if wire.is_temporary(address):
            # The server may have forgotten it, with its letters, before it could report what it had handled.
            dropped = {row.message for row in rows if row.process == address and row.dead}
            handled = [one for one in handled if one not in dropped]
        if client.over:
            # What it handled at the end may not have been reported; it was dropped when the client was forgotten.
            handled = handled[: len(logged_ids)]
            begun = {letter for item in logged.get(address, []) for one in item.begun for letter in one.letters}
            if logged_ids[len(handled) :] and begun.issuperset(logged_ids[len(handled) :]):
                # Its process ended while it handled this letter, after it had published.
                logged_ids = logged_ids[: len(handled)]
        again = _given_again(client, logged_ids)
        if [one for one in handled if one not in again] != [one for one in logged_ids if one not in again.values()]:
            yield f"{address} received {len(client.inbox)} letters, but the log has {len(got.get(address, []))}"
        unsettled = sum(question.outcome == "open" for question in client.questions)
        if unsettled:
            yield f"{address}: {unsettled} of {len(client.questions)} questions have not ended"


def _matched(logged: list[Published], published: list[Publish]) -> list[Publish] | None:
    """Return the publishes of a client that are in the log, or None if the log is wrong. The log must contain all
    accepted publishes in the right sequence. It must not contain any refused publish. A publish with the state
    ``unknown`` may be in the log or not: the client was killed before the answer came."""
    found: list[Publish] = []
    for publish in published:
        if publish.state == "refused":
            continue
        known = logged[len(found)] if len(found) < len(logged) else None
        if known is not None and (known.to, known.type, known.body) == (publish.to, publish.kind, publish.body):
            found.append(publish)
        elif publish.state != "unknown":
            return None
    return found if len(found) == len(logged) else None


def _begun(address: str, published: list[Publish], rows: list[Event]) -> Iterator[str]:
    """Check the sequence of the client's events in the trace, and yield the errors. If the client had begun to handle a
    letter before it published, the letter must come before the publish."""
    mine = [row for row in rows if row.process == address]
    # A message between objects has a type.
    sent = sorted(row.index for row in mine if row.kind == SEND and row.type is None)
    got = {row.message or (row.extra or {}).get("call"): row.index for row in mine if _received(row)}
    letters = [publish for publish in published if not is_call(publish.to)]
    for publish, index in zip(letters, sent, strict=True):
        if got.get(publish.after, -1) > index:
            yield f"{address} had begun {publish.after} when it published event {index}, but the trace has it later"


def dead_letter(row: Event) -> str | None:
    """Return the id of a letter that died, or None if the row contains no id. ``row``: the row of the trace that
    records the death of the letter."""
    return row.message or (row.extra or {}).get("letter")


def _received(row: Event) -> bool:
    """Return whether a row of the trace records that a process received a letter or the answer to a call."""
    return (row.kind == DELIVER and row.type is None) or "call" in (row.extra or ())


def _singly(item: Published | PublishedMany) -> list[Published]:
    if isinstance(item, Published):
        return [item]
    return [
        Published(item.client, number, item.to, item.type, body) for number, body in enumerate(item.bodies, item.number)
    ]


def _replayed(server: SimulatedServer, records: list[bytes]) -> Iterator[str]:
    """Check that a replay of all records, without any snapshot, gives the server's present state."""
    live = server.machine
    again = server.machine_class(server.name, server.plan, live.incarnation)
    for record in records:
        again.replay(record, 0.0)
    for what, one, other in (
        ("agents", live.engine.dump(), again.engine.dump()),
        ("clients", live.clients, again.clients),
        ("timers", live.timers.waiting, again.timers.waiting),
        ("times", live.clock.times, again.clock.times),
        ("truncations", live.truncations.open, again.truncations.open),
        ("orders", _orders(live), _orders(again)),
    ):
        if _plain(one) != _plain(other):
            yield f"{server.name}: {what} differ from those that a replay of the log gives"


def _orders(machine: AgentServer) -> object:
    return {
        domain: (one.sent, one.order.snapshot(), {peer: link.sent for peer, link in one.links.items()})
        for domain, one in machine.channel.consumers.items()
    }


def _plain(value: object) -> bytes:
    return msgspec.msgpack.encode(value, order="sorted")

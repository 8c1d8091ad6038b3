"""Bugs planted into a client's inbox and questions, operators' commands, regular work and lost data, as they ship.

Every test breaks one thing in one place, and the random worlds of :mod:`worlds.schedules` must
notice within a stated number of schedules. The same schedules find nothing in what we ship:
``tests/simulation/test_servers.py`` sees to that.
"""

from typing import Any

import msgspec
import pytest

from antecede import limits, wire
from antecede.channel import Letter
from antecede.engine import Engine, Following, Page, Quotas, Range, Reaction, SavedFollowing
from antecede.link import Link
from antecede.orders import Pruned
from antecede.server import (
    REQUESTS,
    AgentServer,
    Connection,
    DeadLetters,
    Forgot,
    Inbox,
    Look,
    Numbering,
    Operations,
    Peering,
    Questions,
    Reacted,
    ReplayMany,
    Sessions,
    Unreported,
    Upkeep,
    client,
    entry,
    node,
    operations,
    peering,
)
from antecede.simulator.servers.network import Faults
from antecede.topology import Quota
from helpers.planted import caught

Patch = pytest.MonkeyPatch


# A client's letters.


def test_a_letter_that_is_acknowledged_before_its_handler_returned(monkeypatch: Patch) -> None:
    def next_(self: Inbox, now: float) -> Letter | None:
        letter = real(self, now)
        if letter is not None and not self._tries:
            self._done([letter.id], "")
        return letter

    real = Inbox.next
    monkeypatch.setattr(Inbox, "next", next_)
    caught(300, "received", faults=_clients)


def test_handled_letters_that_a_new_connection_forgets(monkeypatch: Patch) -> None:
    def begin(self: Inbox) -> None:
        self._handled.clear()
        real(self)

    real = Inbox.begin
    monkeypatch.setattr(Inbox, "begin", begin)
    caught(300, "was called twice", faults=_clients)


def test_a_failing_handler_whose_letter_counts_as_handled(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Inbox, "failed", lambda self, reason, now: self.handled())
    caught(300, "received")


def test_a_letter_that_is_acknowledged_on_the_next_connection(monkeypatch: Patch) -> None:
    """The server has handed it out again by then, and hears twice that it was handled."""

    def begin(self: Inbox) -> None:
        outdated, reported = self._outdated, self._reported
        self._reported = []
        real(self)
        self._outdated, self._reported = outdated, reported

    real = Inbox.begin
    monkeypatch.setattr(Inbox, "begin", begin)
    caught(300, faults=_clients)


# A client's questions.


def test_an_answer_to_another_question(monkeypatch: Patch) -> None:
    def answered(self: Questions[Any], letter: Letter) -> None:
        for ticket in self._open:
            self._numbering.asks[int(letter.answers[1:])] = ticket
        real(self, letter)

    real = Questions.answered
    monkeypatch.setattr(Questions, "answered", answered)
    caught(300, "got the answer to question")


def test_a_question_that_is_never_late(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Questions, "expire", lambda self, now: setattr(self, "_due", None))
    caught(300, "questions have not ended")


def test_a_question_that_loses_its_answer_with_its_number(monkeypatch: Patch) -> None:
    def renumber(self: Numbering[Any]) -> None:
        asks, self.asks = self.asks, {}
        real(self)
        self.asks = asks

    real = Numbering._renumber
    monkeypatch.setattr(Numbering, "_renumber", renumber)
    caught(300, "was late", "got the answer to question", faults=Faults(resets=4, slow_disks=4, seconds=0.1))


# Operators.


def test_a_command_that_is_answered_before_it_is_durable(monkeypatch: Patch) -> None:
    def request(self: Operations, who: Any, remote: str, command: str, arguments: list[str], answer: Any) -> None:
        ok, document = self.run(command, arguments)
        answer(wire.Answer(ok, document))

    monkeypatch.setattr(Operations, "request", request)
    caught(300, "but is still there", "dead letters are kept", faults=_operators)


def test_a_command_about_another_dead_letter(monkeypatch: Patch) -> None:
    monkeypatch.setattr(DeadLetters, "_find", lambda self, id_: next(reversed(self._machine.engine.dead.values())))
    caught(300, "but is still there", faults=_many_operators)


def test_a_page_that_leaves_out_its_last_letter(monkeypatch: Patch) -> None:
    def page_of(*given: Any) -> Page:
        page = real(*given)
        if len(page.letters) > 1:
            page.letters.pop()
        return page

    real = operations.page_of
    monkeypatch.setattr(operations, "page_of", page_of)
    caught(300, "but is still there", faults=_many_operators)


def test_many_letters_that_are_sent_again_and_stay_on_the_list(monkeypatch: Patch) -> None:
    def replayed(*given: Any) -> Any:
        yield from list(real(*given))[:-1]

    real = REQUESTS[ReplayMany]
    monkeypatch.setitem(REQUESTS, ReplayMany, replayed)
    caught(300, "but is still there", "dead letters are kept", faults=_many_operators)


def test_letters_that_die_again_and_again_for_one_command(monkeypatch: Patch) -> None:
    """The last number of a request is ignored: letters that died after its beginning count as well."""

    def page_of(dead: Any, choice: Any, within: Range, size: Any) -> Page:
        return real(dead, choice, Range(within.after, 0, within.letters_max), size)

    real = operations.page_of
    monkeypatch.setattr(operations, "page_of", page_of)
    caught(300, "went beyond the letters that were meant", faults=_many_operators)


# Quotas of mailboxes.


def test_letters_that_expire_in_a_client_s_hands(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Unreported, "take", lambda self, address, letters, now, more=False: None)
    caught(300, "received", "these letters have expired", faults=_slow_clients)


def test_letters_that_expire_between_a_client_s_report_and_its_step(monkeypatch: Patch) -> None:
    def done(self: Sessions, session: Any, letters: list[str], dead: str) -> None:
        real(self, session, letters, dead)
        if not session.handed:
            self._machine.engine.quotas.handed.pop(session.address, None)

    real = Sessions.done
    monkeypatch.setattr(Sessions, "done", done)
    caught(300, "these letters have expired", faults=Faults(slow_disks=6, looks=200, seconds=0.1))


def test_letters_that_expire_while_an_agent_reacts(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Engine, "is_reacting", lambda self, agent: False)
    caught(300)


def test_a_mailbox_that_is_never_looked_at(monkeypatch: Patch) -> None:
    monkeypatch.setitem(REQUESTS, Look, lambda machine, given, clock_ms: iter(()))
    caught(300, "is above its quota, but nothing expired")


def test_letters_that_expire_without_a_trace(monkeypatch: Patch) -> None:
    def look(machine: AgentServer, given: Look, clock_ms: int) -> Any:
        for item in real(machine, given, clock_ms):
            if isinstance(item, Reacted):
                machine.engine.finish(item.agent, item.reactions, None)
            else:
                yield item

    real = REQUESTS[Look]
    monkeypatch.setitem(REQUESTS, Look, look)
    caught(300, "were never delivered")


def test_the_size_of_a_mailbox_that_became_empty(monkeypatch: Patch) -> None:
    """A mailbox that refuses letters is measured, but not noted."""
    sound = Quotas.of

    def of(self: Quotas, agent: str) -> Quota:
        before = self.known.get(agent)
        quota = sound(self, agent)
        if before is None and quota.full == "refuse":
            del self.known[agent]
        return quota

    monkeypatch.setattr(Quotas, "of", of)
    caught(300, "ValueError")


def test_held_letters_that_no_quota_counts(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Quotas, "look_held", lambda *given: iter(()))
    caught(300, "is above its quota, but nothing expired")


def test_letters_that_expire_as_if_they_were_handled(monkeypatch: Patch) -> None:
    monkeypatch.setattr(node, "died", lambda letter, reason, check, expired: Reaction(letter.id))
    caught(300, "but the server handed out None")


def test_a_client_that_keeps_its_letters_for_ever(monkeypatch: Patch) -> None:
    """It is gone, and nobody notices."""
    monkeypatch.setattr(Unreported, "_give_up", lambda self, address: None)
    caught(300, "is above its quota, but nothing expired")


# Letters that follow from a dead one.


def test_followers_that_are_not_held(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Following, "_may_follow", lambda self, agent, letter, barrier: False)
    caught(300, "before a decision")


def test_followers_that_are_held_only_if_they_come_later(monkeypatch: Patch) -> None:
    def sift(self: Following, agent: str, letters: list[Letter], held: list[Letter]) -> list[Letter]:
        real(self, agent, [], held)
        return letters

    real = Following._hold_required
    monkeypatch.setattr(Following, "_hold_required", sift)
    caught(300, "before a decision")


def test_stamps_that_know_only_their_sender(monkeypatch: Patch) -> None:
    def past(self: Pruned, packet: Any) -> tuple[int, ...]:
        return tuple(packet.stamp[0].time if member == packet.source else 0 for member in range(self.members))

    monkeypatch.setattr(Pruned, "past", past)
    caught(300, "before a decision", orders=("pruned",))


def test_held_letters_that_are_lost_with_a_decision(monkeypatch: Patch) -> None:
    def unblock(self: Following, agent: str, key: str) -> list[Letter]:
        return real(self, agent, key)[1:]

    real = Following.unblock
    monkeypatch.setattr(Following, "unblock", unblock)
    caught(300, "were never delivered")


def test_held_letters_that_a_snapshot_forgets(monkeypatch: Patch) -> None:
    def dump(self: Following) -> SavedFollowing:
        return msgspec.structs.replace(real(self), held={})

    real = Following.dump
    monkeypatch.setattr(Following, "dump", dump)
    caught(300, "were never delivered", faults=Faults(crashes=6, looks=40, seconds=0.3))


# Regular work.


def test_a_heartbeat_that_never_closes(monkeypatch: Patch) -> None:
    def keep_alive(connection: Connection, now: float) -> None:
        if now - connection.last_sent >= limits.heartbeat_seconds:
            connection.send([wire.Ping()])

    for module in (entry, peering, client):
        monkeypatch.setattr(module, "keep_alive", keep_alive)
    caught(300, "is silent, but was not closed")


def test_a_heartbeat_without_pings(monkeypatch: Patch) -> None:
    def keep_alive(connection: Connection, now: float) -> None:
        if now - connection.last_received > 3 * limits.heartbeat_seconds:
            connection.close("nothing received", code="silent")

    for module in (entry, peering, client):
        monkeypatch.setattr(module, "keep_alive", keep_alive)
    caught(300, "closed as silent, although")


def test_a_peer_that_may_think_about_its_hello_for_ever(monkeypatch: Patch) -> None:
    def watch(self: Peering, now: float) -> None:
        for peer in self.peers.values():
            if peer.dialed is not peer.connection:
                peer.dialed = None
        real(self, now)

    real = Peering.watch
    monkeypatch.setattr(Peering, "watch", watch)
    caught(300, "is silent, but was not closed", faults=Faults(silences=40, resets=40, seconds=0.3))


def test_a_snapshot_that_failed_and_is_not_tried_again(monkeypatch: Patch) -> None:
    def not_kept(self: Upkeep, reason: str, now: float) -> None:
        real(self, reason, now)
        self._keeping = True

    real = Upkeep.not_kept
    monkeypatch.setattr(Upkeep, "not_kept", not_kept)
    caught(300, "a failed snapshot was not tried again")


def test_a_temporary_client_that_is_forgotten_while_it_is_connected(monkeypatch: Patch) -> None:
    def sweep(self: Sessions, now: float) -> None:
        for name, since in list(self._temporary.items()):
            if now - since > limits.temporary_client_seconds_max:
                self._forget(name)
        real(self, now)

    real = Sessions.sweep
    monkeypatch.setattr(Sessions, "sweep", sweep)
    caught(300, "was connected all the time")


def test_a_temporary_client_that_is_never_forgotten(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Sessions, "sweep", lambda self, now: None)
    caught(300, "was not forgotten")


# Lost data.


def test_a_peer_of_another_incarnation_that_is_accepted(monkeypatch: Patch) -> None:
    def check_peer(self: Link, what: str, source: int, target: int) -> None:
        self.peer = source

    monkeypatch.setattr(Link, "_check_peer", check_peer)
    built = "a snapshot that was built from the log differs from the state"
    caught(300, "their data do not fit together", "did not stop", built, faults=Faults(seconds=0.1))


def test_a_peer_whose_counter_went_back_that_is_accepted(monkeypatch: Patch) -> None:
    def on_hello(self: Link, hello: Any, now: float) -> None:
        self.peer, self.peer_life = hello.source, hello.life
        self.ack_due = True

    monkeypatch.setattr(Link, "on_hello", on_hello)
    caught(300, "their data do not fit together", "did not stop", faults=_losses)


def test_a_link_that_stays_stopped_when_its_domain_was_reset(monkeypatch: Patch) -> None:
    def apply(self: AgentServer, item: Any, now: float) -> None:
        stopped = self.stopped
        real(self, item, now)
        if isinstance(item, Forgot):
            self.stopped = stopped

    real = AgentServer._apply
    monkeypatch.setattr(AgentServer, "_apply", apply)
    caught(300, "then letters were delivered")


# Versions.


_clients = Faults(crashes=3, powercuts=1.0, resets=12, client_kills=6, slow_disks=3, failures=0.1, seconds=0.3)
"""Hard on clients: connections that break, and processes that are killed."""
_operators = Faults(operators=15, crashes=12, powercuts=1.0, slow_disks=12, seconds=0.3)
"""Operators at work on servers that lose power."""
_many_operators = Faults(operators=12, seconds=0.3)
_slow_clients = Faults(resets=6, slow_disks=2, looks=20, seconds=0.3)
_losses = Faults(seconds=0.3)
"""Nothing goes wrong until a server loses its data."""

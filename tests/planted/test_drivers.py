"""Bugs planted into driver, peering, sessions and client as they ship, each caught by the schedules of whole servers.

Every test breaks one thing in one place, and the random worlds of :mod:`worlds.schedules` must
notice within a stated number of schedules. The same schedules find nothing in what we ship:
``tests/simulation/test_servers.py`` sees to that.
"""

from collections import deque
from typing import Any

import msgspec
import pytest

from antecede import limits
from antecede.engine import React, Reaction
from antecede.server import (
    Acknowledgements,
    ClientLine,
    Commit,
    Driver,
    Numbering,
    Peering,
    Publishing,
    Retries,
    Sessions,
    Shutdown,
    Ticket,
    driver,
)
from antecede.simulator.servers.network import Faults
from helpers.planted import caught
from helpers.windows import small_window

Patch = pytest.MonkeyPatch


# Driver.


def test_a_record_without_room_that_is_dropped(monkeypatch: Patch) -> None:
    def appended(self: Driver, count: int, reason: str = "") -> None:
        real(self, len(self._records))

    real = Driver.appended
    monkeypatch.setattr(Driver, "appended", appended)
    caught(300)


def test_a_step_while_a_record_has_no_room(monkeypatch: Patch) -> None:
    """Its record then comes before the one that waits."""

    def turn(self: Driver, now: float, clock_ms: int) -> Any:
        waiting, self._records = self._records, deque()
        taken = real(self, now, clock_ms)
        self._records.extend(waiting)
        taken.records += waiting
        return taken

    real = Driver.turn
    monkeypatch.setattr(Driver, "turn", turn)
    caught(300)


def test_letters_of_an_open_step_that_do_not_wait_for_its_record(monkeypatch: Patch) -> None:
    """They wait for the record before it, which may be durable."""

    def stays_open(self: Driver, reactions: list[React]) -> bool:
        found = real(self, reactions)
        later, self._later, self._open = self._later, [], False
        for due in later:
            self._outputs.deliver(due)
        self._open = found
        return found

    real = Driver._stays_open
    monkeypatch.setattr(Driver, "_stays_open", stays_open)
    caught(300, faults=msgspec.structs.replace(_clients, crashes=6))


def test_an_open_step_that_waits_for_more_input(monkeypatch: Patch) -> None:
    def goes_on(self: Driver) -> bool:
        return bool(self.inputs) if self._open else real(self)

    real = Driver.goes_on
    monkeypatch.setattr(Driver, "goes_on", goes_on)
    caught(300)


def test_acknowledgements_that_wait_for_ever(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Acknowledgements, "received", lambda self, frames: None)
    monkeypatch.setattr(Acknowledgements, "stepped", lambda self, waiting, now: None)
    caught(300)


def test_records_that_nothing_waits_for_and_that_are_never_committed(monkeypatch: Patch) -> None:
    real = Driver._commit

    def commit(self: Driver, now: float) -> Commit:
        found = real(self, now) if self.gate.waiting else Commit.LATER
        self._commit_at = None
        return found

    monkeypatch.setattr(Driver, "_commit", commit)
    caught(300, "are not durable")


def test_a_failed_reaction_that_is_not_tried_again(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Retries, "_wait", lambda self, due, tries, now: None)
    caught(300, "letters wait in the mailbox")


def test_a_failed_reaction_whose_batch_is_committed(monkeypatch: Patch) -> None:
    def settle(self: Retries, due: React, outcome: Any, now: float) -> list[Reaction]:
        failed = outcome.failure is not None
        reactions = real(self, due, outcome, now)
        return [Reaction(letter.id) for letter in due.letters] if failed else reactions

    real = Retries.settle
    monkeypatch.setattr(Retries, "settle", settle)
    caught(300)


def test_a_stop_that_saves_steps_which_the_log_has_no_room_for(monkeypatch: Patch) -> None:
    """After the next start, what those steps sent is in no record."""
    monkeypatch.setattr(Shutdown, "snapshot", lambda self: self._core.upkeep.final())
    caught(300, faults=Faults(stops=20, full_disks=20, seconds=0.5))


# Peering.


def test_a_peer_that_is_not_dialed_again(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Peering, "_dial_later", lambda self, peer, now: None)
    caught(300)


# Sessions.


def test_a_welcome_before_the_publishes_of_the_last_session_were_taken(monkeypatch: Patch) -> None:
    def begin(self: Sessions, session: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Driver, "when_taken", lambda self, call: call())
            real(self, session)

    real = Sessions.begin
    monkeypatch.setattr(Sessions, "begin", begin)
    caught(300, faults=Faults(takeovers=30, resets=12, seconds=0.04))


def test_a_welcome_that_is_not_durable(monkeypatch: Patch) -> None:
    def begin(self: Sessions, session: Any) -> None:
        def when_taken(self: Driver, call: Any) -> None:
            def hurried() -> None:
                with monkeypatch.context() as patch:
                    patch.setattr(Driver, "when_durable", lambda self, call: call())
                    call()

            real_taken(self, hurried)

        with monkeypatch.context() as patch:
            patch.setattr(Driver, "when_taken", when_taken)
            real(self, session)

    real, real_taken = Sessions.begin, Driver.when_taken
    monkeypatch.setattr(Sessions, "begin", begin)
    caught(300, faults=Faults(crashes=6, powercuts=1.0, resets=40, slow_disks=6, seconds=0.3))


def test_letters_that_reach_a_client_before_they_are_durable(monkeypatch: Patch) -> None:
    def deliver(self: Sessions, due: React) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Driver, "when_durable", lambda self, call: call())
            real(self, due)

    real = Sessions.deliver
    monkeypatch.setattr(Sessions, "deliver", deliver)
    caught(300, faults=_clients)


# Client.


def test_numbers_that_a_client_does_not_take_back(monkeypatch: Patch) -> None:
    def welcomed(self: Numbering[Any], last: int) -> Any:
        self.accepted(last)
        return None

    monkeypatch.setattr(Numbering, "welcomed", welcomed)
    caught(300, faults=_clients)


def test_numbers_that_a_refusal_does_not_give_back(monkeypatch: Patch) -> None:
    def refused(self: Numbering[Any], number: int, error: Any, retry: bool) -> Any:
        after = self.next
        wrong = real(self, number, error, retry)
        self.next = after
        return wrong

    real = Numbering.refused
    monkeypatch.setattr(Numbering, "refused", refused)
    caught(300, faults=Faults(overloads=6, resets=4, seconds=0.3))


def test_a_batch_of_which_the_server_has_a_part(monkeypatch: Patch) -> None:
    """What the server has of it is sent again, under the numbers of the rest."""
    monkeypatch.setattr(limits, "step_letters_max", 1)
    monkeypatch.setattr(driver, "_copy_bytes", limits.step_bytes_max)
    monkeypatch.setattr(Ticket, "drop", lambda self, count: setattr(self, "number", self.number + count))
    caught(300, faults=_clients)


def test_a_client_that_forgets_what_was_not_accepted(monkeypatch: Patch) -> None:
    def closed(self: ClientLine, reason: str, now: float) -> None:
        self._owner._client._publishing.numbering.tickets.clear()  # type: ignore[attr-defined]
        real(self, reason, now)

    real = ClientLine.closed
    monkeypatch.setattr(ClientLine, "closed", closed)
    caught(300)


def test_a_client_that_ignores_its_window(monkeypatch: Patch) -> None:
    """The server closes its connection for good."""
    small_window(monkeypatch)
    monkeypatch.setattr(Numbering, "_weigh", lambda self: None)
    caught(300, "until more publishes are accepted", faults=_clients)


_clients = Faults(
    crashes=3, powercuts=1.0, resets=12, takeovers=4, client_kills=2, slow_disks=3, full_disks=2, stalls=4, seconds=0.3
)
"""Hard on clients: many connections that break, and servers whose disks are slow."""


# The letters that a client had begun to handle when it published.


def test_a_publish_that_names_no_letter(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Publishing, "begins", lambda self, letter: None)
    caught(300, "had begun")


def test_a_publish_that_names_the_letter_before(monkeypatch: Patch) -> None:
    def begins(self: Publishing[Any], letter: str) -> None:
        real(self, before.get(id(self), ""))
        before[id(self)] = letter

    real, before = Publishing.begins, dict[int, str]()
    monkeypatch.setattr(Publishing, "begins", begins)
    caught(300, "had begun")

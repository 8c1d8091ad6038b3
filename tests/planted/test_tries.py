"""Bugs planted into tries that survive a crash, as they ship: counts that are lost, doubled, or of other letters.

Every test breaks one thing in one place, and the random worlds of :mod:`worlds.schedules` must
notice within a stated number of schedules. The same schedules find nothing in what we ship:
``tests/simulation/test_servers.py`` sees to that.
"""

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from antecede import limits
from antecede.engine import Context, Outcome, React, Tries
from antecede.server import Driver, Interrupted, Progress, Retries
from antecede.simulator.servers import server
from helpers.planted import caught
from worlds.workload import Poisoned

Patch = pytest.MonkeyPatch
_endless = "handlers end the process of this server again and again"
_other_id = "to one piece of work had the ids"
_counted = "were in progress at an end, but counted"


def test_an_end_that_nobody_counts(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Tries, "ended", lambda self, life, calls: None)
    caught(300, _endless, _counted, faults=_quiet)


def test_tries_that_a_snapshot_forgets(monkeypatch: Patch) -> None:
    real = Tries.load
    monkeypatch.setattr(Tries, "load", lambda self, *saved: real(self, {}, 0, []))
    caught(300, "ended the process", _endless, "were not in progress", faults=_snapshots)


def test_names_that_are_forgotten_before_they_are_counted(monkeypatch: Patch) -> None:
    """The shared memory is used again before the record with its calls is durable."""

    def when_durable(self: Driver, call: Callable[[], None]) -> None:
        if getattr(call, "__name__", "") == "_name_calls":
            call()
        else:
            real(self, call)

    real = Driver.when_durable
    monkeypatch.setattr(Driver, "when_durable", when_durable)
    caught(300, _counted, faults=_kills)


def test_the_first_letter_of_a_batch_counted_for_another(monkeypatch: Patch) -> None:
    real = Progress.then
    monkeypatch.setattr(Progress, "then", lambda self, letter: None if self._running == 0 else real(self, letter))
    caught(300, _counted, "were not in progress", faults=_quiet)


def test_a_power_cut_that_counts(monkeypatch: Patch) -> None:
    def interrupted(content: bytes, boot: str) -> Interrupted:
        return real(content, content[24:64].rstrip(b"\0").decode())

    real = server.interrupted
    monkeypatch.setattr(server, "interrupted", interrupted)
    caught(300, "were not in progress", faults=_powercuts)


def test_an_end_that_is_counted_by_two_lives(monkeypatch: Patch) -> None:
    def ended(self: Tries, life: int, calls: Any) -> None:
        real(self, life, calls)
        self.life = 0

    real = Tries.ended
    monkeypatch.setattr(Tries, "ended", ended)
    caught(300, _counted, faults=_kills)


def test_calls_that_waited_counted_for_the_one_that_ran(monkeypatch: Patch) -> None:
    def interrupted(content: bytes, boot: str) -> Interrupted:
        return real(content[:16] + struct.pack("<I", 0) + content[20:], boot)

    real = server.interrupted
    monkeypatch.setattr(server, "interrupted", interrupted)
    caught(300, _counted, faults=_quiet)


def test_a_suspect_in_a_batch_with_others(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Tries, "together", lambda self, agent, mailbox: limits.reactions_together_max)
    caught(300, _endless, "ended the process", faults=_quiet)


def test_an_agent_that_is_not_careful(monkeypatch: Patch) -> None:
    def ended(self: Tries, life: int, calls: Any) -> None:
        real(self, life, calls)
        self.careful.clear()

    real = Tries.ended
    monkeypatch.setattr(Tries, "ended", ended)
    caught(300, _endless, faults=_quiet)


def test_a_suspect_that_is_tried_without_end(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Retries, "exhausted", lambda self, due: None)
    caught(300, "ended the process", _endless, faults=_quiet)


def test_the_rest_of_a_worker_s_batch_counted(monkeypatch: Patch) -> None:
    def settle(self: Retries, due: React, outcome: Outcome, now: float) -> Any:
        if outcome.ended_at is not None:
            outcome.ended_at = 0
        return real(self, due, outcome, now)

    real = Retries.settle
    monkeypatch.setattr(Retries, "settle", settle)
    caught(300, "ended the worker process", faults=Poisoned(isolated="a0", seconds=0.01))


def test_an_id_of_a_reaction_whose_letter_is_not_durable(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Context, "reaction_id", property(lambda self: f"{self.agent}:{self.letter.id}"))
    caught(300, _other_id, faults=_powercuts)


def test_reactions_that_run_again_before_their_letters_are_durable(monkeypatch: Patch) -> None:
    def when_durable(self: Driver, call: Callable[[], None]) -> None:
        if isinstance(call, partial) and call.func == self._is_durable:
            call()
        else:
            real(self, call)

    real = Driver.when_durable
    monkeypatch.setattr(Driver, "when_durable", when_durable)
    caught(300, _other_id, faults=_powercuts)


_quiet = Poisoned(seconds=0.05)
_kills = Poisoned(crashes=40, powercuts=0.0, seconds=1.0)
_powercuts = Poisoned(crashes=8, powercuts=1.0, seconds=0.3)
_snapshots = Poisoned(looks=12, seconds=0.3)

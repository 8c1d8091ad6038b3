"""Bugs planted into live servers, each caught by the trial that is there for it; see ``tests/campaigns``."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from antecede.channel import consumer
from antecede.errors import WireError
from antecede.messages import Packet
from antecede.orders import Pruned
from antecede.server import Sessions, projection
from campaigns.disks import PowerCuts
from campaigns.lies import trial
from campaigns.rounds import Kills, Outcome, Round

_no_sync = """
from antecede.store.log import Segments
Segments.sync = lambda self: None
"""
_too_early = """
import time
from antecede.server.driver import Gate
from antecede.store.log import LogStore
Gate.put = lambda self, outgoing, replies: self._waiting.append((0, outgoing, replies, None))
write = LogStore._write
def slowly(self, *given):
    time.sleep(0.05)
    write(self, *given)
LogStore._write = slowly
"""
_twice = """
from antecede.engine import Engine
finish = Engine.finish
seen = set()
def forgetful(self, agent, reactions, state):
    letters = finish(self, agent, reactions, state)
    if letters and letters[0].type == "Mark" and letters[0].id.endswith("7") and letters[0].id not in seen:
        seen.add(letters[0].id)
        self.deliver(agent, letters[0])
    return letters
Engine.finish = forgetful
"""
_entry = """
import sys
{bug}
from {main} import main
sys.exit(main({arguments}))
"""


def _caught(kind: type[Round], folder: Path, bug: str, count: int, counted: str) -> Outcome:
    """Rounds with servers that have the bug, until one is found wrong."""
    main, arguments = ("campaigns.serve", "sys.argv[1:]") if issubclass(kind, PowerCuts) else ("antecede.cli", "")

    async def play(seed: int) -> Outcome:
        place = folder / str(seed)
        place.mkdir()
        (place / "broken.py").write_text(_entry.format(bug=bug, main=main, arguments=arguments))
        round_ = kind(place, seed)
        round_.settle_seconds = 6.0
        return await round_.run(count, counted)

    for seed in range(4):
        outcome = asyncio.run(play(seed))
        if outcome.found:
            print(outcome)
            return outcome
    raise AssertionError("nothing was found")


class _BrokenKills(Kills):
    entry = "broken"


class _BrokenCuts(PowerCuts):
    entry = "broken"


def test_syncs_that_are_skipped(tmp_path: Path) -> None:
    _caught(_BrokenCuts, tmp_path, _no_sync, 6, "cuts")


def test_what_leaves_before_it_is_written(tmp_path: Path) -> None:
    _caught(_BrokenKills, tmp_path, _too_early, 10, "kills")


def test_letters_that_are_reacted_to_twice(tmp_path: Path) -> None:
    _caught(_BrokenKills, tmp_path, _twice, 1, "kills")


# Lies.


def _believed(symptom: str, order: str = "pruned") -> None:
    outcome = asyncio.run(trial(1, 4_000, (order,), 2_000))
    assert any(symptom in line for line in outcome.found), outcome.found


def test_a_client_that_is_hung_up_on_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Sessions.finish
    monkeypatch.setattr(Sessions, "finish", lambda self, session, *why: real(self, session))
    _believed("without a logged reason")


def test_a_packet_that_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    real = consumer.decode_packet

    def careless(order: Any, peer: int, data: bytes, recorded: bool) -> Packet:
        try:
            return real(order, peer, data, recorded)
        except WireError as error:
            raise ValueError(str(error)) from None

    monkeypatch.setattr(consumer, "decode_packet", careless)
    _believed("ValueError")


def test_a_stamp_that_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stamp that is taken live and refused by the replay: the server could never start again."""
    real = Pruned.decode
    taken: set[bytes] = set()

    def moody(self: Pruned, kind: str, source: int, stamp: bytes) -> Any:
        if len(stamp) % 7 == 0 and stamp in taken:
            raise WireError("not again")
        taken.add(stamp)
        return real(self, kind, source, stamp)

    monkeypatch.setattr(Pruned, "decode", moody)
    _believed("the log does not replay")


def test_a_forged_train_in_the_way_of_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "WireError", KeyError)
    _believed("the log has no trace")

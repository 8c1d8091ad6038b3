"""Bugs planted into the cut of a backup and into the restore, as they ship.

Every test breaks one thing, and the worlds of :mod:`worlds.backups` must notice within 300
schedules. The same schedules find nothing in what we ship: ``tests/simulation/test_backups.py`` sees to that.
"""

from collections.abc import Mapping

import msgspec
import pytest

from antecede.link import Frame, Hello, SavedLink
from antecede.server import Cutting, FromPeer, Peering, Restored, decode_state, encode_state
from antecede.simulator.servers import ServerWorld
from antecede.simulator.servers.network import ROUGH, Faults
from helpers.seeds import note, seeds
from worlds import backups
from worlds.backups import play_backup

Patch = pytest.MonkeyPatch
_quiet = dict.fromkeys(("partitions", "full_disks", "overloads", "stops", "client_kills", "takeovers", "silences"), 0)
_crowded = msgspec.structs.replace(ROUGH, crashes=0, looks=6, loss=0.0, seconds=0.1, **_quiet)


def _caught(*symptoms: str, faults: Faults | None = _crowded, budget: int = 300) -> None:
    for seed in seeds(budget):
        outcome, _ = play_backup(seed, faults=faults)
        said = "\n".join(outcome.found)
        if said and (not symptoms or any(symptom in said for symptom in symptoms)):
            note(seed)
            print(f"seed {seed}: {said[:300]}")
            return
    raise AssertionError(f"not caught in {budget} schedules")


def _passes(monkeypatch: Patch, *kinds: type) -> None:
    """Let some of what peers bring pass, although the server is held. (Acknowledgements alone do no harm: snapshots are
    made from the log, which has none. Only the snapshot of a graceful stop has used them.)"""

    def pause(self: Peering) -> None:
        keep, take = self._kept.append, self._driver.feed

        def feed(given: FromPeer) -> None:
            (take if isinstance(given.content, kinds) else keep)(given)

        # Reading goes on, too.
        self.paused, self._feed = True, feed

    monkeypatch.setattr(Peering, "pause", pause)


def test_frames_that_are_taken_while_the_server_is_held(monkeypatch: Patch) -> None:
    _passes(monkeypatch, Frame, Hello)
    _caught("only")


def test_a_cut_that_begins_before_all_are_held(monkeypatch: Patch) -> None:
    def requests(self: Cutting) -> list[tuple[str, str, list[str]]]:
        """Hold and cut one server after the other."""
        if self._asked or self.failure is not None:
            return []
        server = self._servers[len(self.cuts)]
        self._phase = "backup-cut" if server in self._held else "backup"
        self._asked = {server}
        return [(server, self._phase, [self._id])]

    monkeypatch.setattr(Cutting, "requests", requests)
    _caught("only", "are lost")


def test_a_restore_without_the_frames_in_transit(monkeypatch: Patch) -> None:
    def under(self: SavedLink, incarnation: int, peer: int) -> bytes:
        return real(msgspec.structs.replace(self, bodies={}), incarnation, peer)

    real = SavedLink.under
    monkeypatch.setattr(SavedLink, "under", under)
    # The rest waits for them for ever.
    monkeypatch.setattr(ServerWorld, "events_max", 10_000)
    _caught("does not become idle", "unacknowledged", "never delivered")


def test_a_restore_that_starts_links_again(monkeypatch: Patch) -> None:
    def under(self: SavedLink, incarnation: int, peer: int) -> bytes:
        return real(msgspec.structs.replace(self, sent=len(self.bodies)), incarnation, peer)

    real = SavedLink.under
    monkeypatch.setattr(SavedLink, "under", under)
    _caught()


def test_a_restore_whose_trace_keeps_the_ids_of_letters(monkeypatch: Patch) -> None:
    monkeypatch.setattr(backups, "Restored", lambda incarnation: Restored(1))
    _caught("never sent", "but the server handed out")


def test_a_restore_that_forgets_mailboxes(monkeypatch: Patch) -> None:
    def renewed(snapshot: bytes, server: str, incarnations: Mapping[str, int], epoch: str) -> bytes:
        state = decode_state(real(snapshot, server, incarnations, epoch))
        return encode_state(msgspec.structs.replace(state, mailboxes={}))

    real = backups.renewed
    monkeypatch.setattr(backups, "renewed", renewed)
    _caught("never delivered")

"""``antecede topology apply --data``: the topology of stopped servers, killed at every record, and of older data."""

import contextlib
import errno
import json
import os
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from antecede.backups import judged_in, system_in, write_system
from antecede.cli import build
from antecede.engine import Alarm, Outbound, Reaction
from antecede.errors import StoreFullError, TopologyError
from antecede.live import directories
from antecede.live.application import plan_of
from antecede.live.directories import change_directories, differing
from antecede.recording.segments import gathered
from antecede.server import AgentServer, ChangeRequest, Outcome, Published, Reacted, Staged, decode_record, replay
from antecede.store import Files, LogStore, open_store
from antecede.topology import TopologyFile, parse_topology
from antecede.trace import Epochs, epochs_of, read_events
from helpers.changing import AGENTS, BACK, BUS, FLAT, MOVED, ONE_MORE, WITHOUT, topology


def _file(text: str) -> TopologyFile:
    return parse_topology(text.replace("nowhere:Agent", "helpers.summing:Sum"))


def _begin(folder: Path, text: str) -> None:
    """Make the directories of servers whose clients have sent letters that are in transit."""
    file = _file(text)
    for number, name in enumerate(file.servers, 1):
        store = open_store(str(folder / name), durability="os")
        machine = AgentServer(name, plan_of(file), store.incarnation)
        store.append(machine.begin(file.epoch))
        sent = [
            Published(f"c{number}", one, tuple(machine.plan.homes), "Add", bytes([number, one])) for one in (1, 2, 3)
        ]
        store.append(machine.step([*sent], 0.0, 1_000).record or b"")
        here = [agent for agent in machine.plan.homes if agent in machine.engine.mailboxes]
        for agent in here:
            # The agent has handled its first letter: it has a state, a timer and an open question.
            letter = machine.engine.mailboxes[agent][0]
            question = Outbound(("a" if agent != "a" else "b",), "Tell", b"", "on_total", 60_000)
            reaction = Reaction(letter.id, (question,), (Alarm(60_000, "Add", b"t"),))
            state = b"\x81\xa6amount\x05"
            store.append(machine.step([Reacted(agent, (reaction,), state, 1_000)], 0.0, 1_000).record or b"")
        store.close()


def _apply(folder: Path, text: str, dry: bool = False, drop: bool = False) -> Outcome:
    wish = ChangeRequest(_file(text), (), "system", 5_000, dry, drop)
    return change_directories(str(folder), wish)


def _machines(folder: Path, text: str) -> dict[str, AgentServer]:
    """Open all directories, and let what was sent since the change arrive."""
    file = _file(text)
    machines = {}
    for name in file.servers:
        found = judged_in(str(folder / name)).recovered
        machines[name] = machine = AgentServer(name, plan_of(file), found.incarnation)
        snapshot = None if found.snapshot is None else found.snapshot.data()
        assert replay(machine, snapshot, (record for _, record in found.records()), file.epoch, 0.0)
        assert machine.epoch == file.epoch
        machine.begin_life(7)
    directories.drain(machines, lambda records: None)
    return machines


def _check(folder: Path, text: str, servers: int = 4) -> dict[str, AgentServer]:
    """Every agent has its state, its timers, its question, and each letter once, in the sequence of its sender."""
    machines = _machines(folder, text)
    for agent in AGENTS:
        machine = machines[machines["s1"].plan.homes[agent]]
        letters = [letter for letter in machine.engine.mailboxes[agent] if letter.type == "Add"]
        for number in range(1, servers + 1):
            mine = [letter.body[1] for letter in letters if letter.body[0] == number]
            assert mine == ([2, 3] if number == AGENTS[agent] else [1, 2, 3]), (agent, number, mine)
        assert machine.engine.states[agent] == b"\x81\xa6amount\x05"
        assert [question.agent for question in machine.engine.asks.values()].count(agent) == 1
        assert sorted(timer[1] for timer in machine.timers.waiting.values()).count(agent) == 2
        others = [one for one in machines.values() if one is not machine]
        assert not any(agent in one.engine.mailboxes or agent in one.engine.states for one in others)
    return machines


@pytest.mark.parametrize("text", [BUS, ONE_MORE, MOVED, FLAT.replace("matrix", "pruned")])
def test_everything_arrives_and_moves_along(text: str, tmp_path: Path) -> None:
    _begin(tmp_path, FLAT)
    outcome = _apply(tmp_path, text)
    assert (outcome.state, outcome.number, outcome.refusals) == ("done", 1, ())
    machines = _check(tmp_path, text)
    assert {one.organisation.system for one in machines.values()} == {"system"}
    assert _apply(tmp_path, text).state == "unchanged"
    assert differing(str(tmp_path), _file(text)) is None
    found = differing(str(tmp_path), _file(FLAT))
    assert found is not None
    assert found.epoch == _file(text).epoch


def test_a_change_after_the_newest_snapshot_is_found(tmp_path: Path) -> None:
    """The snapshot contains the old topology, and only the log after it contains the change."""
    new = FLAT.replace("matrix", "pruned")
    _begin(tmp_path, FLAT)
    for name, machine in _machines(tmp_path, FLAT).items():
        store = open_store(str(tmp_path / name), durability="os")
        store.snapshot(machine.snapshot(), store.last)
        store.close()
    assert differing(str(tmp_path), _file(FLAT)) is None
    assert _apply(tmp_path, new).state == "done"
    found = differing(str(tmp_path), _file(FLAT))
    assert found is not None
    assert found.epoch == _file(new).epoch


@pytest.mark.parametrize("removed", ["s0", "s5"])
def test_a_removed_server_does_not_count_when_a_change_is_ended(removed: str, tmp_path: Path) -> None:
    """Its data directory is still there, and its log contains the same change as the others."""
    without = WITHOUT.replace("[moved]", 'e = { server = "s1", class = "nowhere:Agent" }\n[moved]')
    _begin(tmp_path, BACK.replace("s5", removed))
    assert _apply(tmp_path, without.replace("s5", removed)).state == "done"
    assert directories.finish(str(tmp_path), 1_000).state == "unchanged"
    assert sorted(directories.histories(str(tmp_path))) == ["s1", "s2", "s3", "s4"]


def test_a_new_server_of_a_restored_system_belongs_to_it(tmp_path: Path) -> None:
    _begin(tmp_path, FLAT)
    for directory in tmp_path.iterdir():
        write_system(str(directory), "ab12")
    assert _apply(tmp_path, ONE_MORE, dry=True).state == "planned"
    assert _apply(tmp_path, ONE_MORE).state == "done"
    assert system_in(str(tmp_path / "s5")) == "ab12"


def test_a_total_order(tmp_path: Path) -> None:
    total = FLAT.replace("matrix", "skeen:causal=true")
    _begin(tmp_path, total)
    assert _apply(tmp_path, MOVED).state == "done"
    machines = _machines(tmp_path, MOVED)
    for agent in AGENTS:
        machine = machines[machines["s1"].plan.homes[agent]]
        letters = [letter.body[0] for letter in machine.engine.mailboxes[agent] if letter.type == "Add"]
        assert sorted(letters) == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]


def test_there_and_back_again(tmp_path: Path) -> None:
    _begin(tmp_path, FLAT)
    for text in (BUS, MOVED, BACK):
        assert _apply(tmp_path, text).state == "done"
    _check(tmp_path, BACK)
    for name in _file(BACK).servers:
        # Indices continue over all servers of a process, and nothing is sent or delivered twice.
        assert (tmp_path / name).is_dir()
    with gathered([str(tmp_path)]) as paths:
        rows = [row for path in paths for row in read_events([path])[0]]
    for process in {row.process for row in rows if row.kind != "hop"}:
        indices = sorted(row.index for row in rows if row.process == process and row.kind != "hop")
        assert indices == list(range(len(indices)))


def test_the_trace_lists_the_epochs(tmp_path: Path) -> None:
    def rows() -> tuple[dict[str, int], Epochs]:
        with gathered([str(tmp_path)]) as paths:
            events, metadata = read_events(paths)
        epochs = epochs_of(metadata)
        assert epochs is not None
        return Counter(row.process for row in events if row.kind != "hop"), epochs

    fifo = FLAT.replace("matrix", "fifo")
    _begin(tmp_path, fifo)
    before = [rows()[0]]
    for text in (BUS, ONE_MORE, MOVED):
        assert _apply(tmp_path, text).state == "done"
        before.append(rows()[0])
    _, epochs = rows()
    listed = [(one.change, one.guarantee, one.epoch) for one in epochs.listed]
    guarantees = zip((fifo, BUS, ONE_MORE, MOVED), ("fifo", "causal", "causal", "causal"), strict=True)
    assert listed == [(change, one, _file(text).epoch) for change, (text, one) in enumerate(guarantees)]
    # Nothing was sent or handled between the changes, so all events were in the first epoch, and the next are in the
    # last one, also those of the agent that moved.
    assert before[0] == before[-1]
    for process, seen in before[0].items():
        assert [epochs.of(process, index) for index in range(seen + 1)] == [0] * seen + [3]
    assert not epochs.guaranteed("causal", 0, 1, "a", "b")
    assert epochs.guaranteed("causal", 1, 3, "a", "c1@s1")


class Killed(BaseException):
    pass


def _killed_at(record: int) -> Callable[[directories._Stopped, bytes], None]:
    """Return an append that fails once, at this record."""
    numbers, real = count(1), directories._Stopped.append

    def append(self: directories._Stopped, written: bytes) -> None:
        if next(numbers) == record:
            raise Killed
        real(self, written)

    return append


@pytest.mark.parametrize("killed", range(2, 34, 4))
def test_killed_at_a_record_it_is_continued_or_begun_again(
    killed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _begin(tmp_path, FLAT)
    monkeypatch.setattr(directories._Stopped, "append", _killed_at(killed))
    for _ in range(3):
        try:
            outcome = _apply(tmp_path, MOVED)
            break
        except Killed:
            continue
    assert outcome.state in ("done", "unchanged")
    _check(tmp_path, MOVED)


@pytest.mark.parametrize("killed", [8, 14, 20, 26])
def test_a_change_that_was_begun_can_be_ended(killed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _begin(tmp_path, FLAT)
    with contextlib.suppress(Killed), monkeypatch.context() as patch:
        patch.setattr(directories._Stopped, "append", _killed_at(killed))
        _apply(tmp_path, MOVED)
    outcome = directories.finish(str(tmp_path), 5_000)
    assert outcome.state == "unchanged"
    assert outcome.number == (outcome.old.epoch == _file(MOVED).epoch)
    _check(tmp_path, MOVED if outcome.number else FLAT)
    state = directories.histories(str(tmp_path))["s1"]
    assert state[0]["in_progress"] is None
    assert [one.change for one in state[1]] == list(range(outcome.number + 1))


@pytest.mark.parametrize("full", ["s1", "s5"])
def test_a_full_disk_abandons_the_change(full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line names the directory, also if it is that of a new server; with space again the same command works."""
    _begin(tmp_path, FLAT)
    append, create = LogStore.append, Files.create

    def appended(self: LogStore, record: bytes, **options: bool) -> int:
        if self._segments.directory.endswith(full) and any(isinstance(one, Staged) for one in decode_record(record)):
            raise StoreFullError(f"{full}: no space for the next segment")
        return append(self, record, **options)

    def created(self: Files, path: str) -> int:
        if f"/{full}/" in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return create(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(LogStore, "append", appended)
        patch.setattr(Files, "create", created)
        with pytest.raises(StoreFullError, match=rf"{full}: [nN]o space"):
            _apply(tmp_path, ONE_MORE)
    assert all(one[0]["in_progress"] is None for one in directories.histories(str(tmp_path)).values())
    assert _apply(tmp_path, ONE_MORE).state == "done"
    _check(tmp_path, ONE_MORE)


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    _begin(tmp_path, FLAT)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    outcome = _apply(tmp_path, MOVED, dry=True)
    assert outcome.state == "planned"
    assert outcome.change.region == ("A",)
    assert outcome.letters == {"a": 2}
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_what_is_refused(tmp_path: Path) -> None:
    _begin(tmp_path, FLAT)
    fewer = topology({"A": "123"}, {"a": 1, "b": 2, "c": 3})
    refusals = _apply(tmp_path, fewer).refusals
    assert refusals[0].startswith("d is removed, but has waiting or dead letters: 2")
    assert any("expected s4" in one for one in refusals)
    assert _apply(tmp_path, fewer, drop=True).state == "done"
    assert {"a", "b", "c"} == set(_machines(tmp_path, fewer)["s1"].plan.homes)


def test_a_removed_server_hands_its_clients_over(tmp_path: Path) -> None:
    _begin(tmp_path, BACK)
    new = WITHOUT.replace("[moved]", 'e = { server = "s1", class = "nowhere:Agent" }\n[moved]')
    assert _apply(tmp_path, new).state == "done"
    machines = _machines(tmp_path, new)
    assert machines["s4"].organisation.adopted == {"c5": "c5@s5"}
    assert machines["s4"].clients["c5"] == 3
    assert machines["s1"].channel.check(("c5@s5",)) == ("c5@s5",)
    # Its directory is not needed any more, and does not stand in the way of the next change.
    assert _apply(tmp_path, new.replace("matrix", "pruned")).state == "done"
    with pytest.raises(TopologyError, match="move the directory away, to add the server again"):
        _apply(tmp_path, BACK)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    _begin(tmp_path / "data", FLAT)
    new, old = tmp_path / "new.toml", tmp_path / "old.toml"
    new.write_text(_file(MOVED).text())
    old.write_text(_file(FLAT).text())
    run = CliRunner()
    result = run.invoke(build(), ["topology", "apply", str(new), "--data", str(tmp_path / "data"), "--json"])
    document = json.loads(result.stdout)
    assert result.exit_code == 0
    assert document["epoch_before"] == _file(FLAT).epoch
    assert document["epoch_after"] == _file(MOVED).epoch
    assert {"kind": "agent-moved", "name": "a", "before": "s1", "after": "s3"} in document["changes"]
    assert document["pauses"] == {"domains": ["A"], "servers": ["s1", "s2", "s3", "s4"]}
    assert document["state"] == "done"
    result = run.invoke(build(), ["up", str(old), "--data", str(tmp_path / "data")])
    assert "server removed s5; " in result.stderr
    assert f"antecede topology apply {old} --data {tmp_path / 'data'}" in result.stderr

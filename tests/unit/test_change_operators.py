"""A change as its operator sees it: servers that do not answer, changes of other operators, Ctrl-C in the middle."""

import asyncio
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antecede import limits
from antecede.cli import run
from antecede.errors import UsageError
from antecede.live.client.operator import RunningServers
from antecede.server import (
    AgentServer,
    ChangeRequest,
    Command,
    Outcome,
    Participant,
    Steps,
    Wait,
    carry_out,
    end_change,
)
from antecede.topology import parse_topology
from helpers.changing import topology
from worlds.changes import plan_of

_three = topology({"A": "12", "B": "23"}, {"a": 1, "b": 2})
_more = topology({"A": "12", "B": "23"}, {"a": 1, "b": 2, "x": 1})
_other = topology({"A": "12", "B": "23"}, {"a": 1, "b": 2, "y": 1})
_grown = topology({"A": "12", "B": "23", "C": "34"}, {"a": 1, "b": 2})


class _System:
    """Servers without a network, some of which do not answer."""

    def __init__(self, text: str) -> None:
        file = parse_topology(text)
        self.machines = {name: AgentServer(name, plan_of(file), place) for place, name in enumerate(file.servers, 1)}
        for machine in self.machines.values():
            machine.begin(file.epoch)
        self.silent: set[str] = set()
        self.asked: list[Command] = []

    def wish(self, text: str, **settings: Any) -> ChangeRequest:
        file = parse_topology(text, "new.toml")
        return msgspec.structs.replace(
            ChangeRequest(file, tuple(file.servers), "system", 5_000, attempt="a"), **settings
        )

    def drive(self, steps: Steps, until: str = "") -> Outcome | None:
        """Carry out the commands of a change; ``until``: the first command that is not given any more."""
        answers: list[dict[str, object] | None] = []
        asked = next(steps)
        while True:
            answers = []
            for command in [] if isinstance(asked, Wait) else asked:
                if command.name == until:
                    return None
                self.asked.append(command)
                answers.append(self._answer(command))
            try:
                asked = steps.send(answers)
            except StopIteration as end:
                outcome: Outcome = end.value
                return outcome

    def _answer(self, command: Command) -> dict[str, object] | None:
        machine = self.machines.get(command.server)
        if machine is None or command.server in self.silent:
            return None
        participant = Participant(machine, lambda given: machine.step([given], 0.0, 1_000) and None)
        answer: dict[str, object] = participant.commands[command.name][1](*command.arguments)
        return answer


def test_a_server_that_hangs_is_asked_once_and_not_for_long() -> None:
    system = _System(_three)
    system.silent = {"s3"}
    outcome = system.drive(carry_out(system.wish(_more, dry=True)))
    assert outcome is not None
    assert (outcome.state, outcome.absent) == ("planned", ("s3",))
    looks = [one for one in system.asked if one.name == "change-look"]
    assert [one.server for one in looks] == ["s1", "s2", "s3"]
    assert {one.seconds_max for one in looks} == {limits.change_look_seconds_max}
    assert Command("s1", "change-abandon").seconds_max == limits.change_look_seconds_max
    assert Command("s1", "change-stage").seconds_max == limits.change_command_seconds_max


def test_a_server_with_another_address_is_asked_there_too() -> None:
    system = _System(_three)
    system.silent = {"s3"}
    moved = _three.replace(":7003", ":7999")
    system.drive(carry_out(system.wish(moved, dry=True)))
    assert [one.server for one in system.asked] == ["s1", "s2", "s3", "s3"]


def test_abort_names_who_did_not_answer_and_what_it_has_ended() -> None:
    system = _System(_three)
    nothing = system.drive(end_change(system.wish(_three)))
    assert nothing is not None
    assert (nothing.ended, nothing.absent) == ({}, ())
    assert system.drive(carry_out(system.wish(_more)), until="change-commit") is None
    system.silent = {"s3"}
    system.asked = []
    ended = system.drive(end_change(system.wish(_three)))
    assert ended is not None
    assert (ended.ended, ended.absent, ended.number) == ({1: "abandoned"}, ("s3",), 0)
    assert [one.name for one in system.asked if one.server == "s3"] == ["change-look"]


def test_a_decided_change_is_finished_and_reported() -> None:
    system = _System(_three)
    wish = system.wish(_more)
    steps = carry_out(wish)
    assert system.drive(steps, until="change-commit") is None
    machine = system.machines["s1"]
    Participant(machine, lambda given: machine.step([given], 0.0, 1_000) and None).commit("1:a", "5000")
    ended = system.drive(end_change(system.wish(_three)))
    assert ended is not None
    assert (ended.ended, ended.number) == ({1: "finished"}, 1)


def test_a_change_from_another_topology_than_the_one_in_force_is_refused() -> None:
    system = _System(_three)
    first, basis = parse_topology(_more), parse_topology(_three).epoch
    made = system.drive(carry_out(system.wish(_more, basis=basis)))
    assert made is not None
    assert made.state == "done"
    # A second operator has planned another change of the same topology: it would remove the agent that was added.
    second = system.drive(carry_out(system.wish(_other, basis=basis, attempt="b")))
    assert second is not None
    reason = f"the topology in force has epoch {first.epoch}, and --from has {basis}: check the change again"
    assert (second.state, second.refusals) == ("refused", (reason,))
    # The first command may be run again.
    again = system.drive(carry_out(system.wish(_more, basis=basis, attempt="c")))
    assert again is not None
    assert again.state == "unchanged"


def test_a_new_server_that_does_not_run_must_be_started_first() -> None:
    system = _System(_three)
    outcome = system.drive(carry_out(system.wish(_grown, dry=True)))
    assert outcome is not None
    assert outcome.refusals == ("new server s4 does not answer: start it first (antecede serve new.toml --server s4)",)
    system.silent = {"s3"}
    outcome = system.drive(carry_out(system.wish(_grown, dry=True)))
    assert outcome is not None
    assert outcome.refusals[0] == "server s3 does not answer, and must take part in this change"


def test_a_server_that_hangs_is_named_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antecede.live.client.operator._slow_seconds", 0.01)
    monkeypatch.setattr(limits, "change_look_seconds_max", 0.1)
    said: list[str] = []

    async def main() -> object:
        silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        file = parse_topology(f'[servers]\ns1 = "tcp://127.0.0.1:{port}"\n[domains]\nA = {{ servers = ["s1"] }}\n')
        servers = RunningServers([file], slow=said.append)
        answer = await servers._answer(Command("s1", "change-look", ("", "")))
        silent.close()
        return answer

    assert asyncio.run(main()) is None
    assert said == ["server s1 has not answered for 0.01 s"]


@pytest.mark.parametrize("begun", [0, 7])
def test_ctrl_c_says_that_a_change_is_in_progress(
    begun: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new.toml"
    file.write_text(_more)

    async def drive(self: RunningServers, steps: Steps) -> Outcome:
        self.begun = begun
        raise KeyboardInterrupt

    monkeypatch.setattr(RunningServers, "drive", drive)
    assert run(["topology", "apply", str(file)]) == 130
    progress = "antecede: change 7 is in progress: run the same command again, or end it: antecede topology abort\n"
    assert capsys.readouterr().err == (progress if begun else "") + "antecede: interrupted\n"


def test_which_change_is_in_progress() -> None:
    system = _System(_three)
    wish = system.wish(topology({"A": "12", "B": "23"}, {"a": 3, "b": 2}), attempt="a")
    system.drive(carry_out(wish))
    begun = {one.name: one.begins for one in system.asked}
    assert begun["change-look"] == 0
    assert begun["change-pause"] == begun["change-stage"] == begun["change-commit"] == 1


def test_abort_prints_what_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "now.toml"
    file.write_text(_three)
    system = _System(_three)

    async def drive(self: RunningServers, steps: Steps) -> Outcome | None:
        return system.drive(steps)

    monkeypatch.setattr(RunningServers, "drive", drive)
    assert run(["topology", "abort", str(file)]) == 0
    epoch = parse_topology(_three).epoch
    assert capsys.readouterr().out.splitlines() == [
        "nothing to end: no change was in progress",
        f"in force: change 0, epoch {epoch}",
    ]
    system.drive(carry_out(system.wish(_more)), until="change-commit")
    system.silent = {"s3"}
    assert run(["topology", "abort", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "change": 0,
        "epoch": epoch,
        "ended": [{"change": 1, "state": "abandoned"}],
        "silent": ["s3"],
    }


def test_a_dry_run_asks_the_servers_that_need_new_classes() -> None:
    system = _System(_three)
    outcome = system.drive(carry_out(system.wish(_more, dry=True)))
    assert outcome is not None
    assert outcome.state == "planned"
    assert [one.server for one in system.asked if one.name == "change-classes"] == ["s1"]
    steps = carry_out(system.wish(_more, dry=True))
    looked = next(steps)
    assert not isinstance(looked, Wait)
    checked = steps.send([system._answer(one) for one in looked])
    assert not isinstance(checked, Wait)
    assert [one.name for one in checked] == ["change-classes"]
    with pytest.raises(StopIteration) as end:
        steps.throw(UsageError("cannot import x"))
    assert (end.value.value.state, end.value.value.refusals) == ("refused", ("cannot import x",))


def test_the_history_has_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "now.toml"
    file.write_text(topology({"A": "1"}, {}))
    when = datetime(2026, 5, 17, 8, 30, 1)
    epochs = [
        {"change": 0, "epoch": "e0", "since_ms": None},
        {"change": 1, "epoch": "e1", "since_ms": int(when.timestamp() * 1000)},
    ]
    answer = {"server": "s1", "epochs": epochs, "in_progress": None}
    monkeypatch.setattr("antecede.cli.servers.ask_server", lambda *given: dict(answer))
    assert run(["topology", "history", str(file)]) == 0
    assert capsys.readouterr().out == "s1: 0 e0, 1 e1 (2026-05-17 08:30:01)\n"

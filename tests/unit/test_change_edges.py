"""What happens between the first look of a change and its end: nothing that comes meanwhile is lost or overtaken."""

import asyncio
from base64 import b64decode
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from antecede import limits
from antecede.channel import Letter, Past
from antecede.engine import Following, Reaction
from antecede.errors import AntecedeError, OverloadError, TopologyError
from antecede.live.client.operator import RunningServers
from antecede.live.isolation import Setup, _host_of
from antecede.live.server import LiveChanges, ServerRuntime
from antecede.server import (
    OPERATOR,
    Abandoned,
    AgentServer,
    BusyServerError,
    ChangeRequest,
    Command,
    Committed,
    DeadLetters,
    Forgot,
    Input,
    Look,
    OnBehalf,
    Outcome,
    Participant,
    Paused,
    Published,
    Reacted,
    Refused,
    Replay,
    Staged,
    Wait,
    carry_out,
    recover,
)
from antecede.topology import parse_topology
from helpers.changing import topology
from helpers.summing import Sum
from worlds.changes import plan_of

_two = topology({"A": "12"}, {"a": 1, "b": 2})
_moved = topology({"A": "12"}, {"a": 2, "b": 2})


class _System:
    """Servers without a network, whose letters stay where they are."""

    def __init__(self, text: str, *more: str) -> None:
        """``more``: texts of topologies with further servers."""
        self.machines: dict[str, AgentServer] = {}
        self.prepared: list[list[str]] = []
        """The agents of each hand-over that was prepared."""
        for one in (text, *more):
            file = parse_topology(one)
            for number, name in enumerate(file.servers):
                if name not in self.machines:
                    machine = self.machines[name] = AgentServer(name, plan_of(file), number + 1)
                    machine.begin(file.epoch)

    def step(self, server: str, *inputs: Input) -> list[str]:
        """Take a step; return the agents that get letters."""
        return [due.agent for due in self.machines[server].step(list(inputs), 0.0, 1_000).due]

    def change(self, text: str, before: Callable[[Command], None] = lambda command: None) -> Outcome:
        """Make a change. ``before``: called before each command."""
        participants = {
            name: Participant(
                machine,
                lambda given, name=name: self.step(name, given) and None,  # type: ignore[misc]
                indices=lambda agents: self.prepared.append(agents) or {},  # type: ignore[func-returns-value]
            )
            for name, machine in self.machines.items()
        }
        steps = carry_out(ChangeRequest(parse_topology(text), tuple(self.machines), "system", 5_000))
        asked = next(steps)
        while True:
            answers: list[dict[str, object] | None] = []
            try:
                for command in [] if isinstance(asked, Wait) else asked:
                    before(command)
                    answers.append(participants[command.server].commands[command.name][1](*command.arguments))
                asked = steps.send(answers)
            except StopIteration as end:
                outcome: Outcome = end.value
                return outcome
            except AntecedeError as error:
                asked = steps.throw(error)


def _note(client: str, number: int, *to: str) -> Published:
    return Published(client, number, to, "Note", b"")


def _once(name: str, act: Callable[[], object]) -> Callable[[Command], None]:
    """Return a function that acts before the first command of this name."""
    done: list[object] = []

    def before(command: Command) -> None:
        if command.name == name and not done:
            done.append(act() or True)

    return before


def _kill(system: _System, server: str, agent: str) -> str:
    """Let the next letter of an agent die; return its key."""
    letter = system.machines[server].engine.mailboxes[agent][0]
    system.step(server, Reacted(agent, (Reaction(letter.id, dead="it failed"),), None, 1_000))
    return f"{letter.id} {agent}"


def test_a_client_that_comes_after_the_first_look_moves_along() -> None:
    system = _System(topology({"A": "123"}, {"a": 1, "b": 2}))
    without = topology({"A": "12"}, {"a": 1, "b": 2}, moved="3>2")
    outcome = system.change(without, _once("change-pause", lambda: system.step("s3", _note("carl", 1, "carl@s3"))))
    assert outcome.state == "done"
    assert system.machines["s2"].clients == {"carl": 1}
    assert len(system.machines["s2"].engine.mailboxes["carl@s3"]) == 1


def test_letters_that_come_for_a_removed_agent_after_the_first_look_stop_the_change() -> None:
    system = _System(_two)
    gone = topology({"A": "12"}, {"b": 2})
    with pytest.raises(TopologyError, match="a is removed, but has waiting or dead letters: 1"):
        system.change(gone, _once("change-pause", lambda: system.step("s1", _note("c", 1, "a"))))
    machine = system.machines["s1"]
    assert (machine.organisation.paused, machine.organisation.staged) == (0, None)
    assert len(machine.engine.mailboxes["a"]) == 1


def test_an_agent_of_a_server_without_peers_does_not_react_while_it_is_removed() -> None:
    system = _System(topology({"A": "1"}, {"a": 1, "b": 1}))
    system.step("s1", _note("c", 1, "b"))
    named: list[str] = []

    def before(command: Command) -> None:
        named.append(command.name)
        if command.name == "change-commit":
            # It is accepted, and waits; after the change nobody can handle it, and it is dead with a reason.
            system.step("s1", _note("c", 2, "a"))
            assert "a" not in system.machines["s1"].engine.mailboxes

    assert system.change(topology({"A": "1"}, {"b": 1}), before).state == "done"
    assert "change-pause" in named
    (dead,) = system.machines["s1"].engine.dead.values()
    assert "unknown agent" in dead.reason
    assert [letter.source for letter in system.machines["s1"].engine.mailboxes["b"]] == ["c@s1"]


def test_letters_that_came_early_for_a_new_agent_are_handed_out() -> None:
    system = _System(_two)
    more = topology({"A": "12"}, {"a": 1, "b": 2, "x": 1})
    engine, handed = system.machines["s1"].engine, []
    real = system.step

    def step(server: str, *inputs: Input) -> list[str]:
        handed.append((real(server, *inputs), system.machines[server].organisation.change))
        return handed[-1][0]

    def early() -> None:
        engine.deliver("x", Letter("s2.1", "b", ("x",), "Note", b""))
        step("s1")

    system.step = step  # type: ignore[method-assign]
    assert system.change(more, _once("change-commit", early)).state == "done"
    # At first there is nobody to handle it; the change brings the agent, and with it the letter.
    assert [change for agents, change in handed if "x" in agents] == [0, 1]


def test_clients_of_the_same_name_on_both_servers_are_refused() -> None:
    system = _System(topology({"A": "123"}, {"a": 1, "b": 2}))
    system.step("s2", _note("carl", 1, "a"), _note("carl", 2, "a"))
    system.step("s3", _note("carl", 1, "carl@s3"))
    without = topology({"A": "12"}, {"a": 1, "b": 2}, moved="3>2")
    # Nothing is in transit before the change: the letters to a are acknowledged by hand.
    for machine in system.machines.values():
        machine.channel.in_transit = lambda domains: ""  # type: ignore[method-assign]
    with pytest.raises(TopologyError, match="client carl@s3 cannot move to server s2, which has another client carl"):
        system.change(without)
    assert system.machines["s2"].clients == {"carl": 2}
    assert system.machines["s3"].clients == {"carl": 1}


def test_addresses_of_a_removed_server_are_known_from_the_start() -> None:
    """A machine that continues from a snapshot, and the process of an isolated agent, apply no change."""
    text = topology({"A": "12"}, {"a": 1, "b": 2}, moved="3>2").replace("nowhere:Agent", "antecede:Topic")
    machine = AgentServer("s1", plan_of(parse_topology(text)), 1)
    assert machine.channel.check(("carl@s3",)) == ("carl@s3",)
    line: Any = None
    host = _host_of(Setup("s1", "a", "antecede:Topic", text), line)
    assert host.check(("carl@s3",)) == ("carl@s3",)


def test_the_operators_own_client_does_not_move() -> None:
    system = _System(topology({"A": "123"}, {"a": 1, "b": 2, "c": 3}))
    system.step("s3", _note("carl", 1, "c"))
    key = _kill(system, "s3", "c")
    system.step("s3", Replay(key, ("c",), OPERATOR))
    assert system.machines["s3"].clients == {"carl": 1, OPERATOR: 1}
    assert system.change(topology({"A": "12"}, {"a": 1, "b": 2, "c": 1}, moved="3>2")).state == "done"
    assert system.machines["s2"].clients == {"carl": 1}
    assert [letter.replays for letter in system.machines["s1"].engine.mailboxes["c"]] == [key.split()[0]]


def test_a_server_that_has_staged_a_change_still_takes_letters_of_the_topology_in_force() -> None:
    """Others may have abandoned the change already."""
    system = _System(topology({"A": "123"}, {"a": 3, "b": 2}))
    without = topology({"A": "12"}, {"a": 1, "b": 2}, moved="3>1")
    channel = system.machines["s2"].channel
    seen: list[tuple[str, str]] = []
    act = _once("change-left", lambda: seen.append((channel._addresses.origin("a"), channel._addresses.home("c@s3"))))
    assert system.change(without, act).state == "done"
    assert seen == [("s3", "s3")]
    assert (channel._addresses.origin("a"), channel._addresses.home("c@s3")) == ("s1", "s1")


def test_a_server_that_is_being_removed_sends_nothing() -> None:
    """It would wait there for ever."""
    system = _System(_two)
    machine = system.machines["s1"]
    system.step("s1", _note("c", 1, "a"))
    key = _kill(system, "s1", "a")
    system.step("s1", Paused(1, ["A"], [], True))
    system.step("s1", Replay(key, ("a",), OPERATOR))
    system.step("s1", OnBehalf("c@s1", ("b",), "Note", b"", OPERATOR))
    assert list(machine.engine.dead) == [key]
    assert machine.channel.pausing is not None
    assert not machine.channel.pausing.waiting
    (reply,) = machine.step([_note("c", 2, "b")], 0.0, 1_000).replies
    assert isinstance(reply, Refused)


def test_dead_letters_of_an_agent_that_moves_are_not_sent_again() -> None:
    """They would wait on the old server, and come from there in the name of a sender that lives elsewhere."""
    system = _System(_two)
    machine = system.machines["s1"]
    system.step("s1", _note("c", 1, "a"))
    key = _kill(system, "s1", "a")
    system.step("s1", Paused(1, ["A"], ["a"]), Replay(key, ("a",), OPERATOR))
    assert list(machine.engine.dead) == [key]
    with pytest.raises(OverloadError, match="agent a is being moved or removed"):
        DeadLetters(machine, lambda given: None).replay(key)
    system.step("s1", Abandoned(1), Replay(key, ("a",), OPERATOR))
    assert not machine.engine.dead


def test_questions_of_an_agent_that_moves_do_not_expire() -> None:
    """The notice to the asker would wait on the server that the agent leaves."""
    limit = "[mailboxes]\na = { letters = 1 }\n"
    system = _System(_two.replace("[agents]", limit + "[agents]"))
    machine = system.machines["s1"]
    system.step("s1", Paused(1, ["A"], ["a"]))
    for number in range(3):
        # They were in transit.
        machine.engine.deliver("a", Letter(f"s2.{number}", "b", ("a",), "Note", b"", ask="b?"))
    system.step("s1", Look())
    assert len(machine.engine.mailboxes["a"]) == 3
    system.step("s1", Abandoned(1), Look())
    assert len(machine.engine.mailboxes["a"]) == 1


def test_what_follows_from_a_dead_letter_is_held_across_a_change() -> None:
    """The counts of a domain begin again with a change: compared with those before it, nothing would follow."""
    following = Following()
    following.agents.add("a")

    def came(id_: str, source: str, count: int) -> Letter:
        letter = Letter(id_, source, ("a",), "Note", b"")
        following.came("a", letter)
        following.pasts[f"{id_} a"] = Past("A", 1, (0, count, 0))
        return letter

    dead = came("m", "b", 7)
    following.block("a", "m a", dead, [])
    assert not following.holds("a", came("other", "c", 6))
    assert following.holds("a", came("later", "d", 7))
    following.keep(set())
    assert following.holds("a", came("afterwards", "e", 1))


def test_letters_are_held_where_the_agent_is() -> None:
    hold = 'class = "nowhere:Agent", dead_follow = "hold"'
    system = _System(_two.replace('a = { server = "s1", class = "nowhere:Agent"', f'a = {{ server = "s1", {hold}'))
    assert system.machines["s1"].engine.following.agents == {"a"}
    moved = _moved.replace('a = { server = "s2", class = "nowhere:Agent"', f'a = {{ server = "s2", {hold}')
    outcome = system.change(moved)
    assert outcome.state == "done"
    assert [machine.engine.following.agents for machine in system.machines.values()] == [set(), {"a"}]


def test_letters_that_are_held_since_the_first_look_stop_the_change() -> None:
    hold = 'class = "nowhere:Agent", dead_follow = "hold"'
    system = _System(_two.replace('a = { server = "s1", class = "nowhere:Agent"', f'a = {{ server = "s1", {hold}'))
    system.step("s1", _note("c", 1, "a"), _note("c", 2, "a"))
    with pytest.raises(TopologyError, match="a has letters that are held behind a dead one"):
        system.change(_moved, _once("change-pause", lambda: _kill(system, "s1", "a")))
    assert system.machines["s1"].engine.following.count() == 1
    assert system.machines["s1"].organisation.staged is None


def test_the_settings_of_mailboxes_act_with_the_change() -> None:
    """And after a restart those of the file, which may have been edited."""
    old = parse_topology(topology({"A": "12"}, {"a": 1}))
    new, edited = [
        parse_topology(topology({"A": "12"}, {"a": 1, "x": 2}, more=f"[mailboxes]\na = {{ letters = {letters} }}"))
        for letters in (3, 1)
    ]
    machine = AgentServer("s1", plan_of(old), 1)
    records = [machine.begin(old.epoch)]

    def step(*given: Input) -> None:
        record = machine.step(list(given), 0.0, 1).record
        assert record is not None
        records.append(record)

    step(*(Published("alice", number, ("a",), "Note", b"") for number in range(1, 7)))
    machine.engine.abandon("a")
    step(Staged("system", 1, new.text(), {}, "s1", [], 0, "t"))
    step(Committed(1, 0, "t"))
    machine.engine.abandon("a")
    step(Look())
    assert len(machine.engine.mailboxes["a"]) == 3
    machine = AgentServer("s1", plan_of(edited), 1)
    recover(machine, None, records, edited.epoch, 0.0)
    machine.engine.abandon("a")
    step(Look())
    assert len(machine.engine.mailboxes["a"]) == 1


def test_a_hand_over_is_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each of its pages, so the time is in proportion to the letters."""
    monkeypatch.setattr(limits, "change_page_bytes", 64)
    system, pages = _System(topology({"A": "12"}, {"a": 1, "b": 2})), []
    system.step("s1", *(Published("alice", number, ("a",), "Note", b"n" * 500) for number in range(1, 11)))
    system.change(topology({"A": "12"}, {"a": 2, "b": 2}), lambda command: pages.append(command.name))
    assert pages.count("change-left") > 50
    assert system.prepared == [["a"]]


@pytest.mark.parametrize("sources", [1, 2])
def test_the_most_that_agents_may_take_along(monkeypatch: pytest.MonkeyPatch, sources: int) -> None:
    """All that comes to one server counts, from whichever servers."""
    monkeypatch.setattr(limits, "change_page_bytes", 64)
    received: list[tuple[str, int]] = []

    def count(command: Command) -> None:
        if command.name == "change-receive":
            received.append((command.arguments[2], len(b64decode(command.arguments[3]))))

    def change() -> Outcome:
        agents = {"a": 1, "c": 3} if sources == 2 else {"a": 1}
        system = _System(topology({"A": "123"}, {**agents, "b": 2}))
        for agent, server in agents.items():
            system.step(f"s{server}", Published("alice", 1, (agent,), "Note", b"n" * 500))
        received.clear()
        return system.change(topology({"A": "123"}, {**dict.fromkeys(agents, 2), "b": 2}), count)

    assert change().state == "done"
    assert len(received) > 5 * sources, "it is handed over page by page"
    # Several belongings are sent as a list: its head has one byte, and counts until the last page has come.
    kept = sum(size for _, size in received) - (sources - 1)
    monkeypatch.setattr(limits, "change_bytes_max", kept)
    assert change().state == "done"
    monkeypatch.setattr(limits, "change_bytes_max", kept - 1)
    with pytest.raises(TopologyError, match="server s2 gets more than 0 MiB from other servers"):
        change()


def test_a_server_that_is_not_needed_and_cannot_write_is_left_out() -> None:
    """Its disk is full: it answers, and the driver has tried for long enough."""
    system = _System(topology({"A": "12", "B": "23", "C": "34"}, {"a": 1, "b": 2}))
    new = topology({"A": "12", "B": "23", "C": "34"}, {"a": 1, "b": 2, "x": 2})
    abandoned = []

    def before(command: Command) -> None:
        if command.name == "change-abandon":
            abandoned.append(command.server)
        if command.server == full and command.name in ("change-stage", "change-abandon"):
            raise BusyServerError(full, "it cannot write its log")

    full = "s4"
    outcome = system.change(new, before)
    assert (outcome.state, outcome.absent, abandoned) == ("done", ("s4",), ["s1", "s2", "s3"])
    full, abandoned = "s2", []
    with pytest.raises(BusyServerError, match="cannot write its log"):
        system.change(topology({"A": "12", "B": "23", "C": "34"}, {"a": 1, "b": 2, "x": 2, "y": 2}), before)
    assert abandoned == ["s1", "s3", "s4"]


def test_an_operator_says_which_server_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(self: RunningServers, command: Command) -> dict[str, object]:
        raise OverloadError("cannot write its log")

    monkeypatch.setattr(RunningServers, "_ask", ask)
    monkeypatch.setattr("antecede.live.client.operator._busy_seconds_max", 0.0)
    error = asyncio.run(RunningServers([])._answer(Command("s4", "change-stage")))
    assert isinstance(error, BusyServerError)
    assert (error.server, str(error)) == ("s4", "cannot write its log")


def test_servers_that_began_with_different_files_are_named() -> None:
    system = _System(_two)
    file = parse_topology(_moved)
    other = system.machines["s2"] = AgentServer("s2", plan_of(file), 2)
    other.begin(file.epoch)
    with pytest.raises(TopologyError, match=f"epochs: {parse_topology(_two).epoch} at s1; {file.epoch} at s2"):
        system.change(topology({"A": "12"}, {"a": 1, "b": 1}))


def test_given_classes_are_not_imported_for_a_staged_change() -> None:
    errors: list[dict[str, Any]] = []
    staged = Staged("system", 1, _moved, {}, "s1", [], 0, "t")
    machine = SimpleNamespace(organisation=SimpleNamespace(staged=staged, came=[]))
    log = SimpleNamespace(error=lambda event, **fields: errors.append(fields))
    runtime = cast(ServerRuntime, SimpleNamespace(name="s2", machine=machine, log=log))
    LiveChanges(runtime, {"a": Sum, "b": Sum}).import_staged()
    assert errors == []
    LiveChanges(runtime, None).import_staged()
    assert len(errors) == 1, "the module nowhere does not exist"


def test_a_reset_does_not_hand_out_what_waits_for_the_end_of_a_change() -> None:
    """Such a letter was never sent into the domain with a total order, so it cannot have been lost there."""
    system = _System(topology({"A": "12"}, {"a": 1, "b": 2}, {"A": "skeen"}))
    machine = system.machines["s1"]
    system.step("s1", Paused(1, ["A"], []))
    system.step("s1", Published("alice", 1, ("a", "b"), "Note", b""))
    assert system.step("s1", Forgot("A", 1)) == [], "no agent gets the letter yet"
    assert machine.channel.letters_waiting == 1
    machine.channel.resume()
    machine.collect()
    assert [len(machine.engine.mailboxes.get(agent, ())) for agent in ("a", "b")] == [0, 0], "it travels now"

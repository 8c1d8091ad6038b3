"""Tries that survive a crash, and the rules around handlers that do not return."""

import asyncio
from mmap import mmap
from typing import Any

import pytest

from antecede import limits
from antecede.channel import Letter
from antecede.engine import (
    Agent,
    Context,
    Engine,
    Host,
    Notification,
    Outcome,
    React,
    Reaction,
    Subscribe,
    Topic,
    Tries,
)
from antecede.errors import AgentError, TopologyError, UnknownAgentError
from antecede.live.reactions import NAME, CallsFile
from antecede.server import Progress, Retries, Watchdog, interrupted, size_of
from antecede.topology import parse_topology


class _Log:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.events.append((event, fields))

    warning = error = info


def _letter(id_: str, agent: str = "a", body: bytes = b"\x80") -> Letter:
    return Letter(id_, "c@s1", (agent,), "Ping", body)


def _engine(*ids: str, agent: str = "a") -> Engine:
    engine = Engine()
    for id_ in ids:
        engine.deliver(agent, _letter(id_, agent))
    return engine


def _ids(due: list[React]) -> list[list[str]]:
    return [[letter.id for letter in one.letters] for one in due]


def _progress(memory: bytearray, life: int = 7) -> Progress:
    def grow(size: int) -> bytearray:
        memory.extend(bytes(size - len(memory)))
        return memory

    return Progress(memory, "boot", life, grow)


# Suspects.


def test_a_suspect_is_handed_out_alone_and_the_others_as_before() -> None:
    engine = _engine("1", "2", "3", "4", "5")
    engine.tries.suspect("a", "3")
    handed = []
    while engine.ready:
        (due,) = engine.due()
        handed += _ids([due])
        engine.finish("a", tuple(Reaction(letter.id) for letter in due.letters), None)
    assert handed == [["1", "2"], ["3"], ["4", "5"]]


def test_tries_survive_a_snapshot_and_end_with_the_letter() -> None:
    engine = _engine("1", "2")
    engine.tries.ended(7, [("a", "1"), ("b", "9")])
    again = Engine()
    again.load(engine.dump())
    assert (again.tries.of("a", "1"), again.tries.of("b", "9"), again.tries.life) == (1, 1, 7)
    assert again.tries.is_careful("a", "2")
    again.tries.resumed()
    again.tries.ended(8, [("c", "3")])
    assert again.tries.is_careful("a", "2"), "two agents may end the process by turns"
    again.tries.resumed()
    assert again.tries.is_careful("a", "1"), "a suspect"
    assert not again.tries.is_careful("a", "2"), "the last life did not end during a call"
    again.due()
    again.finish("a", (Reaction("1"),), None)
    assert again.tries.of("a", "1") == 0
    assert again.tries.of("b", "9") == 1


def test_letters_that_never_come_again_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "tried_letters_max", 3)
    tries = Tries()
    for number in range(5):
        tries.ended(number, [("a", str(number))])
    assert list(tries.counts) == ["2 a", "3 a", "4 a"]
    assert not tries.is_suspect("a", "0")


def test_suspects_run_one_after_the_other_and_die_after_their_tries() -> None:
    engine = _engine("1")
    engine.deliver("b", _letter("2", "b"))
    retries = Retries(engine, lambda to: to, _Log())
    for _ in range(limits.reaction_tries_max - 1):
        engine.tries.ended(7, [("a", "1"), ("b", "2")])
    batches = engine.due()
    assert not any(retries.admit(due, 0.0) for due in batches), "they wait for their pause"
    (first,) = retries.due(100.0)
    assert retries.due(100.0) == [], "the other waits for it"
    retries.settle(first, Outcome(first.agent, [Reaction(first.letters[0].id)], None), 100.0)
    (second,) = retries.due(100.0)
    assert {first.agent, second.agent} == {"a", "b"}
    assert retries.exhausted(second) is None
    engine.tries.ended(8, [(second.agent, second.letters[0].id)])
    dead = retries.exhausted(second)
    assert dead is not None
    assert dead.dead == "the process ended 5 times while it was handled"


def test_no_letter_dies_of_failures_while_agents_are_being_added() -> None:
    engine, undecided = _engine("1"), [True]
    retries = Retries(engine, lambda to: to, _Log(), lambda: undecided[0])
    (due,) = engine.due()

    def fail() -> list[Reaction]:
        return retries.settle(due, Outcome("a", [], None, UnknownAgentError("unknown agent 'x'")), 0.0)

    for _ in range(3 * limits.reaction_tries_max):
        assert fail() == []
        assert retries.due(100.0) == [due]
    undecided[0] = False
    (dead,) = fail()
    assert dead.dead == "UnknownAgentError: unknown agent 'x'"


def test_the_rest_of_a_worker_s_batch_runs_again_uncounted() -> None:
    engine = _engine("1", "2", "3")
    retries = Retries(engine, lambda to: to, _Log())
    (due,) = engine.due()
    assert retries.settle(due, Outcome("a", [], None, AgentError("ended"), 1), 0.0) == []
    (due,) = engine.due()
    assert _ids([due]) == [["1"]]
    assert retries.admit(due, 0.0)
    engine.finish("a", tuple(retries.settle(due, Outcome("a", [Reaction("1")], None), 0.0)), None)
    (due,) = engine.due()
    assert _ids([due]) == [["2"]]
    assert not retries.admit(due, 0.0)
    assert retries.tries["a"] == ("2", 1), "its try was kept while the letter before it was handled"
    for _ in range(limits.reaction_tries_max - 1):
        (due,) = retries.due(100.0)
        reactions = retries.settle(due, Outcome("a", [], None, AgentError("ended"), 0), 100.0 - 50)
    assert [reaction.letter for reaction in reactions] == ["2"]
    assert reactions[0].dead
    engine.finish("a", tuple(reactions), None)
    assert _ids(engine.due()) == [["3"]]


# Shared memory.

_magics = (b"acalls01", b"acalls02")


def test_letters_with_ids_that_are_too_long_are_not_named() -> None:
    """A peer chooses the ids of its letters; the memory of a server is a file of a fixed size."""
    with mmap(-1, size_of(8)) as memory:
        progress = Progress(memory, "boot", 7, lambda slots: None)
        slot = progress.begin("a")
        for letter in ("1" * 300, "2" * 300, "s1.1.1", "s1.1.2"):
            progress.at(slot, letter)
        assert interrupted(memory[:], "boot").calls == (("a", "s1.1.2"),)
        for letter in ("1" * 300, "2" * 300):
            progress.at(slot, letter)
        assert interrupted(memory[:], "boot").calls == ()


def test_the_calls_in_progress_are_found_and_the_running_one_first() -> None:
    memory = bytearray(size_of(1))
    progress = _progress(memory)
    one, other = progress.begin("a"), progress.begin("ü" * 100)
    progress.at(one, "s1.1.1")
    progress.at(one, "s1.1.2")
    progress.at(other, "s1.1.3")
    assert interrupted(memory, "boot").calls == (("a", "s1.1.2"), ("ü" * 100, "s1.1.3"))
    assert interrupted(memory, "boot").life == 7
    progress.on(other)
    assert interrupted(memory, "boot").calls == (("ü" * 100, "s1.1.3"),)
    progress.off()
    progress.end(one)
    assert interrupted(memory, "boot").calls == (("ü" * 100, "s1.1.3"),)
    assert interrupted(memory, "another boot").calls == (), "a power cut counts nothing"
    assert interrupted(memory, "").calls == ()
    progress.clear()
    assert interrupted(memory, "boot").calls == ()


def test_a_plain_call_counts_while_it_runs_and_not_after_it() -> None:
    memory = bytearray(size_of(1))
    progress = _progress(memory)
    waiting = progress.begin("w")
    progress.at(waiting, "9")
    seen = []
    for agent, letter in (("a", "s1.1.1"), ("a", "s1.1.2"), ("b", "s1.1.30"), ("x" * 3_000, "1"), ("b", "9" * 999)):
        progress.call(agent, letter)
        seen.append((progress.running, interrupted(memory, "boot").calls))
        progress.then("s1.1.4")
        seen.append((progress.running, interrupted(memory, "boot").calls))
        progress.off()
        assert progress.running is None
        assert interrupted(memory, "boot").calls == (("w", "9"),), "only the call that waits"
    assert [calls for _, calls in seen] == [
        *((("a", "s1.1.1"),), (("a", "s1.1.4"),), (("a", "s1.1.2"),), (("a", "s1.1.4"),)),
        *((("b", "s1.1.30"),), (("b", "s1.1.4"),)),
        *((("w", "9"),), (("w", "9"),)),  # A name that is too long cannot be written, so any call may have done it.
        *((), (("b", "s1.1.4"),)),
    ]
    assert seen[2][0] == ("a", "s1.1.2")
    assert seen[6][0] == ("x" * 3_000, "1"), "the watchdog sees it nevertheless"


def test_names_at_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "calls_named_max", 4)
    memory = bytearray(size_of(1))
    progress = _progress(memory)
    slots = [progress.begin(f"a{number}") for number in range(6)]
    assert slots[4:] == [-1, -1], "further calls are not named"
    for slot in slots:
        progress.at(slot, "1")
    assert len(interrupted(memory, "boot").calls) == 4
    progress.end(slots[0])
    assert progress.begin("x" * 3_000) == -1
    slot = progress.begin("x")
    progress.at(slot, "9" * 1_000)
    assert len(interrupted(memory, "boot").calls) == 3, "an id that is no id is not cut"


@pytest.mark.parametrize("content", [b"", b"\0" * 64, b"x" * 5_000, *(one + b"\xff" * 4_000 for one in _magics)])
def test_any_content_of_the_file_is_read(content: bytes) -> None:
    assert interrupted(content, "boot").calls == ()


def test_the_file_is_private_and_gone_after_a_clean_end(tmp_path: Any) -> None:
    log = _Log()
    calls = CallsFile(str(tmp_path), log)
    assert calls.ended().calls == ()
    progress = calls.begin(5)
    slots = [progress.begin(f"a{number}") for number in range(100)]
    for slot in slots:
        progress.at(slot, "1")
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
    ended = CallsFile(str(tmp_path), log).ended()
    assert (ended.life, len(ended.calls)) == (5, 100)
    calls.close()
    assert not (tmp_path / NAME).exists()
    assert not log.events
    nowhere = CallsFile(str(tmp_path / "missing"), log)
    assert nowhere.begin(6).begin("a") > 0
    assert log.events[0][0] == "calls-not-named"
    assert CallsFile(None, log).begin(6).begin("a") > 0


# The watchdog.


def test_a_call_is_logged_ever_more_rarely_and_then_must_end() -> None:
    watchdog = Watchdog(lambda agent: 30.0)
    seen = [(second, watchdog.look(("a", "1"), 4, float(second))) for second in range(40)]
    assert [(at, slow.ends) for at, slow in seen if slow is not None][:4] == [
        (5, False),
        (10, False),
        (20, False),
        (30, True),
    ]
    assert watchdog.look(None, 4, 100.0) is None
    assert watchdog.look(("a", "2"), 5, 101.0) is None, "another call begins again"
    assert watchdog.look(("a", "2"), 5, 103.0) is None
    assert watchdog.look(("a", "3"), 5, 140.0) is None, "the next letter of the same batch"


# The host.


class Ping(Notification):
    pass


class Big(Agent):
    text: str = ""

    def on_ping(self, ping: Ping, ctx: Context) -> None:
        self.text += "x" * 100


def _react(host: Host, agent: str, count: int, state: bytes | None = None) -> Outcome:
    letters = tuple(_letter(str(number), agent) for number in range(count))
    return host.react(React(agent, letters, ("",) * count, state))


def test_a_state_above_its_bound_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host("s1", lambda to: to)
    host.declare("a", Big)
    large = _react(host, "a", 5).state
    monkeypatch.setattr(limits, "agent_state_bytes_max", len(large or b""))
    host.forget("a")
    assert _react(host, "a", 5).failure is None, "exactly the bound"
    outcome = _react(host, "a", 1, large)
    size = len(large or b"") + 100
    assert str(outcome.failure) == f"agent a: the state of Big has {size} bytes: at most 509 are allowed"
    monkeypatch.setattr(limits, "agent_state_bytes_max", 100)
    with pytest.raises(AgentError, match="at most 100"):
        Context("a", "s1", _letter("1")).create("c", Big(text="x" * 200))


def test_a_batch_of_slow_handlers_is_cut_so_that_others_have_their_turn() -> None:
    host = Host("s1", lambda to: to)
    host.declare("a", Big)
    ticks = iter(range(100))
    host.share_time(lambda: float(next(ticks)), 2.5)
    outcome = _react(host, "a", 9)
    assert len(outcome.reactions) == 4, "the rest is handed out again"
    assert outcome.failure is None
    assert outcome.state is not None
    assert outcome.state.count(b"x" * 400) == 1


def test_topics_have_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "agent_state_bytes_max", 10)
    host = Host("s1", lambda to: to)
    host.declare("t", Topic)
    letter = Letter("1", "a-long-name@s1", ("t",), "Subscribe", b"\x80")
    assert Subscribe is not None
    assert host.react(React("t", (letter,), ("",), None)).failure is None


def test_an_async_batch_runs_only_while_it_has_the_loop() -> None:
    class Waiting(Agent):
        async def on_ping(self, ping: Ping, ctx: Context) -> None:
            seen.append(progress.running)
            await waiting.wait()
            seen.append(progress.running)

    waiting = asyncio.Event()
    seen: list[tuple[str, str] | None] = []
    memory = bytearray(size_of(1))
    progress = _progress(memory)
    host = Host("s1", lambda to: to)
    host.declare("a", Waiting)
    host.progress = progress

    async def main() -> None:
        task = asyncio.create_task(host.react_async(React("a", (_letter("1"), _letter("2")), ("", ""), None)))
        while not seen:
            await asyncio.sleep(0)
        seen.append(progress.running)
        assert interrupted(memory, "boot").calls == (("a", "1"),)
        waiting.set()
        assert (await task).failure is None

    asyncio.run(main())
    assert seen == [("a", "1"), None, ("a", "1"), ("a", "2"), ("a", "2")]
    assert interrupted(memory, "boot").calls == ()


# The topology.

_file = """
[servers]
s1 = "tcp://127.0.0.1:7101"
[domains]
A = { servers = ["s1"], order = "pruned" }
[application]
%s
[agents]
a = { server = "s1", class = "m:A"%s }
"""


def test_settings_of_reactions_are_read_and_written_and_leave_the_epoch() -> None:
    plain = parse_topology(_file % ("", ""))
    assert plain.reactions.limit("a") == limits.reaction_seconds_max
    assert not plain.reactions.isolated
    given = parse_topology(_file % ("reaction_seconds_max = 60", ', isolate = "process", reaction_seconds_max = 0.5'))
    assert (given.reactions.limit("a"), given.reactions.limit("b")) == (0.5, 60)
    assert given.reactions.isolated == {"a"}
    assert given.epoch == plain.epoch
    assert parse_topology(given.text()).reactions == given.reactions


@pytest.mark.parametrize(
    ("application", "agent", "expected"),
    [
        ("", ', isolate = "thread"', "agent a: isolate = 'thread': expected none or process"),
        ("", ", isolate = 3", "agent a: isolate = 3: expected none or process"),
        ("", ", reaction_seconds_max = 0", "agent a: reaction_seconds_max = 0: expected seconds, more than 0"),
        ("", ", reaction_seconds_max = 1e9", "expected seconds, more than 0 and at most 86400"),
        ("reaction_seconds_max = true", "", "reaction_seconds_max = True: expected seconds"),
        ('reaction_seconds_max = "5"', "", "reaction_seconds_max = '5': expected seconds"),
    ],
)
def test_settings_that_make_no_sense(application: str, agent: str, expected: str) -> None:
    with pytest.raises(TopologyError, match=expected):
        parse_topology(_file % (application, agent), "t.toml")


def test_objects_cannot_be_isolated() -> None:
    text = (_file % ("", "")).replace('server = "s1", class', 'servers = ["s1"], isolate = "process", class')
    with pytest.raises(TopologyError, match="object a: isolate is only for agents; remove it"):
        parse_topology(text)

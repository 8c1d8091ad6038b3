"""Letters that follow from a dead one are held until an operator has decided; others are handled."""

from typing import Any

import pytest

from antecede.engine import Reaction
from antecede.link import Frame
from antecede.orders import parse
from antecede.server import (
    AgentServer,
    Buried,
    DeadLetters,
    FromPeer,
    Look,
    Plan,
    Published,
    Reacted,
    Replay,
    Tried,
    resume,
)
from antecede.topology import Domain, Mailboxes, Quota, Topology

_names = ("s1", "s2", "s3")


class World:
    """Three servers of one domain; agent a lives on s3 and holds what follows from its dead letters."""

    def __init__(self, order: str = "pruned", hold: bool = True, quota: Quota | None = None) -> None:
        named = {} if quota is None else {"a": quota}
        mailboxes = Mailboxes(named=named, hold=frozenset({"a"} if hold else ()))
        homes = {"a": "s3", "b": "s2", "c": "s3"}
        self.plan = Plan(Topology([Domain("A", _names)]), {"A": parse(order)}, homes, mailboxes=mailboxes)
        self.servers = {name: AgentServer(name, self.plan, place + 1) for place, name in enumerate(_names)}
        self.logs: dict[str, list[bytes]] = {name: [server.begin("")] for name, server in self.servers.items()}
        self.numbers: dict[str, int] = {}

    def step(self, name: str, *inputs: Any) -> None:
        """Take a step; all frames travel at once."""
        step = self.servers[name].step(list(inputs), 0.0, 0)
        if step.record is not None:
            self.logs[name].append(step.record)
        for one in step.outgoing:
            if isinstance(one.content, Frame):
                self.step(one.peer, FromPeer(one.domain, name, one.content))

    def send(self, client: str, *to: str) -> None:
        number = self.numbers[client] = self.numbers.get(client, 0) + 1
        name, _, server = client.partition("@")
        self.step(server, Published(name, number, to, "T", client.encode() + str(number).encode()))

    def react(self, agent: str, dead: str = "") -> str:
        """Let an agent react to its next letter; return what that was."""
        home = self.plan.homes[agent]
        letter = self.servers[home].engine.mailboxes[agent][0]
        self.step(home, Reacted(agent, (Reaction(letter.id, dead=dead),), None, 0))
        return letter.body.decode()

    @property
    def waiting(self) -> list[str]:
        return [letter.body.decode() for letter in self.servers["s3"].engine.mailboxes.get("a", ())]

    @property
    def held(self) -> list[str]:
        return [letter.body.decode() for letter in self.servers["s3"].engine.following.held.get("a", ())]

    def check_replay(self) -> None:
        """The log gives the same state again, and so does a snapshot."""
        for name, server in self.servers.items():
            again, restored = (AgentServer(name, self.plan, server.incarnation) for _ in range(2))
            for record in self.logs[name]:
                again.replay(record, 0.0)
            restored.restore(server.snapshot(), 0.0)
            assert again.engine.dump() == restored.engine.dump() == server.engine.dump()
            assert restored.engine.following.dump().agents == self.plan.holding(name)


@pytest.mark.parametrize("order", ["pruned", "matrix"])
def test_what_follows_is_held_and_what_does_not_is_handled(order: str) -> None:
    world = World(order)
    world.send("x@s1", "a", "b")
    world.send("y@s2", "a")  # s2 has received x1: it may follow
    world.send("z@s3", "c")
    assert world.react("a", dead="no handler") == "x@s11"
    assert (world.waiting, world.held) == ([], ["y@s21"])
    world.send("x@s1", "a")
    assert world.held == ["y@s21", "x@s12"]
    shown = DeadLetters(world.servers["s3"], lambda given: None).list()
    assert [(one["holds"], one["undecided"]) for one in shown] == [(2, 1)]
    world.check_replay()
    (key,) = world.servers["s3"].engine.dead
    world.step("s3", Buried(key))
    assert (world.waiting, world.held) == (["y@s21", "x@s12"], [])
    world.check_replay()


@pytest.mark.parametrize("order", ["pruned", "matrix"])
def test_a_concurrent_letter_is_not_held(order: str) -> None:
    world = World(order)
    world.send("x@s1", "a")
    world.send("y@s2", "a")
    world.react("a", dead="no handler")
    assert (world.waiting, world.held) == (["y@s21"], [])
    world.send("y@s2", "a")
    world.send("x@s1", "b")
    world.send("y@s2", "a")  # now s2 has received a letter that x sent after the dead one
    assert (world.waiting, world.held) == (["y@s21", "y@s22"], ["y@s23"])
    world.check_replay()


def test_stamps_that_do_not_tell_hold_everything() -> None:
    world = World("updates")
    world.send("x@s1", "a")
    world.send("y@s2", "a")
    world.react("a", dead="no handler")
    assert (world.waiting, world.held) == ([], ["y@s21"])


def test_a_letter_that_may_follow_from_a_held_one_is_held() -> None:
    """A letter of this server has no stamp, so it is held, and then whatever comes may follow from it."""
    world = World()
    world.send("x@s1", "a")
    world.react("a", dead="no handler")
    world.send("z@s3", "a")
    world.send("y@s2", "a")
    assert (world.waiting, world.held) == ([], ["z@s31", "y@s21"])


def test_a_letter_that_is_sent_again_comes_before_what_follows_from_it() -> None:
    world = World()
    world.send("x@s1", "a")
    world.send("x@s1", "a")
    world.react("a", dead="no handler")
    (key,) = world.servers["s3"].engine.dead
    world.step("s3", Replay(key, ("a",), "operator"))
    assert (world.waiting, world.held) == (["x@s11", "x@s12"], [])
    world.react("a", dead="again")
    assert (world.waiting, world.held) == ([], ["x@s12"])
    world.check_replay()


def test_each_dead_letter_needs_a_decision() -> None:
    world = World()
    world.send("x@s1", "a")
    world.send("y@s2", "a")
    world.react("a", dead="one")
    world.react("a", dead="two")
    world.send("x@s1", "a")
    world.send("y@s2", "a")
    assert world.held == ["x@s12", "y@s22"]
    one, two = world.servers["s3"].engine.dead
    world.step("s3", Buried(one))
    assert (world.waiting, world.held) == (["x@s12"], ["y@s22"])
    world.step("s3", Buried(two))
    assert world.waiting == ["x@s12", "y@s22"]
    world.check_replay()


def test_agents_deliver_unless_the_file_says_hold() -> None:
    world = World(hold=False)
    world.send("x@s1", "a")
    world.send("x@s1", "a")
    world.react("a", dead="no handler")
    assert world.waiting == ["x@s12"]


def test_letters_that_are_sent_again_do_not_overtake_each_other() -> None:
    world = World(quota=Quota(1))
    for _ in range(3):
        world.send("x@s1", "a")
    world.react("a", dead="no handler")
    world.step("s3", Look())
    died, expired = world.servers["s3"].engine.dead
    world.step("s3", Replay(expired, ("a",), "dead-letters"))
    assert (world.waiting, world.held) == (["x@s12"], ["x@s13"]), "the operator has decided: it is not held"
    world.step("s3", Replay(died, ("a",), "dead-letters"))
    assert world.waiting == ["x@s12", "x@s11", "x@s13"]
    world.check_replay()


def test_a_setting_that_changes_lets_held_letters_go() -> None:
    world = World()
    world.send("x@s1", "a")
    world.send("x@s1", "a")
    world.react("a", dead="no handler")
    other = World(hold=False).plan
    again = AgentServer("s3", other, 3)
    for record in world.logs["s3"]:
        again.replay(record, 0.0)
    assert again.engine.following.held, "the log decides"
    resume(again)
    assert [letter.body for letter in again.engine.mailboxes["a"]] == [b"x@s12"]


def test_held_letters_count_as_waiting() -> None:
    world = World()
    for _ in range(4):
        world.send("x@s1", "a")
    server = world.servers["s3"]
    world.react("a", dead="no handler")
    assert server.backlog().letters == 3
    held = server.engine.count().bytes
    (key,) = server.engine.dead
    world.step("s3", Buried(key))
    assert (server.backlog().letters, server.engine.count().bytes) == (3, held)
    while world.waiting:
        world.react("a")
    assert server.engine.count().bytes == 0


def test_held_letters_are_within_the_quota_of_their_mailbox() -> None:
    world = World(quota=Quota(letters=3))
    world.send("x@s1", "a")
    world.react("a", dead="no")
    for _ in range(4):
        world.send("x@s1", "a")
    world.send("y@s2", "a")
    assert (world.held, world.waiting) == (["x@s12", "x@s13", "x@s14", "x@s15"], ["y@s21"])
    engine = world.servers["s3"].engine
    before = engine.footprint.entries
    world.step("s3", Look())
    assert (world.held, world.waiting) == (["x@s14", "x@s15"], ["y@s21"]), "the oldest expire, and nobody waits for it"
    assert [one.reason for one in engine.dead.values()][1:] == ["expired: more than 3 letters in the mailbox"] * 2
    assert engine.footprint.entries == before - 2
    assert engine.is_reacting("a"), "the agent keeps the letter that it handles"
    world.step("s3", Look())
    assert len(world.held) == 2, "exactly the quota"
    world.check_replay()
    world.step("s3", Buried(next(iter(engine.following.blocks["a"]))))
    assert world.react("a") == "y@s21"
    assert (world.react("a"), world.react("a")) == ("x@s14", "x@s15"), "the others come after the decision"


def test_the_age_and_the_bytes_of_held_letters_count() -> None:
    world = World(quota=Quota(seconds=10))
    world.send("x@s1", "a")
    world.react("a", dead="no")
    world.send("x@s1", "a")
    server = world.servers["s3"]
    for clock_ms in (1_000, 10_999):
        server.step([Look()], 0.0, clock_ms)
        assert world.held == ["x@s12"]
    server.step([Look()], 0.0, 11_000)
    assert world.held == []
    assert list(server.engine.dead.values())[1].reason == "expired: more than 10 s in the mailbox"
    assert not server.engine.following.since
    world = World(quota=Quota(bytes=10))
    world.send("x@s1", "a")
    world.react("a", dead="no")
    for _ in range(3):
        world.send("x@s1", "a")
    world.step("s3", Look())
    assert world.held == ["x@s13", "x@s14"], "of five bytes each"


def test_a_full_mailbox_refuses_although_all_its_letters_are_held() -> None:
    world = World(quota=Quota(letters=1, full="refuse"))
    world.send("x@s3", "a")
    world.react("a", dead="no")
    world.send("x@s3", "a")
    assert world.held == ["x@s32"]
    step = world.servers["s3"].step([Published("x", 3, ("a",), "T", b"")], 0.0, 0)
    assert [reply.reason for reply in step.replies] == ["the mailbox of a is full, with 1 letter: try again later"]


def test_a_failure_whose_reason_begins_with_expired_is_a_failure() -> None:
    """Whether a quota was the cause is a field of the record, not the text of the reason."""
    world = World()
    world.send("x@s1", "a", "b")
    world.send("y@s2", "a")
    world.react("a", dead="expired: the token of the bank")
    assert (world.waiting, world.held) == ([], ["y@s21"])
    world.check_replay()


def test_a_held_letter_does_not_expire_before_an_older_one_in_the_mailbox() -> None:
    """It may follow from that one: here both have the same sender. If it died first, the trace would show it as
    delivered too early."""
    world = World(quota=Quota(letters=2))
    world.send("x@s1", "a")
    world.send("y@s2", "a")
    world.react("a", dead="no")
    world.send("y@s2", "a")
    world.send("x@s1", "a", "b")
    world.send("y@s2", "a")
    assert (world.waiting, world.held) == (["y@s21", "y@s22"], ["x@s12", "y@s23"])
    engine = world.servers["s3"].engine
    world.step("s3", Look())
    assert (world.waiting, world.held) == (["y@s21", "y@s22"], ["x@s12", "y@s23"]), "the agent handles the oldest"
    engine.abandon("a")
    engine.ready.clear()
    world.step("s3", Look())
    assert (world.waiting, world.held) == ([], ["x@s12", "y@s23"])
    world.check_replay()


def test_the_tries_of_a_letter_are_kept_while_it_is_held() -> None:
    """A letter that ended the process has one try less, also if it then waits for the decision about another one."""
    world = World()
    world.send("x@s1", "a")
    world.send("x@s1", "a")
    engine = world.servers["s3"].engine
    suspect = engine.mailboxes["a"][1].id
    world.step("s3", Tried(1, (("a", suspect),)))
    world.react("a", dead="no")
    assert (world.waiting, world.held) == ([], ["x@s12"])
    assert engine.tries.of("a", suspect) == 1
    world.step("s3", Buried(next(iter(engine.following.blocks["a"]))))
    assert (world.waiting, engine.tries.of("a", suspect)) == (["x@s12"], 1)
    world.react("a")
    assert engine.tries.of("a", suspect) == 0
    world.check_replay()

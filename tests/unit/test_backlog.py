"""The count of what waits at a server: every byte, a multicast once, whatever arrives and leaves in between."""

import tracemalloc
from random import Random

import pytest

from antecede.channel import Footprint, Letter
from antecede.engine import Alarm, Engine, Reaction
from antecede.link import Ack, Link
from antecede.orders import parse
from antecede.server import AgentServer, Buried, FromPeer, Plan, Published, PublishedMany, Reacted
from antecede.topology import Domain, Topology


def _server(name: str = "s1") -> AgentServer:
    plan = Plan(Topology([Domain("A", ("s1", "s2"))]), {"A": parse("pruned")}, {"a": "s1", "far": "s2"})
    return AgentServer(name, plan, int(name[1:]))


def _counted(engine: Engine) -> tuple[int, ...]:
    places = (engine.footprint, engine.dead_footprint)
    return tuple(figure for place in places for figure in (place.entries, place.bytes))


def _recounted(engine: Engine) -> tuple[int, ...]:
    """Count everything again, from nothing."""
    footprint, dead_footprint = Footprint(), Footprint()
    for mailbox in engine.mailboxes.values():
        for letter in mailbox:
            footprint.add(letter)
    for dead in engine.dead.values():
        dead_footprint.add(dead.letter)
    return footprint.entries, footprint.bytes, dead_footprint.entries, dead_footprint.bytes


@pytest.mark.parametrize("seed", range(5))
def test_the_count_is_right_whatever_happens(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Letters arrive and leave between counts, before they are counted or after, some of them to the dead."""
    monkeypatch.setattr("antecede.engine.quotas._run_letters", 4)
    random, engine = Random(seed), Engine()
    agents = [f"a{place}" for place in range(6)]
    for number in range(400):
        action = random.choice(("arrive", "arrive", "multicast", "react", "react", "bury", "count"))
        agent = random.choice(agents)
        if action == "arrive":
            arrived = [Letter(f"{number}.{n}", "s", (agent,), "T", bytes(random.randrange(99))) for n in range(3)]
            engine.deliver_all([(agent, arrived)])
        elif action == "multicast":
            letter = Letter(str(number), "s", tuple(random.sample(agents, 3)), "T", bytes(random.randrange(99)))
            engine.deliver_all([(one, [letter]) for one in letter.to])
        elif action == "react" and agent in engine.mailboxes:
            engine.due()
            some = list(engine.mailboxes[agent])[: random.randrange(1, 6)]
            dead = random.choice(("plainly", "", "no handler"))
            if dead == "plainly":
                engine.finish_plainly(agent, [letter.id for letter in some], None, 0)
            else:
                engine.finish(agent, tuple(Reaction(letter.id, dead=dead) for letter in some), None)
        elif action == "bury" and engine.dead:
            engine.bury(random.choice(list(engine.dead)))
        elif action == "count":
            engine.count()
            assert _counted(engine) == _recounted(engine)
    for agent, mailbox in list(engine.mailboxes.items()):
        engine.finish(agent, tuple(Reaction(letter.id) for letter in mailbox), None)
    for key in list(engine.dead):
        engine.bury(key)
    engine.count()
    assert _counted(engine) == (0, 0, 0, 0)


def test_a_multicast_counts_once_and_its_destinations_too() -> None:
    to = tuple(f"absent-{number:04}@s1" for number in range(1_000))
    server = _server()
    server.step([PublishedMany("c", 1, to, "T", [bytes(10_000)] * 10)], 0.0, 0)
    backlog = server.backlog()
    assert backlog.letters == 10_000
    assert 10 * 10_000 + 1_000 * 14 < backlog.letter_bytes < 2_000_000, "not a thousand times the bodies"


def test_what_is_counted_is_what_python_allocates() -> None:
    """Small letters, large ones, one mailbox or many, multicasts: within a third of the truth, and never far below."""
    many = tuple(f"absent-{number:04}@s1" for number in range(300))
    for to, size, count in ((("x@s1",), 10, 5_000), (("x@s1",), 2_000, 2_000), (many, 10, 100)):
        server = _server()
        tracemalloc.start()
        for number in range(1, count + 1):
            # Decoded from a frame, as a publish of a client is.
            copied = tuple("".join(list(name)) for name in to)
            published = Published("c", number, copied, "".join(["T"] * 9), bytes(size), context="-".join(["00"] * 18))
            server.step([published], 0.0, 0)
            del copied, published
        true = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        counted = server.backlog().letter_bytes
        assert 0.75 * true < counted < 1.5 * true, (to[:1], size, counted, true)


def test_timers_count_and_dead_letters_count_separately() -> None:
    server = _server()
    empty = server.backlog().letter_bytes
    server.step([Published("c", 1, ("a",), "T", bytes(5_000))], 0.0, 0)
    alarm = Alarm(1_000, "Ring", bytes(3_000))
    server.step([Reacted("a", (Reaction("s1.000001.1", (), (alarm,), dead="no handler"),), None, 0)], 0.0, 0)
    backlog = server.backlog()
    assert (backlog.letters, backlog.dead) == (0, 1)
    assert 3_000 < backlog.letter_bytes - empty < 5_000
    assert server.engine.dead_footprint.bytes > 5_000
    restored = _server()
    restored.restore(server.snapshot(), 0.0)
    assert restored.backlog() == backlog
    (key,) = server.engine.dead
    server.step([Buried(key)], 0.0, 0)
    assert server.engine.dead_footprint.bytes == 0
    server.step([], 0.0, 1_000)
    assert server.backlog().letters == 1, "the timer's letter is in the mailbox"
    (letter,) = server.engine.mailboxes["a"]
    server.step([Reacted("a", (Reaction(letter.id),), None, 0)], 0.0, 1_000)
    assert server.backlog().letter_bytes == empty


def test_frames_count_until_they_are_acknowledged() -> None:
    one, other = _server("s1"), _server("s2")
    step = one.step([Published("c", 1, ("far",), "T", bytes(50_000))], 0.0, 0)
    backlog = one.backlog()
    assert backlog.frames == 1
    assert 50_000 < backlog.frame_bytes < 52_000
    restored = _server("s1")
    restored.restore(one.snapshot(), 0.0)
    assert restored.backlog() == backlog
    answer = other.step([FromPeer("A", "s1", out.content) for out in step.outgoing], 0.0, 0)
    one.step([FromPeer("A", "s2", out.content) for out in answer.outgoing], 0.0, 0)
    assert (one.backlog().frames, one.backlog().frame_bytes) == (0, 0)


def test_a_link_counts_bytes_through_duplicates_and_a_new_beginning() -> None:
    link = Link(1)
    for length in (10, 20, 30):
        link.send(bytes(length), 0.0)
    full = link.unacknowledged_bytes
    link.on_ack(Ack(2, 1, 2), 0.0)
    link.on_ack(Ack(2, 1, 1), 0.0)
    assert full - link.unacknowledged_bytes > 30
    link.forget()
    assert link.unacknowledged_bytes == 0

"""Test the chat in the simulated world: servers crash and frames are lost, but no answer comes before its question."""

from pathlib import Path

from chat_room import Join, Room, Said

from antecede.testing import ROUGH, World

TOPOLOGY = Path(__file__).with_name("chat.toml")
PEOPLE = ["ann@s1", "bob@s2", "cy@s3", "dan@s4"]


def test_an_answer_never_appears_before_its_question() -> None:
    """Play the same conversation in twenty worlds with different faults."""
    for seed in range(20):
        world = World(TOPOLOGY, agents={"kitchen": Room, "garden": Room}, seed=seed, faults=ROUGH)
        for client in PEOPLE:
            world.send(client, "kitchen", Join())
        world.send("ann@s1", PEOPLE[1:], Said(by="ann", text="where is the tea?"))
        while not world.inbox("bob@s2", Said):
            world.run(seconds=0.05)
        world.send("bob@s2", ["ann@s1", "cy@s3", "dan@s4"], Said(by="bob", text="in the kitchen"))
        world.run()

        assert world.state("kitchen").members == tuple(PEOPLE)
        for client in ("cy@s3", "dan@s4"):
            assert [one.by for one in world.inbox(client, Said)] == ["ann", "bob"], f"seed {seed}"
        world.check()

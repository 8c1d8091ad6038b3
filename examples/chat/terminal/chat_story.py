"""The story of the tutorial, played on simulated servers: an interrupted connection, a question, and its answer.

ann, bob, cy and dan are in one room, each at a different server. While the connection from ann's server to cy's server
is down, ann asks a question. bob receives the question and answers. At cy's server, the answer arrives before the
question. Under FIFO order, cy sees the answer first. dan also sees the answer first, because all messages to dan pass
through cy's server. Under causal order, the answer waits for the question.
"""

from pathlib import Path

import msgspec
from chat_room import Join, Members, Room, Said

from antecede.engine.agents import name_of
from antecede.live.application import plan_of
from antecede.simulator.servers import NONE, ServerWorld
from antecede.topology import parse_topology
from antecede.trace import Event

PEOPLE = {"ann": "ann@s1", "bob": "bob@s2", "cy": "cy@s3", "dan": "dan@s4"}
QUESTION = "where is the tea?"
ANSWER = "in the kitchen"

TOPOLOGY = (Path(__file__).parents[1] / "chat.toml").read_text(encoding="utf-8")
"""Four servers in two domains. Server s3 is the router between the domains."""
_down_seconds = 0.5
_answer_seconds = 0.1
_resend_seconds = 0.2


class Story(msgspec.Struct):
    """The result of the story under one order: the screens of all people at the end, and the trace."""

    order: str
    screens: dict[str, list[str]]
    """For each person, the lines on their screen."""
    trace: list[Event]

    def reversed(self) -> list[str]:
        """Return the names of the people who saw the answer before the question."""
        question, answer = f"ann: {QUESTION}", f"bob: {ANSWER}"
        return [name for name, lines in self.screens.items() if lines.index(answer) < lines.index(question)]


def tell(order: str, seed: int = 1) -> Story:
    """Play the story on simulated servers, with this order in all domains."""
    text = TOPOLOGY.replace('order = "pruned"', f'order = "{order}"')
    topology = parse_topology(f'guarantee = "none"\n{text}', "chat.toml")
    plan = msgspec.structs.replace(plan_of(topology), resend_after=_resend_seconds)
    world = ServerWorld(plan, {"kitchen": Room, "garden": Room}, seed, NONE, "disk")
    chat = _Chat(world)
    for client in PEOPLE.values():
        world.send(client, "kitchen", Join())
    world.run()
    world.cut("s1", "s3", _down_seconds)
    chat.say("ann", QUESTION)
    world.run(_answer_seconds)
    chat.look()
    chat.say("bob", ANSWER)
    world.run()
    chat.look()
    return Story(order, chat.screens, world.trace())


class _Chat:
    """The clients of the four people in the story, and their screens."""

    def __init__(self, world: ServerWorld) -> None:
        self._world = world
        self.screens: dict[str, list[str]] = {name: [] for name in PEOPLE}
        self._seen = dict.fromkeys(PEOPLE, 0)

    def say(self, name: str, text: str) -> None:
        """Show a line on the screen of ``name``, and send it to the other members of the room."""
        letters = self._world.client(PEOPLE[name]).inbox
        rooms = [msgspec.msgpack.decode(one.body, type=Members) for one in letters if one.type == name_of(Members)]
        line = Said(by=name, text=text)
        self.screens[name].append(line.label())
        self._world.send(PEOPLE[name], [one for one in rooms[-1].names if one != PEOPLE[name]], line)

    def look(self) -> None:
        """Update the screen of each person: add the lines that the person has received since the last call."""
        for name, client in PEOPLE.items():
            letters = [one for one in self._world.client(client).inbox if one.type == name_of(Said)]
            for letter in letters[self._seen[name] :]:
                self.screens[name].append(msgspec.msgpack.decode(letter.body, type=Said).label())
            self._seen[name] = len(letters)

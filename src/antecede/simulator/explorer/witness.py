"""A violation as a scenario file that anybody can play (DESIGN 3.2).

The run is written down input by input. Its last line says what a correct order shows at that point. It is not guessed:
the same file is played on one, the house's own order of that name where a variant of it broke, else the plainest order
with the guarantee that was violated.
"""

from collections.abc import Sequence
from itertools import combinations

import msgspec

from antecede.errors import UnknownOrderError
from antecede.messages import COPY, Deliver, Effects, Message, Packet, Send, members_of
from antecede.orders import OrderSpec, find, parse
from antecede.simulator.explorer.local import Finding
from antecede.simulator.explorer.machine import Factory
from antecede.simulator.explorer.scope import Scope


class Action(msgspec.Struct, frozen=True):
    """One input of the run: a message that is sent, or a packet that arrives."""

    message: Message | None = None
    packet: Packet | None = None
    again: bool = False
    """The packet has arrived before."""


def actions_of(inputs: Sequence[tuple[int, int]], packets: Sequence[Packet], scope: Scope) -> list[Action]:
    """The inputs of a run by what they are, not by number."""
    actions: list[Action] = []
    accepted = [0] * scope.processes
    arrived: set[int] = set()
    for process, entry in inputs:
        if entry < 0:
            actions.append(Action(message=scope.message(process, accepted[process], ~entry)))
            accepted[process] += 1
        else:
            actions.append(Action(packet=packets[entry], again=scope.duplicates and entry in arrived))
            arrived.add(entry)
    return actions


def deliveries(create: Factory, members: int, actions: Sequence[Action], drain: bool = False) -> list[list[str]]:
    """Play a run, on whatever order: the ids that each process delivers.

    As in a scenario, what arrives before it was posted arrives as soon as it is; a second arrival ends in the link.
    """
    play = _Play(create, members)
    for action in actions:
        if action.message is not None:
            source = action.message.source
            play.carry_out(source, play.orders[source].send(action.message))
        elif action.packet is not None and not action.again:
            play.awaited.append(_identity(action.packet))
        play.settle()
    while drain and play.flying:
        play.arrive(play.flying.pop(0))
    return play.delivered


class _Play:
    def __init__(self, create: Factory, members: int) -> None:
        self.orders = [create(me, members) for me in range(members)]
        self.flying: list[Packet] = []
        self.awaited: list[tuple[str, str, int, int]] = []
        self.delivered: list[list[str]] = [[] for _ in range(members)]

    def settle(self) -> None:
        """Let arrive whatever is awaited and in flight, the longest awaited first."""
        while True:
            flying = {_identity(packet): packet for packet in reversed(self.flying)}
            ready = next((identity for identity in self.awaited if identity in flying), None)
            if ready is None:
                return
            self.awaited.remove(ready)
            self.flying.remove(flying[ready])
            self.arrive(flying[ready])

    def arrive(self, packet: Packet) -> None:
        self.carry_out(packet.target, self.orders[packet.target].receive(packet)[1])

    def carry_out(self, member: int, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self.flying.append(effect.packet)
            elif isinstance(effect, Deliver):
                self.delivered[member].append(effect.message.id)


def _identity(packet: Packet) -> tuple[str, str, int, int]:
    """What a scenario says of a packet. A message's copies to one process are one, whichever way they take."""
    return (packet.kind, packet.subject, packet.source if packet.kind != COPY else -1, packet.target)


class Witness:
    """One violation, ready to be written."""

    def __init__(self, create: Factory, scope: Scope, finding: Finding, actions: list[Action], asked: str) -> None:
        self._create = create
        self._scope = scope
        self._finding = finding
        self._actions = actions
        self._asked = asked
        self._order = create(0, scope.processes)
        self._names = self._name_messages()

    def _name_messages(self) -> dict[str, str]:
        names: dict[str, str] = {}
        for action in self._actions:
            if action.message is not None:
                given = ""
                if self._scope.program is not None:
                    source, number = map(int, action.message.id.split("."))
                    given = self._scope.program[source][number].name
                names[action.message.id] = given or f"m{len(names) + 1}"
        return names

    def names(self, bits: Sequence[int]) -> list[str]:
        """The names of messages by their bits."""
        by_bit = {self._scope.bit_of(id_): name for id_, name in self._names.items()}
        return [by_bit[bit] for bit in bits]

    def says(self) -> str:
        """The violated condition, in one line."""
        finding = self._finding
        text = finding.text
        for id_, name in self._names.items():
            text = text.replace(f"[{self._scope.bit_of(id_)}]", name)
        process = self._scope.names[finding.process] if finding.process >= 0 else ""
        message = self.names([finding.bit])[0] if finding.bit >= 0 else ""
        return text.replace("{process}", process).replace("{message}", message)

    def scenario(self) -> str:
        """The scenario file."""
        settings = [
            f"{name}={str(value).lower()}"
            for name, value in self._order.settings.items()
            if value != self._order.options[name].default
        ]
        lines = [
            f"# {self._finding.kind}: {self.says()}.",
            f"# A shortest run of {len(self._actions)} inputs, found among all of {self._asked}.",
            f"processes {' '.join(self._scope.names)}",
            " ".join(["order", self._order.name, *settings]),
        ]
        if self._order.controls:
            lines.append("control manual")
        lines += map(self._line, self._actions)
        if self._drains():
            lines.append("drain")
        expected = self._expected()
        if expected:
            lines.append(expected)
        return "\n".join(lines) + "\n"

    def _line(self, action: Action) -> str:
        process = self._scope.names
        if action.message is not None:
            to = ",".join(process[target] for target in members_of(action.message.to))
            return f"send {self._names[action.message.id]} {process[action.message.source]} -> {to}"
        packet = action.packet
        assert packet is not None
        what = self._names.get(packet.subject, "-")
        if packet.kind != COPY:
            what = f"{packet.kind}({what},{process[packet.source]})"
        return f"arrive {what} {process[packet.target]}" + (" again" if action.again else "")

    def _drains(self) -> bool:
        """A correct order may have packets left that the broken one never sent."""
        return self._finding.kind == "undelivered"

    def _expected(self) -> str:
        members = self._scope.processes
        correct = self._correct()
        if self._finding.kind == "contract" and self._finding.bit < 0:
            return ""
        actual = deliveries(self._create, members, self._actions)
        if correct is None:
            shown = _agreeing(actual) if self._finding.kind == "total" else None
        else:
            shown = deliveries(correct.create, members, self._actions, self._drains())
        if shown is None:
            return ""
        candidates = [self._finding.process, *range(members)] if self._finding.process >= 0 else range(members)
        process = next((process for process in candidates if shown[process] != actual[process]), None)
        if process is None:
            return ""
        words = ["expect", self._scope.names[process], "delivered", *(self._names[id_] for id_ in shown[process])]
        if self._finding.kind in ("fifo", "causal", "total", "synchronous"):
            words += ["under", self._finding.kind]
        return " ".join(words)

    def _correct(self) -> OrderSpec | None:
        """An order that keeps what was broken, and that can play the same file."""
        order, kind = self._order, self._finding.kind
        try:
            house = OrderSpec(find(order.name), dict(order.settings))
        except UnknownOrderError:
            house = None
        judged = kind not in ("undelivered", "contract")
        if house is not None and house.kind is not type(order) and (not judged or kind in house.guarantees()):
            return house
        promised = frozenset({kind}) if judged else order.guarantees
        if order.controls or promised & {"total", "synchronous"}:
            return None
        return parse("matrix" if "causal" in promised else "fifo" if "fifo" in promised else "none")


def _agreeing(actual: list[list[str]]) -> list[list[str]] | None:
    """What two processes that disagree on a pair would show, if the second went by the first."""
    for first, second in combinations(range(len(actual)), 2):
        common = [id_ for id_ in actual[first] if id_ in actual[second]]
        if common != [id_ for id_ in actual[second] if id_ in actual[first]]:
            rest = iter(common)
            shown = [list(line) for line in actual]
            shown[second] = [next(rest) if id_ in common else id_ for id_ in actual[second]]
            return shown
    return None

"""A violation as a scenario file that can be played.

The file contains the inputs of the run in sequence and, if possible, an expectation. The expectation describes correct
behaviour, so the broken order does not meet it. To find the correct behaviour, the same file is played under a correct
order. If the broken order is a variant of a known order, the correct order is the known order. Otherwise it is the
simplest order with the necessary guarantees. But no simple order guarantees total or synchronous order, so in these two
cases, the file is not played under a correct order. If the run breaks total order, the expectation is then that two
processes deliver their common messages in the same sequence.
"""

from collections.abc import Sequence
from itertools import combinations

import msgspec

from antecede.errors import UnknownOrderError
from antecede.messages import COPY, Message, Packet, members_of
from antecede.orders import OrderSpec, find, parse
from antecede.orders.contract import Order
from antecede.simulator.explorer.machine import Factory, Finding, Machine, Scope
from antecede.simulator.player import Played, play
from antecede.simulator.scenario import parse_scenario

_judged = ("fifo", "causal", "total", "synchronous")


class Action(msgspec.Struct, frozen=True):
    """One input of the run: a message that is sent, or a packet that arrives."""

    message: Message | None = None
    packet: Packet | None = None
    again: bool = False
    """Whether the packet has arrived before."""


def actions_of(inputs: Sequence[tuple[int, int]], packets: Sequence[Packet], scope: Scope) -> list[Action]:
    """Return the inputs of a run as actions instead of numbers."""
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


def with_overtaker(finding: Finding, inputs: Sequence[tuple[int, int]], machine: Machine) -> Finding:
    """Replace the placeholder ``{overtaker}`` in the text of a finding, and return the new finding. If the finding has
    no such placeholder, return it unchanged. The placeholder occurs if a process delivered a message late. It stands
    for the *overtaker*: a message that this process delivered before the late message, although it was sent after the
    late message. If there are several overtakers, choose the one that was delivered first. The states of the search do
    not record overtakers, so this function plays the run again."""
    if "{overtaker}" not in finding.text:
        return finding
    states = list(machine.initial)
    accepted, pasts = [0] * len(states), [0] * len(states)
    befores: dict[int, int] = {}
    for process, entry in inputs:
        if entry < 0:
            step = machine.send(states[process], accepted[process], ~entry)
            accepted[process] += 1
        else:
            step = machine.receive(states[process], entry)
        states[process] = step.state
        for is_send, bit in step.events:
            if is_send:
                befores[bit] = pasts[process]
                pasts[process] |= 1 << bit
            elif process == finding.process and befores[bit] >> finding.bit & 1:
                return finding._replace(text=finding.text.replace("{overtaker}", f"[{bit}]"))
            elif finding.kind == "causal":
                pasts[process] |= befores[bit] | 1 << bit
    raise AssertionError("no delivery in the run overtakes the late message of the finding")


class Witness:
    """Describes one violation, in one line and as a scenario file."""

    def __init__(self, create: Factory, scope: Scope, finding: Finding, actions: list[Action]) -> None:
        self._scope = scope
        self._finding = finding
        self._actions = actions
        self._order = create(0, scope.processes)
        self._own_order = _own_order_of(self._order)
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

    def summary(self) -> str:
        """Return a description of the violation, in one line."""
        finding, names = self._finding, {self._scope.bit_of(id_): name for id_, name in self._names.items()}
        text = finding.text
        for bit, name in names.items():
            text = text.replace(f"[{bit}]", name)
        process = self._scope.names[finding.process] if finding.process >= 0 else ""
        message = names[finding.bit] if finding.bit >= 0 else ""
        return text.replace("{process}", process).replace("{message}", message)

    def scenario(self) -> str:
        """Return the text of a scenario file that shows the finding."""
        order = self._order
        lines = [
            f"# {self._finding.kind}: {self.summary()}.",
            f"# This run has {len(self._actions)} sends and arrivals. No shorter run has such an error.",
            f"# Scope of the search: {self._scope}.",
        ]
        if self._scope.duplicates:
            lines.append("# Links drop duplicates; play this with --raw, so that duplicates reach the order.")
        lines.append(f"processes {' '.join(self._scope.names)}")
        if self._own_order is not None:
            settings = [
                f"{name}={str(value).lower()}"
                for name, value in order.settings.items()
                if value != order.options[name].default
            ]
            lines.append(" ".join(["order", order.name, *settings]))
        if order.controls:
            lines.append("control manual")
        lines += map(self._line, self._actions)
        return "\n".join(self._finished(lines)) + "\n"

    def _line(self, action: Action) -> str:
        process = self._scope.names
        if action.message is not None:
            to = ",".join(process[target] for target in members_of(action.message.to))
            return f"send {self._names[action.message.id]} {process[action.message.source]} -> {to}"
        packet = action.packet
        assert packet is not None
        what = self._names.get(packet.subject, "")
        if packet.kind != COPY:
            about = f"{what},{process[packet.source]}" if what else process[packet.source]
            what = f"{packet.kind}({about})"
        return f"arrive {what} {process[packet.target]}" + (" again" if action.again else "")

    # The behaviour of a correct order.

    def _finished(self, lines: list[str]) -> list[str]:
        """Return the lines of the file, followed by an expectation. A correct order meets this expectation, and the
        broken order does not. If more packets must arrive first, the statement ``drain`` (let all packets arrive) comes
        before the expectation.

        The best expectation is about a process that delivers the same messages under both orders, but in different
        sequences. If there is no such process, the expectation is about a process that delivers different messages
        under the two orders. If there is no such process either, return the result of ``_patient``; if this is
        empty, return the lines without an expectation.
        """
        for same in (True, False):
            for drain in ([], ["drain"]):
                if drain or self._finding.kind != "undelivered":
                    expected = self._expected([*lines, *drain], same)
                    if expected:
                        return [*lines, *drain, expected]
        return self._patient(lines) or lines

    def _patient(self, lines: list[str]) -> list[str]:
        """Return the lines of the file with two more lines: ``expect MESSAGE not sent`` at some point of the run, and
        ``drain`` at the end. At the place of the first new line, the broken order has already sent the message, but
        a correct order has not. So only the broken order fails the expectation. Return an empty list if no such message
        and point are found."""
        correct = self._correct()
        if correct is None or correct is not self._own_order:
            return []
        broken = OrderSpec(type(self._order), dict(self._order.settings))
        for place in range(len(lines) - len(self._actions) + 1, len(lines)):
            for name in self._names.values():
                expected = f"expect {name} not sent under {self._order.name}"
                tried = [*lines[:place], expected, *lines[place:], "drain"]
                if self._holds(tried, correct) and self._holds(tried, broken) is False:
                    return tried
        return []

    def _holds(self, lines: list[str], order: OrderSpec) -> bool | None:
        result = self._played(lines, order)
        return None if result is None else result.holds

    def _expected(self, lines: list[str], same: bool) -> str:
        kind, names = self._finding.kind, self._scope.names
        actual = self._play(lines, OrderSpec(type(self._order), dict(self._order.settings)))
        correct = self._correct()
        if correct is not None:
            shown = self._play(lines, correct)
        else:
            shown = _agreeing(actual) if kind == "total" and actual is not None else None
        if shown is None or (actual is None and same):
            return ""
        for name in (names[max(self._finding.process, 0)], *names):
            differs = actual is None or shown[name] != actual[name]
            if differs and not (same and actual is not None and sorted(shown[name]) != sorted(actual[name])):
                under = ["under", kind] if kind in _judged else []
                return " ".join(["expect", name, "delivered", *shown[name], *under])
        return ""

    def _play(self, lines: list[str], order: OrderSpec) -> dict[str, list[str]] | None:
        """Play the file under ``order``. Return the names of the messages that each process delivers; None if the file
        cannot be played under this order."""
        result = self._played(lines, order)
        if result is None:
            return None
        return {name: list(result.world.record.delivered[name]) for name in self._scope.names}

    def _played(self, lines: list[str], order: OrderSpec) -> Played | None:
        if not order.kind.controls:
            # The simplest order with a guarantee has no control packets that could arrive.
            lines = [line for line in lines if "(" not in line.partition("#")[0] and line != "control manual"]
        scenario = parse_scenario("\n".join([*lines, ""]).encode(), "explored")
        try:
            return play(scenario, order, raw=self._scope.duplicates)
        except Exception:
            # A broken order may fail in any way, and a correct one may never send the packets of a broken one.
            return None

    def _correct(self) -> OrderSpec | None:
        """Return a correct order, under which the same file will be played. The correct order keeps the guarantee that
        the broken order violates. Return None if there is no such order."""
        order, kind = self._order, self._finding.kind
        own_order = self._own_order
        judged = kind in _judged
        if (
            own_order is not None
            and own_order.kind is not type(order)
            and (not judged or kind in own_order.guarantees())
        ):
            return own_order
        promised = frozenset({kind}) if judged else order.guarantees
        if promised & {"total", "synchronous"}:
            return None
        if "causal" in promised:
            return parse("matrix")
        # The simplest order of all delivers duplicates, and messages that were never sent.
        return parse("fifo" if "fifo" in promised or kind == "contract" else "none")


def _own_order_of(order: Order) -> OrderSpec | None:
    """Return the known order that has the name of ``order``, with the options of ``order``; None if no known order has
    this name."""
    try:
        return OrderSpec(find(order.name), dict(order.settings))
    except UnknownOrderError:
        return None


def _agreeing(actual: dict[str, list[str]]) -> dict[str, list[str]] | None:
    """Find two processes that deliver their common messages in different sequences. Return the deliveries of all
    processes, with one change: the second process delivers the common messages in the same sequence as the first.
    Return None if there are no two such processes."""
    for first, second in combinations(actual, 2):
        common = [name for name in actual[first] if name in actual[second]]
        if common != [name for name in actual[second] if name in actual[first]]:
            rest = iter(common)
            return actual | {second: [next(rest) if name in common else name for name in actual[second]]}
    return None

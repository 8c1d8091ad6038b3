"""Play a scenario, line by line: carry out its actions, and check its expectations.

``play`` returns a :class:`Played`: the world in which the scenario was played, and the expectations that failed (line,
expected, actual). If the scenario cannot be played under the given order, ``play`` raises
:class:`antecede.errors.ScenarioError`.
"""

from collections.abc import Sequence

import msgspec

from antecede.errors import AntecedeError, ScenarioError
from antecede.orders import OrderSpec
from antecede.simulator.scripted import ScriptedWorld
from antecede.simulator.statements import (
    ArriveLine,
    CrashLine,
    DrainLine,
    Expectation,
    ExpectDelivered,
    ExpectHolds,
    ExpectNotSent,
    ExpectRefused,
    ExpectStuck,
    LoseLine,
    ReceiveLine,
    RestartLine,
    Scenario,
    SendLine,
    Statement,
    WaitLine,
)

_shown_names_max = 40


class Failure(msgspec.Struct, frozen=True):
    """An expectation that does not hold."""

    line: int
    expected: str
    actual: str


class Played(msgspec.Struct):
    """One play of a scenario under one order."""

    world: ScriptedWorld
    checked: int
    """The number of expectations that applied and were checked."""
    skipped: int
    """The number of expectations that were skipped, because they apply only to other orders."""
    failures: list[Failure]

    @property
    def holds(self) -> bool:
        return not self.failures

    @property
    def order(self) -> str:
        """The name and options of the order of this play. Several orders are joined with ``+``."""
        return " + ".join(dict.fromkeys(map(str, self.world.specs.values())))


def play(scenario: Scenario, order: OrderSpec | None = None, *, raw: bool = False) -> Played:
    """Play a scenario under ``order``, or under the scenario's own order if ``order`` is None. If ``raw`` is true,
    there are no links: duplicates reach the order, and lost packets are not resent."""
    world = ScriptedWorld(scenario, order, raw=raw)
    result = Played(world, 0, 0, [])
    specs, kept = list(world.specs.values()), world.guarantees
    for statement in scenario.statements:
        if isinstance(statement, ArriveLine | LoseLine) and not statement.parcel.source:
            world.stops[statement.parcel.message, statement.at] = statement.line
        elif isinstance(statement, ExpectRefused) and statement.under.counts(specs, kept):
            world.may_refuse.add(statement.message)
    for statement in scenario.statements:
        world.record.line = statement.line
        try:
            if not isinstance(statement, Expectation):
                _carry_out(world, statement)
                world.settle()
            elif statement.under.counts(specs, kept):
                result.checked += 1
                failure = _check(world, statement)
                if failure is not None:
                    result.failures.append(failure)
            else:
                result.skipped += 1
        except ScenarioError:
            raise
        except AntecedeError as error:
            raise scenario.error(statement.line, str(error)) from None
    world.finish()
    return result


def _carry_out(world: ScriptedWorld, statement: Statement) -> None:
    match statement:
        case SendLine():
            world.send(statement)
        case ArriveLine():
            world.arrive(statement)
        case LoseLine():
            world.lose(statement)
        case ReceiveLine():
            world.receive(statement)
        case DrainLine():
            world.drain()
        case WaitLine():
            world.wait(statement.seconds)
        case CrashLine():
            world.crash(statement.line, statement.process)
        case RestartLine():
            world.restart(statement.line, statement.process)
        case _:
            raise AssertionError(statement)


def _check(world: ScriptedWorld, statement: Expectation) -> Failure | None:
    line = statement.line
    match statement:
        case ExpectDelivered(process=process, messages=messages):
            actual = world.record.delivered[process]
            world.spend(1 + len(messages))
            if list(messages) != actual:
                return Failure(line, f"{process} delivered {_list(messages)}", f"{process} delivered {_list(actual)}")
        case ExpectHolds(process=process, messages=messages):
            held = world.held(process) + world.flights.awaited(process)
            missing = [message for message in messages if message not in held]
            if missing:
                already = [message for message in missing if message in world.record.delivered[process]]
                why = f"; it has delivered {_list(already)}" if already else ""
                return Failure(line, f"{process} holds {_list(messages)}", f"{process} holds {_list(held)}{why}")
        case ExpectNotSent(message=message):
            if message in world.posted:
                source = world.sends[message].source
                return Failure(line, f"{message} not sent", f"{message} has left {source}")
        case ExpectRefused(message=message):
            if message not in world.refused:
                return Failure(line, f"{message} refused", f"{message} was not refused")
        case ExpectStuck():
            if not world.stuck():
                return Failure(line, "stuck", _why_not_stuck(world))
    return None


def _why_not_stuck(world: ScriptedWorld) -> str:
    flying = [f"{flight.parcel} to {flight.at}" for flight in world.flights.flying()]
    if flying:
        return f"in transit: {', '.join(flying[:_shown_names_max])}"
    return (
        "packets are still to be resent" if world.on_its_way() else "nothing is held or unposted, and no program waits"
    )


def _list(messages: Sequence[str]) -> str:
    if not messages:
        return "nothing"
    more = f" … ({len(messages)} in all)" if len(messages) > _shown_names_max else ""
    return " ".join(messages[:_shown_names_max]) + more

"""The explorer tests an order (an ordering protocol) with a few processes and messages. It plays every possible run,
and finds a shortest run that breaks a guarantee.

``explore`` takes an order and a scope. The order is given by its name or its :class:`~antecede.orders.OrderSpec`. To
try a broken variant, pass a function that creates the order of one process. The scope is the number of processes and of
messages, or a program, which fixes the sends of each process. ``explore`` plays *all* interleavings of sends and
arrivals. Packets on a link may arrive in any sequence, unless the links are FIFO. ``explore`` checks the guarantees of
the order, and additional ones if requested. It checks FIFO and causal order in every state. It checks total and
synchronous order in every *quiet* state: a state in which nothing is in flight. In every quiet state, it also checks
that every message is delivered and nothing is held.

* :mod:`~antecede.simulator.explorer.machine`: stores the steps of orders in tables, so that each step is computed only
  once.
* :mod:`~antecede.simulator.explorer.blocks`: the partial-order reduction, and why it misses no violation.
* :mod:`~antecede.simulator.explorer.search`: plays shorter runs first, so that it finds a shortest run with a
  violation.
* :mod:`~antecede.simulator.explorer.witness`: the violation as a scenario file.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec

from antecede import limits
from antecede.errors import UsageError
from antecede.orders import OrderSpec, parse
from antecede.simulator.explorer.machine import MODES, Factory, Machine, Program, ProgramSend, Scope, read_program
from antecede.simulator.explorer.search import Found, Search
from antecede.simulator.explorer.witness import Action, Witness, actions_of, with_overtaker

__all__ = ["MODES", "Action", "Outcome", "Program", "ProgramSend", "Result", "Violation", "explore", "read_program"]

Outcome = tuple[tuple[str, ...], ...]
"""The deliveries of one run: for each process, the names of the messages that it delivered, in sequence."""

_checkable = frozenset({"fifo", "causal", "total", "synchronous"})


class Violation(msgspec.Struct, frozen=True):
    """A shortest run that breaks a guarantee or the contract of the order."""

    kind: str
    """The broken guarantee (``fifo``, ``causal``, ``total`` or ``synchronous``), ``undelivered``, or ``contract`` (for
    example, the order delivered a message twice, or raised an exception)."""
    text: str
    actions: tuple[Action, ...]
    scenario: str
    """The run as a scenario file."""


class Result(msgspec.Struct, frozen=True):
    """The result of an exploration."""

    checked: frozenset[str]
    """The guarantees that were checked. The explorer also checks, in every exploration, that each message is delivered
    exactly once."""
    states: int
    """The number of states of the whole system that were reached. States within a block are not counted; a block is a
    group of inputs that are played together (:mod:`~antecede.simulator.explorer.blocks`)."""
    transitions: int
    """The number of transitions between the states of the whole system; each transition is one block."""
    local_states: int
    """The number of different states of orders that were reached. Each member runs its own order; the states of all
    members are counted together."""
    depth: int
    """The length of the longest sequence of blocks that was searched, counted in inputs (sends and arrivals)."""
    violation: Violation | None
    outcomes: frozenset[Outcome]
    """The different outcomes of all runs of the program. The set is empty if no program was given, and may be
    incomplete if there is a violation."""


def explore(
    order: str | OrderSpec | Factory,
    processes: int = 3,
    messages: int = 3,
    mode: str = "unicast",
    *,
    to_self: bool = False,
    fifo_links: bool = False,
    duplicates: bool = False,
    program: Program | None = None,
    process_names: tuple[str, ...] = (),
    guarantee: Iterable[str] = (),
    states_max: int = limits.explorer_states_max,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Test an order: play every run of ``program``, which fixes the sends of each process. If there is no program, play
    every run with this number of processes and messages. Check the order's own guarantees, and in addition the
    guarantees in ``guarantee``.

    If ``duplicates`` is true, every packet arrives twice. ``progress`` is called from time to time with two numbers:
    the number of states reached so far, and the length of the runs that are now being played. Raise
    :class:`~antecede.errors.ScopeTooLargeError` if there are more than ``states_max`` states.
    """
    if isinstance(order, str):
        order = parse(order)
    create = order.create if isinstance(order, OrderSpec) else order
    if program is not None:
        processes, messages = len(program), max(1, *map(len, program))
    scope = Scope(processes, messages, mode, to_self, fifo_links, duplicates, program, process_names)
    checked = frozenset(guarantee) | (create(0, processes).guarantees & _checkable)
    if checked - _checkable:
        raise UsageError(
            f"unknown guarantee {min(checked - _checkable)!r}: expected one of {', '.join(sorted(_checkable))}"
        )

    def search(thorough: bool) -> tuple[Search, Found | None, Machine]:
        machine = Machine(create, scope)
        search = Search(machine, scope, checked, thorough=thorough, states_max=states_max, progress=progress)
        return search, search.run(), machine

    with _without_collection():
        done, found, machine = search(False)
        if found is not None and found.finding.kind in ("total", "synchronous"):
            # The first search examines only quiet states for this. A shortest run that shows it may end earlier, so
            # search again.
            done, found, machine = search(True)
    violation = None
    if found is not None:
        inputs = done.inputs(found)
        actions = actions_of(inputs, machine.packets, scope)
        witness = Witness(create, scope, with_overtaker(found.finding, inputs, machine), actions)
        violation = Violation(found.finding.kind, witness.summary(), tuple(actions), witness.scenario())
    return Result(
        checked,
        done.states,
        done.transitions,
        len(machine),
        done.depth,
        violation,
        frozenset(_outcomes(done, scope)),
    )


def _outcomes(search: Search, scope: Scope) -> Iterator[Outcome]:
    if scope.program is None:
        return
    names = {
        scope.bit(source, number): send.name or f"{scope.names[source]}.{number + 1}"
        for source, sends in enumerate(scope.program)
        for number, send in enumerate(sends)
    }
    wanted = sum(send.to.bit_count() for sends in scope.program for send in sends)
    for histories in search.outcomes:
        outcome = tuple(tuple(names[bit] for bit in history if bit >= 0) for history in histories)
        if sum(map(len, outcome)) == wanted:
            yield outcome


@contextmanager
def _without_collection() -> Iterator[None]:
    """Switch off garbage collection in the body of the ``with`` statement. The search creates millions of objects and
    keeps all of them, and garbage collection would take a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()

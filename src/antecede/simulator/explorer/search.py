"""A search that visits the states of the system in the sequence of their costs, beginning with the lowest cost.

A *block* (a sequence of inputs of one process, see :mod:`antecede.simulator.explorer.blocks`) leads from one state to
another. The cost of a block is the number of its inputs. The cost of a state is the number of inputs in the shortest
run to this state. So if the search returns a run that leads to a violation, no shorter run leads to a violation.

A *cell* is the state of one process, together with the packets in flight to this process. A state of the system
consists of one cell per process. It is a tuple with the numbers of these cells.
"""

from collections.abc import Callable
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise, product
from typing import NamedTuple

from antecede.errors import ScopeTooLargeError
from antecede.simulator.explorer.blocks import Block, Blocks, Growth, Incoming
from antecede.simulator.explorer.machine import UNSENT, Finding, Judgement, Local, Machine, Scope

# Conditions on all processes together: every process has finished, and their histories do not contradict each
# other.


def unfinished(process: int, local: Local, wanted: int, idle: bool, scope: Scope) -> Finding | None:
    """Check a process at a moment when nothing is in flight. Return a finding if the process has not finished,
    otherwise None. A process has finished when it has delivered all messages addressed to it (``wanted``, a bit mask),
    has sent all messages of its application, and holds no message (``idle``)."""
    missing = wanted & ~local.delivered
    if missing:
        bit = missing.bit_length() - 1
        return Finding("undelivered", process, bit, "nothing is in flight, and {process} has not delivered {message}")
    if UNSENT in local.befores:
        bit = scope.bit(process, local.befores.index(UNSENT))
        return Finding("undelivered", process, bit, "nothing is in flight, and {message} of {process} was never sent")
    if not idle:
        return Finding("undelivered", process, -1, "nothing is in flight, and {process} still holds a message")
    return None


def crossed(histories: tuple[tuple[int, ...], ...], guarantees: frozenset[str]) -> Finding | None:
    """Return a finding if the histories of all processes together break the guarantee ``total`` or ``synchronous``;
    otherwise None. Only the guarantees in ``guarantees`` are checked."""
    if "total" in guarantees:
        circle = _circle([[bit for bit in history if bit >= 0] for history in histories])
        if circle:
            return Finding("total", -1, -1, f"no sequence agrees with all deliveries: {circle}")
    if "synchronous" in guarantees:
        circle = _circle([[max(bit, ~bit) for bit in history] for history in histories])
        if circle:
            return Finding("synchronous", -1, -1, f"the messages cannot be drawn as vertical arrows: {circle}")
    return None


def _circle(lines: list[list[int]]) -> str:
    """Return a cycle of messages as a text of their bit numbers, for example ``[0] before [3] before [0]``. Return an
    empty text if there is no cycle. Each message of the cycle comes directly before the next one in one of the
    sequences ``lines``."""
    graph: dict[int, set[int]] = {}
    for line in lines:
        for earlier, later in pairwise(line):
            if earlier != later:
                graph.setdefault(later, set()).add(earlier)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " before ".join(f"[{bit}]" for bit in error.args[1])
    return ""


System = tuple[int, ...]
"""A state of the whole system: the number of each process's cell. A cell is the state of a process, together with the
packets in flight to this process."""

History = tuple[int, ...]


class Reached(NamedTuple):
    """The shortest known run to a state. The last part of the run is ``block``: a sequence of inputs of the process
    with the number ``process``. This block begins in the state ``previous``. The whole run has ``cost`` inputs. For the
    start of the search, ``block`` is None."""

    cost: int
    previous: System
    process: int
    block: Block | None


class Found(NamedTuple):
    """A violation. ``system`` is the last state in the search before the violation. ``tails`` are the inputs that lead
    from this state to the violation."""

    cost: int
    finding: Finding
    system: System
    tails: tuple[tuple[int, list[int]], ...]
    """For each process that has further inputs: (process, its further inputs in sequence)."""


class Search:
    """A search through all runs of one scope. If ``thorough`` is true, the guarantees ``total`` and ``synchronous`` are
    checked in every state. If it is false, they are checked only in quiet states: states in which nothing is in
    flight."""

    def __init__(
        self,
        machine: Machine,
        scope: Scope,
        guarantees: frozenset[str],
        *,
        thorough: bool,
        states_max: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._scope = scope
        self._machine = machine
        self._guarantees = guarantees
        self._joint = bool(guarantees & {"total", "synchronous"})
        self._collects = scope.program is not None
        self._thorough = thorough
        self._states_max = states_max
        self._progress = progress
        judgement = Judgement(machine, scope, guarantees, histories=self._collects or self._joint)
        self._blocks = Blocks(machine, judgement, scope)
        self._processes = range(scope.processes)
        self._start: System = tuple(
            self._blocks.cell(process, judgement.initial(process), ()) for process in self._processes
        )
        self._reached: dict[System, Reached] = {self._start: Reached(0, self._start, 0, None)}
        self._waiting: list[list[System]] = [[self._start]]
        self._judged: set[tuple[History, ...]] = set()
        self.found: Found | None = None
        self.transitions = 0
        self.depth = 0
        self.outcomes: set[tuple[History, ...]] = set()

    @property
    def states(self) -> int:
        """The number of system states that the search has reached. States between two inputs of the same block are not
        counted."""
        return len(self._reached)

    def run(self) -> Found | None:
        """Search for a violation, and return one with the smallest number of inputs. Return None if no run of the scope
        has a violation. Raise ScopeTooLargeError if there are too many states."""
        cost = 0
        taken = 0
        while cost < len(self._waiting):
            if self.found is not None and self.found.cost <= cost:
                break
            self.depth = cost
            # Every block has a cost, so no states of this cost are added while they are processed.
            for system in self._waiting[cost]:
                if self._reached[system].cost == cost:
                    self._take(system, cost)
                    taken += 1
                    if self._progress is not None and taken % 4096 == 0:
                        self._progress(len(self._reached), cost)
            self._waiting[cost] = []
            cost += 1
        return self.found

    def _take(self, system: System, cost: int) -> None:
        blocks = self._blocks
        accepted = sum([len(blocks.cells[cell][0].accepted) for cell in system])
        may_send = self._scope.program is not None or accepted < self._scope.messages
        growths = []
        for process in self._processes:
            growth = blocks.growth(process, system[process], self._incoming(system, process))
            growths.append(growth)
            self._follow(system, cost, process, growth.arrivals)
            if may_send:
                self._follow(system, cost, process, blocks.sends(process, growth))
            if growth.faults:
                self._fault(system, cost, process, growth, may_send)
        if self._joint and self._thorough:
            tails = [list(range(len(growth.nodes))) for growth in growths]
            self._combine(system, cost, growths, tails, False)
        if all(growth.ends for growth in growths):
            self._judge_quiet(system, cost, growths)

    def _incoming(self, system: System, process: int) -> Incoming:
        delivered = self._blocks.cells[system[process]][0].delivered
        outgoing = self._blocks.outgoing
        return tuple(
            [
                sent
                for source, cell in enumerate(system)
                if source != process
                for sent in outgoing[cell][process]
                if not delivered >> sent[0] & 1
            ]
        )

    def _follow(self, system: System, cost: int, process: int, blocks: list[Block]) -> None:
        reached = self._reached
        self.transitions += len(blocks)
        for block in blocks:
            cells = list(system)
            cells[process] = block.cell
            for target, post in block.posted:
                cells[target] = self._blocks.post(target, cells[target], post)
            following = tuple(cells)
            after = cost + block.steps
            known = reached.get(following)
            if known is not None and known.cost <= after:
                continue
            reached[following] = Reached(after, system, process, block)
            while len(self._waiting) <= after:
                self._waiting.append([])
            self._waiting[after].append(following)
        if len(reached) > self._states_max:
            raise ScopeTooLargeError(
                f"more than {self._states_max} states, no violation in runs of up to {self.depth} steps: "
                "expected a smaller scope or a larger --states-max"
            )

    # Violations.

    def _report(self, cost: int, finding: Finding, system: System, tails: tuple[tuple[int, list[int]], ...]) -> None:
        if self.found is None or cost < self.found.cost:
            self.found = Found(cost, finding, system, tails)

    def _fault(self, system: System, cost: int, process: int, growth: Growth, may_send: bool) -> None:
        for fault in growth.faults:
            if fault.entry >= 0 or may_send:
                tail = (process, growth.path(fault.node, fault.entry))
                self._report(cost + fault.steps, fault.finding, system, (tail,))

    def _judge_quiet(self, system: System, cost: int, growths: list[Growth]) -> None:
        locals_ = [self._blocks.cells[cell][0] for cell in system]
        for process, growth in enumerate(growths):
            wanted = 0
            for source, local in enumerate(locals_):
                for number, to in enumerate(local.accepted):
                    if to >> process & 1:
                        wanted |= 1 << self._scope.bit(source, number)
            for end in growth.ends:
                local = growth.nodes[end].local
                finding = unfinished(process, local, wanted, self._machine.idle[local.state], self._scope)
                if finding is not None:
                    ends = [growth.ends[0] for growth in growths]
                    ends[process] = end
                    self._report_nodes(system, cost, finding, growths, tuple(ends))
                    return
        if self._joint or self._collects:
            self._combine(system, cost, growths, [growth.ends for growth in growths], self._collects)

    def _report_nodes(
        self, system: System, cost: int, finding: Finding, growths: list[Growth], nodes: tuple[int, ...]
    ) -> None:
        steps = sum(growth.nodes[node].steps for growth, node in zip(growths, nodes, strict=True))
        tails = tuple(
            (process, growth.path(node)) for process, (growth, node) in enumerate(zip(growths, nodes, strict=True))
        )
        self._report(cost + steps, finding, system, tails)

    def _combine(self, system: System, cost: int, growths: list[Growth], nodes: list[list[int]], collect: bool) -> None:
        # Nodes come by rising steps, so the first with a history is the cheapest.
        lines: list[dict[History, int]] = []
        for growth, candidates in zip(growths, nodes, strict=True):
            line: dict[History, int] = {}
            for node in candidates:
                line.setdefault(growth.nodes[node].local.history, node)
            lines.append(line)
        for histories in product(*lines):
            if collect:
                self.outcomes.add(histories)
            if not self._joint or histories in self._judged:
                continue
            finding = crossed(histories, self._guarantees)
            if finding is None:
                self._judged.add(histories)
            else:
                chosen = tuple(line[history] for line, history in zip(lines, histories, strict=True))
                self._report_nodes(system, cost, finding, growths, chosen)

    def inputs(self, found: Found) -> list[tuple[int, int]]:
        """Return the run that leads to a violation, as a list of (process, input) in sequence. Inputs are written as in
        :class:`~antecede.simulator.explorer.blocks.Block`."""
        run: list[tuple[int, int]] = []
        system = found.system
        while (reached := self._reached[system]).block is not None:
            block = reached.block
            path = block.growth.path(block.node, block.entry)
            run[:0] = [(reached.process, entry) for entry in path]
            system = reached.previous
        for process, tail in found.tails:
            run += [(process, entry) for entry in tail]
        return run

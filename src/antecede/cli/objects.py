"""``antecede objects``: call replicated objects, and check, simulate and measure them. Only operations that conflict
are put in order."""

import asyncio
import itertools
import json
from typing import TYPE_CHECKING, Any

import typer

from antecede.cli.options import CLIENT, JSON, KEYS, WHERE, Keys
from antecede.cli.terminal import bar, line
from antecede.cli.wording import counted
from antecede.errors import UsageError

if TYPE_CHECKING:
    from antecede.objects.search import Pair

_arguments = typer.Argument(
    None, metavar="JSON", help="Arguments of the operation, in JSON. An argument that is not JSON is text."
)


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True,
        help="Call replicated objects, check the declared conflicts of their operations, and measure how much waiting "
        "is avoided if only conflicting operations are ordered.",
    )
    app.add_typer(group, name="objects")

    @group.command("call")
    def call(
        topology: str = WHERE,
        object_: str = typer.Argument(..., metavar="OBJECT", help="Replicated object of the topology."),
        operation: str = typer.Argument(..., metavar="OPERATION", help="Operation of the object."),
        arguments: list[str] = _arguments,
        client: str | None = CLIENT,
        server: str | None = typer.Option(
            None, metavar="NAME", help="Server to call. Default: the first server by name."
        ),
        timeout: float = typer.Option(
            10.0, help="Seconds that a call may take. After this time, the effects of the call are undone."
        ),
        keys: Keys = KEYS,
        as_json: bool = typer.Option(False, "--json", help="Print the call and its answer as one JSON document."),
    ) -> int:
        """Call one operation at all replicas and print its answer as JSON.

        If a call fails, or does not end within --timeout, all its effects are undone. The result of a call can be
        unknown if the server crashes or does not respond.

        If the operation is declared with confirm=False, and the called server has a replica, this server answers as
        soon as the call is on its disk. After this answer, the call cannot be undone.

        Exit codes:
        0: The call was done.
        2: The call was undone, or its result is not known. Standard error has the reason.
        """
        from antecede.cli.servers import Access, address_of, command_line

        address = address_of(topology, server)
        given = [_value(text) for text in arguments or ()]
        access = Access(topology, "client", *keys)

        async def main() -> Any:
            async with command_line(address, access, client, timeout) as bus:
                return await getattr(bus.object(object_, timeout=timeout), operation)(*given)

        answer = asyncio.run(main())
        report = {"object": object_, "operation": operation, "arguments": given, "answer": answer}
        print(json.dumps(report, indent=2, default=str) if as_json else json.dumps(answer, default=str))
        return 0

    @group.command("conflicts")
    def conflicts(
        module: str = typer.Argument(
            ..., metavar="MODULE[:CLASS]", help="Module or Python file with classes of objects."
        ),
        examples: int = typer.Option(300, min=1, max=100_000, help="Number of examples per pair of operations."),
        strict: bool = typer.Option(
            False, "--strict", help="Exit with code 1 also if the search finds no difference for a declared pair."
        ),
        as_json: bool = JSON,
    ) -> int:
        """Check the declared conflicts: search for operations whose order matters although no conflict is declared.

        Two operations conflict if the final state or an answer can depend on which of them is applied first. The
        library Hypothesis searches for a state and arguments that show such a difference. No search can prove that two
        operations are compatible.

        The report also names the declared pairs for which the search found no difference. The declaration of such a
        pair may cause unnecessary waiting.

        Exit codes:
        0: Every conflict that the search found is declared.
        1: The search found a conflict that is not declared. Such a conflict makes replicas diverge. With --strict, the
        code is also 1 if the search found no difference for a declared pair.
        """
        from antecede.objects.search import classes_in, pairs_of, search

        kinds = classes_in(module)
        total, done = sum(len(pairs_of(kind)) for kind in kinds), itertools.count(1)
        with bar("searching: pairs of operations") as (_, report_progress):
            found = {
                kind.__name__: search(kind, examples, lambda: report_progress(next(done), total)) for kind in kinds
            }
        if as_json:
            print(json.dumps({"objects": {name: [_pair(p) for p in pairs] for name, pairs in found.items()}}, indent=2))
        else:
            _show_pairs(found)
        findings = {pair.finding for pairs in found.values() for pair in pairs}
        return 1 if "undeclared" in findings or (strict and "needless" in findings) else 0

    @group.command("simulate")
    def simulate(
        objects: int = typer.Option(4, min=1, max=64, help="Number of objects."),
        operations: int = typer.Option(4, min=1, max=64, help="Number of operations per object."),
        density: float = typer.Option(0.3, min=0.0, max=1.0, help="Share of pairs of operations that conflict."),
        depth: int = typer.Option(2, min=0, max=8, help="Largest depth of nested calls."),
        roots: int = typer.Option(20, min=1, max=100_000, help="Number of operations that users start."),
        loss: float = typer.Option(
            0.0, min=0.0, max=0.9, help="Share of frames that are lost. Lost frames are resent."
        ),
        duplicate: float = typer.Option(0.0, min=0.0, max=0.9, help="Share of frames that arrive twice."),
        crash: float = typer.Option(0.0, min=0.0, max=0.5, help="Share of steps that end in a crash."),
        seed: int = typer.Option(1, help="Seed of the run. The same seed gives the same run."),
        trace: str | None = typer.Option(
            None, metavar="FILE", help="Record the run as a trace: .jsonl, .jsonl.gz or .parquet."
        ),
        as_json: bool = JSON,
    ) -> int:
        """Run a group of objects on a simulated network, with faults if requested, and verify the run.

        A recorded trace can be verified again with `antecede verify FILE --order significant`.

        Exit codes:
        0: Everything was delivered in order.
        1: Something was out of order, lost or blocked, or an operation was not atomic.
        """
        from antecede.simulator.groups import Workload, play
        from antecede.trace import Metadata, write_trace

        workload = Workload(
            seed, objects, operations, density, depth, roots, loss=loss, duplicate=duplicate, crash=crash
        )
        judged = play(seed, workload=workload)
        ended = judged.ended
        if ended is None:
            raise AssertionError(judged.findings)
        if trace is not None:
            write_trace(trace, ended.events, Metadata(order="objects", conflicts=ended.conflicts()))
        report = {
            "objects": objects,
            "roots": len(ended.answers),
            "committed": sum(answer.ok for answer in ended.answers.values()),
            "messages": sum(event.kind == "send" for event in ended.events),
            "deliveries": sum(event.kind == "deliver" for event in ended.events),
            "wounds": ended.wounds,
            "tries_max": max((answer.tries for answer in ended.answers.values()), default=0),
            "virtual_seconds": ended.seconds,
            "conflicts": ended.conflicts(),
            "findings": judged.findings,
        }
        print(json.dumps(report, indent=2) if as_json else _simulated(report))
        return 1 if judged.findings else 0

    @group.command("study")
    def study(
        processes: int = typer.Option(20, min=2, max=200, help="Number of objects."),
        messages: int = typer.Option(1_000, min=1, help="Number of requests in total."),
        warmup: int = typer.Option(250, min=0, help="Number of requests at the start that are not counted."),
        unicast: bool = typer.Option(
            False, "--unicast", help="Send each request to one object. Default: to several objects."
        ),
        order: str | None = typer.Option(
            None, help="Study only this order. Default: pruned, skeen, and two variants of the order `objects`."
        ),
        density: float | None = typer.Option(
            None, min=0.0, max=1.0, help="Study only this share of conflicting requests. Default: several shares."
        ),
        seed: int = typer.Option(1, help="Seed of the schedules. The same seed gives the same schedules."),
        as_json: bool = JSON,
    ) -> int:
        """Compare the costs of three orders for the same requests: objects (only conflicting requests are ordered),
        pruned (causal) and skeen (total).

        The output has one line for each combination of an order and a share of conflicting requests (density). A
        request has one copy for each destination. A line shows the share of copies that were held (had to wait after
        their arrival), the mean waiting time over all copies, and the mean time from send to delivery. Each of these
        three values is shown twice: for conflicting requests, and for compatible requests. The last two columns show
        the mean size of a stamp in bytes, and the number of control packets per message.

        Exit codes:
        0: All messages were delivered.
        1: A message was not delivered.
        """
        from antecede.orders import parse
        from antecede.simulator.groups import DENSITIES, ORDERS, Study

        if warmup >= messages:
            raise UsageError(f"--warmup {warmup} must be smaller than --messages {messages}")
        densities = DENSITIES if density is None else (density,)
        orders = ORDERS if order is None else (str(parse(order)),)
        plan = Study(processes, messages, warmup, "unicast" if unicast else "multicast", seed, densities, orders)
        rows = []
        if not as_json:
            print(_study_line(None))
        for density in plan.densities:
            for order in plan.orders:
                row = plan.run(order, density)
                rows.append(row)
                if not as_json:
                    print(_study_line(row), flush=True)
                else:
                    line(f"density {density}: {order}")
        if as_json:
            document = {"processes": processes, "messages": messages, "workload": plan.workload, "study": rows}
            print(json.dumps(document, indent=2))
        return 1 if any(row["undelivered"] for row in rows) else 0


def _pair(pair: "Pair") -> dict[str, Any]:
    example = pair.example
    return {
        "operations": list(pair.operations),
        "declared": pair.declared,
        "differs": example is not None,
        "finding": pair.finding,
        "example": None
        if example is None
        else {
            "state": repr(example.state),
            "first": repr(example.first),
            "second": repr(example.second),
            "first_then_second": repr(example.forth),
            "second_then_first": repr(example.back),
        },
    }


_finding_texts = {
    "undeclared": "CONFLICT, not declared",
    "needless": "declared, but no difference was found",
    "conflict": "conflict, as declared",
    "compatible": "compatible: no difference was found",
}


def _show_pairs(found: "dict[str, list[Pair]]") -> None:
    for name, pairs in found.items():
        print(name)
        for pair in pairs:
            one, other = pair.operations
            print(f"  {one} ~ {other}: {_finding_texts[pair.finding]}")
            if pair.finding == "undeclared":
                print(f"      {pair.example}")


def _simulated(report: dict[str, Any]) -> str:
    undone = report["roots"] - report["committed"]
    tries = counted(report["tries_max"], "try|tries")
    lines = [
        f"{counted(report['objects'], 'object')}, {counted(report['roots'], 'operation')} started by users: "
        f"{report['committed']:,} committed, {undone:,} undone, {tries} at most, {counted(report['wounds'], 'wound')}",
        f"{counted(report['messages'], 'message')}, {counted(report['deliveries'], 'delivery|deliveries')} "
        f"in {report['virtual_seconds']:.1f} virtual seconds",
    ]
    lines += [f"  {name}: {found}" for name, found in report["findings"].items()]
    lines.append("violated: see above" if report["findings"] else "holds: nothing out of order, lost or blocked")
    return "\n".join(lines)


def _study_line(row: dict[str, Any] | None) -> str:
    heads = ("held", "hold ms", "latency ms")
    if row is None:
        columns = "".join(f"{name:>14}" for kind in ("conflicting", "compatible") for name in heads)
        first = f"{'density':8}{'order':42}{'conflicting':>26}{'':16}{'compatible':>26}\n"
        return f"{first}{'':50}{columns}{'bytes':>10}{'controls':>10}"
    cells = ""
    for kind in ("conflicting", "compatible"):
        figures = row[kind]
        if figures is None:
            cells += f"{'–':>14}" * 3
        else:
            cells += f"{figures['held']:>14.1%}{figures['hold_seconds'] * 1e3:>14.1f}"
            cells += f"{figures['latency_seconds'] * 1e3:>14.1f}"
    tail = f"{row['stamp_bytes_mean']:>10.0f}{row['control_packets_per_message']:>10.1f}"
    return f"{row['density']:<8}{row['order']:42}{cells}{tail}"


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text

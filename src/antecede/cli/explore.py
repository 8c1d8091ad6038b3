"""``antecede explore``: try every possible run of a few processes and messages, and print the shortest run that breaks
a guarantee, as a scenario."""

import time
from typing import TYPE_CHECKING, Any

import typer

from antecede import limits
from antecede.cli.options import JSON
from antecede.cli.terminal import status, tell
from antecede.cli.wording import counted
from antecede.errors import BroadcastOnlyError, UsageError

if TYPE_CHECKING:
    from antecede.simulator.explorer import Result


def register(app: typer.Typer) -> None:
    @app.command()
    def explore(
        order: str = typer.Option("pruned", metavar="NAME", help="The order: NAME or NAME:option=value,…"),
        processes: int = typer.Option(3, metavar="N", help="Number of processes."),
        messages: int = typer.Option(3, metavar="M", help="Largest number of messages in total."),
        multicast: bool = typer.Option(False, "--multicast", help="Send to any set of destinations."),
        broadcast: bool = typer.Option(False, "--broadcast", help="Send to all other processes."),
        to_self: bool = typer.Option(False, "--self", help="Let processes also send to themselves."),
        fifo_links: bool = typer.Option(False, "--fifo-links", help="Let links keep the order of packets."),
        duplicates: bool = typer.Option(False, "--duplicates", help="Let every packet arrive twice."),
        program: str | None = typer.Option(
            None,
            metavar="FILE",
            help="Try only the sends in this file. It has a line 'processes P…' and lines 'send M FROM -> TO[,TO…] "
            "[after K]'. The words 'after K' mean: after K deliveries at FROM.",
        ),
        guarantee: str = typer.Option(
            "",
            metavar="LIST",
            help="Also check these orders, separated by commas: fifo, causal, total, synchronous.",
        ),
        states_max: int = typer.Option(
            limits.explorer_states_max, metavar="K", min=1, help="Give up after this many states."
        ),
        as_json: bool = JSON,
    ) -> int:
        """Try every interleaving of a few messages between a few processes.

        Each message may be sent at any moment, and packets may arrive in any sequence.

        Exit codes:
        0: Every run keeps the order's guarantee, and the guarantees that --guarantee names.
        1: A run breaks a guarantee. The shortest such run is printed as a scenario file.
        2: There are too many interleavings, or the options contradict each other.
        """
        if multicast and broadcast:
            raise UsageError("--multicast and --broadcast exclude each other")
        from antecede.orders import parse
        from antecede.simulator.explorer import explore as search
        from antecede.simulator.explorer import read_program

        scope: dict[str, Any] = {
            "processes": processes,
            "messages": messages,
            "mode": "broadcast" if broadcast else "multicast" if multicast else "unicast",
            "to_self": to_self,
            "fifo_links": fifo_links,
            "duplicates": duplicates,
        }
        if program is not None:
            names, sends = read_program(program)
            scope |= {"program": sends, "process_names": names}
            scope |= {"processes": len(names), "messages": sum(map(len, sends))}
        elif "broadcast" in parse(order).kind.needs and not broadcast:
            raise BroadcastOnlyError(f"order {parse(order).name} supports broadcasts only: add --broadcast")
        asked = tuple(filter(None, (word.strip() for word in guarantee.split(","))))
        begun = time.monotonic()
        with status("exploring") as report_status:

            def progress(states: int, inputs: int) -> None:
                report_status(f"exploring: {states:,} states, runs of {inputs} inputs")

            result = search(order, **scope, guarantee=asked, states_max=states_max, progress=progress)
        report = _report(order, scope, result, round(time.monotonic() - begun, 3))
        tell(report, as_json, _lines)
        return 1 if result.violation is not None else 0


def _report(order: str, scope: dict[str, Any], result: "Result", seconds: float) -> dict[str, Any]:
    violation = result.violation
    names = scope.get("process_names", ())
    return {
        "order": order,
        "processes": scope["processes"],
        "messages": scope["messages"],
        "mode": "program" if names else scope["mode"],
        "self": scope["to_self"],
        "fifo_links": scope["fifo_links"],
        "duplicates": scope["duplicates"],
        "checked": sorted(result.checked),
        "holds": violation is None,
        "states": result.states,
        "transitions": result.transitions,
        "local_states": result.local_states,
        "inputs": result.depth,
        "outcomes": [dict(zip(names, outcome, strict=True)) for outcome in sorted(result.outcomes)] if names else None,
        "violation": None
        if violation is None
        else {
            "kind": violation.kind,
            "text": violation.text,
            "inputs": len(violation.actions),
            "scenario": violation.scenario,
        },
        "seconds": seconds,
    }


def _lines(report: dict[str, Any]) -> list[str]:
    checked = ", ".join([*report["checked"], "everything delivered once"])
    effort = (
        f"{counted(report['states'], 'state')}, {counted(report['transitions'], 'transition')}, {report['seconds']} s"
    )
    if report["violation"] is not None:
        # The whole output is one file that `antecede play` can read.
        return [f"# {report['order']} breaks: {effort}", report["violation"]["scenario"].rstrip("\n")]
    lines = [
        f"{report['order']} holds in every run of {counted(report['processes'], 'process|processes')} and "
        f"{counted(report['messages'], 'message')} ({report['mode']})",
        f"checked: {checked}",
        effort,
    ]
    if report["outcomes"] is not None:
        lines.append(f"{counted(len(report['outcomes']), 'joint delivery order')}:")
        lines += [
            "  " + "   ".join(f"{process}: {' '.join(names) or '–'}" for process, names in outcome.items())
            for outcome in report["outcomes"]
        ]
    return lines

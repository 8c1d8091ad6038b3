"""``antecede orders``: what each ordering protocol guarantees, needs and sends."""

import json
from typing import Any

import typer

from antecede.cli.options import JSON


def register(app: typer.Typer) -> None:
    @app.command()
    def orders(
        as_json: bool = JSON,
    ) -> None:
        """List the ordering protocols: what each one guarantees and needs, and which control packets it sends."""
        from antecede.crashes import print_error
        from antecede.errors import OrderError
        from antecede.orders import names, parse

        rows: list[dict[str, Any]] = []
        for name in names():
            try:
                spec = parse(name)
            except OrderError as error:
                # An order of another package that cannot be used does not hide the others.
                print_error(str(error))
                continue
            kind = spec.kind
            rows.append(
                {
                    "name": name,
                    "guarantees": sorted(spec.guarantees()),
                    "needs": sorted(kind.needs),
                    "controls": list(kind.controls),
                    "options": {
                        option: {"default": o.default, "choices": list(o.choices), "help": o.help}
                        for option, o in kind.options.items()
                    },
                    "source": kind.source,
                }
            )
        if as_json:
            print(json.dumps({"orders": rows}, indent=2))
            return
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, header_style="bold", pad_edge=False)
        for column in ("order", "guarantees", "control packets", "options", "from"):
            # An option with a line break in the middle of a word could not be copied.
            table.add_column(column, overflow="fold", no_wrap=column in ("order", "options"))
        for row in rows:
            options = "\n".join(f"{option}={str(o['default']).lower()}" for option, o in row["options"].items())
            table.add_row(
                row["name"],
                (", ".join(row["guarantees"]) or "–") + (" (broadcasts only)" if "broadcast" in row["needs"] else ""),
                ", ".join(row["controls"]) or "–",
                options or "–",
                row["source"],
            )
        Console().print(table)

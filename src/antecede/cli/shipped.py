"""The commands ``demo`` and ``chat`` are examples. Without the examples there are no such commands."""

import sys
from importlib import import_module

import typer

from antecede.samples import place_of


def register_example(folder: str, module: str, app: typer.Typer) -> None:
    """Let a module of an example register its command."""
    place = place_of(folder)
    if place is not None:
        if str(place) not in sys.path:
            # At the end: an example must not hide a module that somebody else needs.
            sys.path.append(str(place))
        import_module(module).register(app)

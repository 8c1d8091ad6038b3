"""A graph for Graphviz. ``dot -Tsvg`` draws the graph as a space-time diagram: each process is a row, and time passes
from left to right.

Graphviz's own layout would bend the rows of processes. So every point has a fixed place (``pos="x,y!"``), and the graph
asks for the layout program that keeps these places.
"""

from collections.abc import Iterator

from antecede.trace.exporting.view import View, described, label_of, one_line
from antecede.trace.schema import ARRIVE, DELIVER, SEND

_shapes = {SEND: "square", DELIVER: "circle", ARRIVE: "diamond"}
_step_inches = 0.6
_row_inches = 1.0


def written(view: View) -> Iterator[str]:
    """Yield the graph, line by line."""
    yield "digraph trace {\n"
    yield '  graph [layout=neato, splines=line, outputorder=edgesfirst, fontname="sans-serif"];\n'
    yield '  node [label="", width=0.14, height=0.14, fixedsize=true, style=filled, fillcolor=black];\n'
    yield '  edge [fontname="sans-serif", fontsize=10, arrowsize=0.7];\n'
    columns = {(one.process, one.position): number for number, one in enumerate(view.sequence, 1)}
    width = max((len(one_line(name)) for name in view.trace.names), default=0) * 0.1 + 0.3
    for process, name in enumerate(view.trace.names):
        yield from _row(view, process, name, columns, width)
    for process, (line, origins) in enumerate(zip(view.trace.lines, view.trace.origins, strict=True)):
        for position, (event, origin) in enumerate(zip(line, origins, strict=True)):
            if origin is None:
                continue
            text = label_of(view.trace.sent(event.message or "")) or one_line(event.message or "")
            style = f"label={_quoted(text)}"
            if view.is_late(event) is not None:
                style = f"label={_quoted(text + ' (late)')}, color=red, fontcolor=red, penwidth=2"
            yield f"  {_node(*origin)} -> {_node(process, position)} [{style}];\n"
    yield "}\n"


def _row(view: View, process: int, name: str, columns: dict[tuple[int, int], int], width: float) -> Iterator[str]:
    height = -process * _row_inches
    look = f'shape=plaintext, fixedsize=false, fillcolor=transparent, fontname="sans-serif", pos="0,{height:g}!"'
    yield f"  p{process} [label={_quoted(name)}, {look}];\n"
    before = f"p{process}"
    for position, event in enumerate(view.trace.lines[process]):
        late = view.is_late(event)
        colour = ", fillcolor=red, color=red" if late is not None else ""
        shape = _shapes.get(event.kind, "point")
        tip = _quoted(f"{name} {event.index}: {described(event, late)}")
        place = f'pos="{width + columns[process, position] * _step_inches:g},{height:g}!"'
        yield f"  {_node(process, position)} [shape={shape}, {place}, tooltip={tip}{colour}];\n"
        yield f"  {before} -> {_node(process, position)} [arrowhead=none, color=gray50];\n"
        before = _node(process, position)


def _node(process: int, position: int) -> str:
    return f"e{process}_{position}"


def _quoted(text: str) -> str:
    return '"' + one_line(text).replace("\\", "\\\\").replace('"', '\\"') + '"'

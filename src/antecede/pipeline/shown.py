"""Reports that a Jupyter notebook shows as tables and drawings. Outside of notebooks, a report is a plain
dictionary."""

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from antecede.diagram.computation import of_explanation
from antecede.diagram.svg import draw_stack
from antecede.errors import DiagramError

_rows_max = 20
"""A notebook shows at most this number of entries of a list. The report itself has all entries."""


class Report(dict[str, Any]):
    """A report of the pipeline, with the keys of the JSON report."""

    def _repr_html_(self) -> str:
        """Return the HTML that Jupyter shows."""
        parts = [_table(_flat(self))]
        if "orders" in self:
            entries = [{"order": order, **entry} for order, entry in self["orders"].items()]
            parts.append(_rows(entries))
        if self.get("traffic"):
            parts.append(_rows(self["traffic"]))
        if self.get("explanations"):
            parts.append(_drawing(self["explanations"]))
        return "\n".join(parts)


def _flat(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the single values of a report. A value in an inner dictionary gets the name ``outer.inner``. Lists, the
    key ``orders`` and dictionaries within inner dictionaries are left out."""
    found: dict[str, Any] = {}
    for key, value in report.items():
        if isinstance(value, Mapping):
            if key != "orders":
                found |= {f"{key}.{name}": inner for name, inner in value.items() if not isinstance(inner, list | dict)}
        elif not isinstance(value, list):
            found[key] = value
    return found


def _table(figures: Mapping[str, Any]) -> str:
    rows = (f"<tr><th>{escape(key)}</th><td>{_cell(value)}</td></tr>" for key, value in figures.items())
    return f"<table>{''.join(rows)}</table>"


def _rows(entries: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for entry in entries for name in entry))
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(f'<td>{_cell(entry.get(name))}</td>' for name in names)}</tr>" for entry in entries[:_rows_max]
    )
    more = len(entries) - _rows_max
    return f"<table><tr>{head}</tr>{body}</table>" + (f"<p>… and {more:,} more</p>" if more > 0 else "")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return escape(", ".join(f"{key} {inner}" for key, inner in value.items()))
    if isinstance(value, Iterable) and not isinstance(value, str):
        return escape(" → ".join(map(str, value)))
    return escape(f"{value:,}" if type(value) is int else str(value))


def _drawing(explanations: list[dict[str, Any]]) -> str:
    try:
        return draw_stack([of_explanation(explanation) for explanation in explanations[:_rows_max]])
    except DiagramError as error:
        return f"<p>not drawn: {escape(str(error))}</p>"

"""Write the source of the documentation site: the documents, and pages that are generated from the code.

``./run docs`` calls this with the project's environment, and then builds the site from ``build/site-source`` with
mkdocs. Generated pages are not committed: the command line from the Typer application, the limits from ``limits``,
and one page per public module, which mkdocstrings fills from docstrings. The home page is the README.

A link to a file of the repository that is not a page becomes plain text. A link to a file that does not exist is left
as it is, so that the build fails.
"""

import ast
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "build" / "site-source"

API = {
    "agents": ("Agents and clients", ["antecede.engine.agents", "antecede.engine.agents", "antecede.live.client.bus"]),
    "testing": ("Testing agents", ["antecede.testing"]),
    "objects": ("Replicated objects", ["antecede.objects.model"]),
    "orders": ("Orders", ["antecede.orders.contract", "antecede.messages"]),
    "traces": ("Traces", ["antecede.trace.schema", "antecede.trace.report"]),
    "record": ("Recording other systems", ["antecede.record"]),
    "pipeline": ("The Spark pipeline", ["antecede.pipeline.frames"]),
    "errors": ("Errors", ["antecede.errors"]),
}
"""The pages of the API reference: title and modules."""


def write(source: Path = SOURCE) -> list[str]:
    """Write all pages; return their paths."""
    shutil.rmtree(source, ignore_errors=True)
    pages = {
        str(path.relative_to(ROOT / "docs")): path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "docs").rglob("*.md"))
    }
    origin = {name: ROOT / "docs" / name for name in pages}
    for name, file in (("index", "README"), ("changes", "CHANGELOG"), ("contributing", "CONTRIBUTING")):
        pages[f"{name}.md"] = (ROOT / f"{file}.md").read_text(encoding="utf-8")
        origin[f"{name}.md"] = ROOT / f"{file}.md"
    pages = {name: _linked(text, name, origin) for name, text in pages.items()}
    pages["cli.md"] = command_line()
    pages["limits.md"] = limits_page()
    for name, (title, modules) in API.items():
        parts = "\n\n".join(f"::: {module}" for module in modules)
        pages[f"api/{name}.md"] = f"# {title}\n\n{parts}\n"
    for name, text in pages.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "images", source / "images")
    shutil.copy(ROOT / "tools" / "site.css", source / "site.css")
    return sorted(pages)


def _linked(text: str, name: str, origin: dict[str, Path]) -> str:
    """Return a page with its links as they are on the site."""
    here = origin[name].parent
    places = {path.resolve(): page for page, path in origin.items()}

    def link(match: re.Match[str]) -> str:
        mark, words, target = match[1], match[2], match[3]
        path, hash_, anchor = target.partition("#")
        if "://" in target or not path:
            return match[0]
        file = (here / path).resolve()
        up = "../" * name.count("/")
        if file in places:
            return f"{mark}[{words}]({up}{places[file]}{hash_}{anchor})"
        if file.is_relative_to(ROOT / "docs" / "images") and file.exists():
            return f"{mark}[{words}]({up}{file.relative_to(ROOT / 'docs')})"
        return words if file.exists() else match[0]

    # Code is left as it is.
    pieces = re.split(r"(```.*?```|`[^`\n]*`)", text, flags=re.DOTALL)
    joined = [
        piece if place % 2 else re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", link, piece)
        for place, piece in enumerate(pieces)
    ]
    return _with_code(text, "".join(joined), link)


def _with_code(text: str, joined: str, link: Any) -> str:
    """Change also links whose words contain code, which were cut into pieces."""
    return re.sub(r"(!?)\[((?:[^\]`]*`[^`]*`)+[^\]]*)\]\(([^)\s]+)\)", link, joined)


def command_line() -> str:
    """Return the reference of all commands, from the application itself."""
    import typer

    from antecede.cli import _flowing, build
    from antecede.cli.examples import PANELS

    root = _flowing(typer.main.get_command(build()))
    lines = [
        "# The command line",
        "",
        "Every command explains itself with `--help`. Most commands have these exit codes:",
        "",
        "- 0: The command is done, and the property holds.",
        "- 1: The property is violated.",
        "- 2: The command line is wrong, or the input cannot be read.",
        "",
    ]
    panels = [name for some in PANELS.values() for name in some]
    names = sorted(root.commands, key=lambda name: (panels.index(name) if name in panels else len(panels), name))
    for name in names:
        if not root.commands[name].hidden:
            lines += _command(root.commands[name], name)
    return "\n".join(lines) + "\n"


def _command(command: Any, path: str) -> Iterator[str]:
    parts = getattr(command, "commands", None)
    if parts is not None:
        yield from (f"## antecede {path}", "", _text(command.help), "")
        for name, part in parts.items():
            yield from _command(part, f"{path} {name}")
        return
    depth = "###" if " " in path else "##"
    yield from (f"{depth} antecede {path}", "", _text(command.help), "")
    examples = (command.epilog or "").split("\n\n")[1:]
    if examples:
        yield from ("```sh", *examples, "```", "")
    rows = [row for option in command.params if (row := _option(option))]
    if rows:
        yield from ("| argument or option | meaning |", "|---|---|", *rows, "")


def _option(option: Any) -> str | None:
    if "--help" in option.opts or getattr(option, "hidden", False):
        return None
    told = _cell(option.help or "")
    if option.param_type_name == "argument":
        return f"| `{option.metavar or option.name}` | {told} |"
    value = "" if option.is_flag else " " + (option.metavar or "VALUE")
    default = option.default
    # An empty text or list stands for no value; the help text names what happens then.
    hidden = default is None or default in ("", []) or callable(default) or option.is_flag
    shown = "" if hidden else f" Default: `{default}`."
    return f"| `{', '.join(option.opts)}{value}` | {told}{shown} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _text(text: str | None) -> str:
    """Return a help text as Markdown. Lines that begin with a word or a number and a colon become a list."""
    lines = (text or "").replace("<", "&lt;").replace("\b", "").split("\n")
    items = [re.match(r"(?:[a-z]+|\d+): ", line) is not None for line in lines]
    shown = []
    for line, item, before in zip(lines, items, [False, *items], strict=False):
        shown += [""] if item and not before else []
        shown.append(f"- {line}" if item else line)
    return "\n".join(shown)


def limits_page() -> str:
    """Return the table of all bounds with their reasons, from the source of ``limits``."""
    nodes = ast.parse((ROOT / "src" / "antecede" / "limits.py").read_text(encoding="utf-8")).body
    from antecede import limits

    lines = ["# Limits and sizes", "", "Nothing from outside can make Antecede use memory or time without end: each of"]
    lines += [
        "these bounds is checked, and has a test. The last part of a name is the unit. What large systems need is"
    ]
    lines += ["calculated in [sizes](scale.md).", "", "| bound | value | reason |", "|---|---|---|"]
    group: list[str] = []
    for node in nodes:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            group.append(node.target.id)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            group += [one.id for one in node.targets[0].elts if isinstance(one, ast.Name)]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and group:
            reason = _cell(str(node.value.value))
            for name in group:
                value = getattr(limits, name)
                if isinstance(value, dict):
                    written = ", ".join(f"{key} {one:,}" for key, one in value.items())
                else:
                    written = f"{value:,}"
                lines.append(f"| `{name}` | {written} | {reason} |")
            group = []
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(f"{len(write())} pages in {SOURCE.relative_to(ROOT)}", file=sys.stderr)

"""The line numbers of keys in a TOML file, for error messages. The TOML parser does not report them."""

import re


def line_of(text: str, path: tuple[str, ...]) -> int | None:
    """Return the line number of a key in a TOML text. ``path``: the names of the tables around the key, then the key.

    If no line begins with the key, return the line of the innermost table in ``path`` that has its own line. If no
    table has its own line either, return None. The text is searched line by line, not parsed.
    """
    header: tuple[str, ...] = ()
    best: tuple[int, int | None] = (0, None)
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.match(r"\s*\[+([^\]]+)\]", line):
            given = header = _keys(found[1])
        elif found := re.match(r"""\s*((?:[\w.\s-]|"[^"]*"|'[^']*')+?)\s*=""", line):
            given = header + _keys(found[1])
        else:
            continue
        if given == path[: len(given)] and len(given) > best[0]:
            best = (len(given), number)
    return best[1]


def _keys(dotted: str) -> tuple[str, ...]:
    parts = re.findall(r"""\s*(?:"([^"]*)"|'([^']*)'|([^.\s"']+))\s*(?:\.|$)""", dotted)
    return tuple("".join(part) for part in parts)

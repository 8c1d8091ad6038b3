"""Change an access file that a person may have edited: append tables, and replace the keys in a table.

Comments, layout and line ends stay. The changed text is parsed before it is written. If its content differs from the
wanted content, the file is not changed. If keys cannot be replaced, the error message contains the text that the
operator must write into the file.
"""

import re
from pathlib import Path

import msgspec

from antecede import limits
from antecede.access import Access, Identity, Key, parse_access
from antecede.access.model import ROLES
from antecede.documents import read_text
from antecede.errors import AccessError
from antecede.live.issuing import FOLDERS, keys_text, table, write_public


class AccessText:
    """The text of an access file and its parsed content. Both are changed together; ``write`` writes the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.existed = path.exists()
        text = read_text(path, limits.access_bytes_max, AccessError) if self.existed else _head
        self._line_end = "\r\n" if "\r\n" in text else "\n"
        self._text = text.replace("\r\n", "\n")
        self.access = parse_access(self._text, str(path))

    def add(self, identity: Identity) -> None:
        """Append the table of a new identity to the text."""
        if identity.name in self.access.identities(identity.role):
            raise AccessError(f"{self.path}: {identity.label} exists already: use antecede credentials rotate")
        self._change(self._text.rstrip("\n") + "\n" + table(identity), _with(self.access, identity))

    def set_keys(self, identity: Identity, keys: tuple[Key, ...]) -> None:
        """Replace the keys in the table of an identity."""
        wanted = _with(self.access, msgspec.structs.replace(identity, keys=keys))
        try:
            self._change(_replaced(self._text, identity, keys_text(keys)), wanted)
        except AccessError:
            where = f"{FOLDERS[identity.role]}.{identity.name}"
            raise AccessError(f"{self.path}: cannot edit {where}: set keys = {keys_text(keys)} by hand") from None

    def _change(self, text: str, wanted: Access) -> None:
        found = parse_access(text, str(self.path))
        if found.digest != wanted.digest:
            raise AccessError(f"{self.path}: not changed, because this edit would change more than intended")
        self._text, self.access = text, found

    def write(self) -> None:
        """Write the file atomically: a reader finds either the previous content or the new content."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_public(self.path, self._text.replace("\n", self._line_end).encode())


def find(access: Access, name: str) -> Identity:
    """Return the identity with this name. If identities of several roles have the same name, ``name`` must have the
    form ``ROLE/NAME``."""
    role, _, plain = name.rpartition("/")
    found = [
        access.identities(one)[plain]
        for one in ROLES
        if role in ("", one, FOLDERS[one]) and plain in access.identities(one)
    ]
    if not found:
        raise AccessError(f"{access.name}: no identity {name!r}; to list all: antecede credentials show")
    if len(found) > 1:
        choices = " or ".join(f"{one.role}/{one.name}" for one in found)
        raise AccessError(f"{access.name}: several identities {name!r}: expected {choices}")
    return found[0]


def _with(access: Access, identity: Identity) -> Access:
    key = FOLDERS[identity.role]
    return msgspec.structs.replace(access, **{key: {**access.identities(identity.role), identity.name: identity}})


def _replaced(text: str, identity: Identity, keys: str) -> str:
    """Return the text of the access file with new keys for an identity. ``text``: the present text of the file.
    ``keys``: the new list of keys, as text."""
    name = re.escape(identity.name)
    header = re.search(rf"^[ \t]*\[{FOLDERS[identity.role]}\.(?:{name}|\"{name}\")\][^\n]*\n", text, re.MULTILINE)
    if header is None:
        raise AccessError(f"the access file has no table for {identity.label}")
    end = re.compile(r"^[ \t]*\[[^\n]*\][ \t]*(?:#[^\n]*)?$", re.MULTILINE).search(text, header.end())
    body = text[header.end() : end.start() if end else len(text)]
    found = re.search(r"^[ \t]*keys[ \t]*=[ \t]*(?=\[)", body, re.MULTILINE)
    if found is None:
        changed = f"keys = {keys}\n{body}"
    else:
        changed = body[: found.end()] + keys + body[_closing(body, found.end()) :]
    return text[: header.end()] + changed + text[header.end() + len(body) :]


def _closing(text: str, start: int) -> int:
    """Return the index directly after the closing bracket of the list that begins at ``start``. The search
    ignores quotes: the strings in the list are keys, and keys contain no brackets."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"[": 1, "]": -1}.get(text[place], 0)
        if not depth:
            return place + 1
    raise AccessError("no closing bracket")


_head = """\
# Who may connect to the servers of this topology, and what each may do: see docs/guide/security.md.
# After a change: kill -HUP every server. A missing permission allows nothing; "*" allows everything.

[anonymous]
operate = ["health", "live", "ready"]
"""

"""A hook of mkdocs: docstrings name classes as Sphinx does, ``:class:`X```; a page shows just ``X``."""

import re
from typing import Any


def on_page_content(html: str, **_: Any) -> str:
    """Return the page without the names of roles."""
    return re.sub(r":(?:class|mod|func|meth|data|attr|exc):(<code>)~?", r"\1", html)

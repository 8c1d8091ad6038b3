"""Hooks of mkdocs.

Docstrings name classes as Sphinx does, ``:class:`X```; a page shows just ``X``. The theme would load the part of its
search that works from a disk from another site; pages contain ours instead, so that they load nothing from outside.
"""

import re
from pathlib import Path
from typing import Any

_worker = Path(__file__).with_name("site_worker.js")


def on_page_content(html: str, **_: Any) -> str:
    """Return the page without the names of roles."""
    return re.sub(r":(?:class|mod|func|meth|data|attr|exc):(<code>)~?", r"\1", html)


def on_post_page(output: str, **_: Any) -> str:
    """Return the page with our own worker."""
    script = f"<script>{_worker.read_text(encoding='utf-8')}</script>"
    return re.sub(r'<script src="https://[^"]*iframe-worker[^"]*"></script>', lambda _: script, output)


def on_post_template(output_content: str, **_: Any) -> str:
    """Return the page that says that there is no such page, with our own worker."""
    return on_post_page(output_content)

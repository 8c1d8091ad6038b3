"""A guide can be the first page that a reader opens. So where a guide uses a word of the glossary for the first time,
the word is a link, or the guide explains it there (the word is in *italics* or **bold**)."""

import re
from pathlib import Path

import pytest

_docs = Path(__file__).resolve().parents[2] / "docs"
_words = {
    "agent": "agents?",
    "dead letter": "dead letters?",
    "domain": "domains?",
    "epoch": "epochs?",
    "held": "held",
    "hop": "hops?",
    "letter": r"(?<!dead )letters?(?!, digits)",
    "mailbox": "mailbox(?:es)?",
    "notification": "notifications?",
    "packet": "packets?",
    "reaction": "reactions?",
    "router": "routers?",
    "stamp": "stamps?",
    "topology": "topolog(?:y|ies)",
}
"""Words that have no other meaning in the guides, and the forms in which they occur."""

_code = re.compile(r"^( *)```.*?^\1```$|`[^`]*`|^#.*$", re.S | re.M)
_link = re.compile(r"\[[^\]]*\]\([^)]*\)")


@pytest.mark.parametrize("guide", sorted((_docs / "guide").glob("*.md")), ids=lambda one: one.stem)
def test_the_first_use_of_a_word_is_explained(guide: Path) -> None:
    assert _unexplained(guide.read_text()) == []


def test_an_unexplained_word_is_found() -> None:
    explained = "A [router](x.md) forwards *letters*. A **domain** has routers. `topology` is code."
    assert _unexplained(explained) == []
    assert _unexplained("Write letters, digits and dots.") == []
    assert _unexplained("A router forwards dead\nletters to [another router](x.md).") == ["dead letter", "router"]


def test_the_glossary_explains_the_words() -> None:
    explained = set(re.findall(r"^\| \*\*(.+?)\*\*", (_docs / "glossary.md").read_text(), re.M))
    assert _words.keys() <= explained


def _unexplained(text: str) -> list[str]:
    """Return the words whose first use is neither a link nor in italics or bold."""
    text = re.sub(r"\s+", " ", _code.sub("", text))
    links = [one.span() for one in _link.finditer(text)]
    found = []
    for word, forms in _words.items():
        first = re.search(rf"(?<![\w/#-]){forms}(?![\w.#-]*[\w)])", text)
        if first is None or text[first.start() - 1] == "*":
            continue
        if not any(start <= first.start() < end for start, end in links):
            found.append(word)
    return found

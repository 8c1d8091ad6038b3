"""Plain English, as far as a regular expression can check it: in documents, messages, docstrings and comments.

Each habit has a pattern, a sentence that shows it and the same sentence in plain words. The first test proves that the
patterns find the former and accept the latter; the others list every text that shows a habit. Code is not prose: text
in back quotes and in code blocks is not checked. Tests are not checked either. Of the names in ``src/``, a last test
lists those that are on a short list of metaphors; it does not judge other names.
"""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from helpers.syntax import parsed

_root = Path(__file__).resolve().parents[2]
_words_max = 45
"""Words of one sentence in a document. Most have fewer than 25; sentences with a list are longer."""


class _Habit(NamedTuple):
    """A way of writing that readers must decode."""

    pattern: re.Pattern[str]
    shows: str
    plain: str


def _habit(pattern: str, shows: str, plain: str) -> _Habit:
    return _Habit(re.compile(pattern), shows, plain)


_of_one = "process|task|file|seed|turn|message|letter|domain|server|copy|row|line|frame|second|round|event|member|peer"
_no_noun = "code|set|in|of|to|at|on|if|from|by|for|with|as|than"
_habits = {
    "old words": _habit(
        r"\b([Aa]new|[Ww]hom|[Ww]hoever|[Ww]homever|[Nn]obody|[Ss]omebody|[Hh]itherto|[Tt]hereof)\b",
        "Whoever was told so gets it anew.",
        "Clients that got the answer get it again.",
    ),
    "old phrases": _habit(
        r"\bof before\b|\bso many (?!that\b)|\bfor else\b|\bfor want of\b|\bto and fro\b|\bbut for\b|\bhung up on\b",
        "It sends so many letters to and fro, for else the data of before is lost.",
        "It sends this number of letters back and forth, since otherwise the previous data is lost.",
    ),
    "is no X": _habit(
        r"(?<![Tt]here )\b(is|are|was|were) (no (?!longer\b|more\b|less\b|fewer\b)[a-z]|none\b)",
        "A line that is no event, and a row that is none.",
        "There is no event in the line, and the row is not an event.",
    ),
    "a for per": _habit(
        rf"\b([Oo]ne|[Aa]|\d+) (?!{_no_noun})[a-z-]+ a ({_of_one})\b(?! set| was| time)",
        "A vector a process, one file a task.",
        "One vector per process, one file per task.",
    ),
    "of its own": _habit(
        r"\bof (its|their|one's|his|our|your) own(?=[.,;:)]|$| and\b| that\b| which\b| in\b| on\b| at\b)",
        "Each in a folder of its own.",
        "Each in a separate folder, the state of its own process.",
    ),
    "code that talks": _habit(
        r"\b([Hh]ears?|[Hh]eard|tells?|[Tt]old|[Ss]peaks?|[Ss]poken?)\b",
        "The peer is told, and hears that nobody speaks.",
        "The peer gets a message that the link is silent.",
    ),
    "metaphors": _habit(
        r"\b([Tt]he house|house's|[Rr]ooms|[Tt]his room|[Dd]ice|[Nn]eighbours?)\b",
        "This room rolls no dice.",
        "This package uses no randomness.",
    ),
}
_metaphors = {"said", "told", "heard", "unheard", "docket", "Docket", "deeds", "Deeds", "knots", "neighbour"}
"""Words that no name in the source may consist of, with or without underscores at its ends. The first three say only
that a value was sent or received; a name says what the value is. The chat's message class ``Said`` is allowed, because
the name of a message class is on the wire."""
_question = re.compile(r"\A(What|Who|Whom|Which|Where|Why|That|When|If)\b(?!.*\?)", re.DOTALL)
_code = re.compile(r"```.*?```|``[^`]*``|`[^`]*`|^\s*::\n\n(?:    .*\n|\n)+", re.DOTALL | re.MULTILINE)


@cache
def _files(*patterns: str) -> list[Path]:
    names = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=_root, capture_output=True, text=True, check=True)
    return [_root / name for name in names.stdout.split("\0") if name]


@cache
def _python() -> list[Path]:
    return [path for path in _files("src", "tools", "examples", "run") if path.suffix == ".py" or path.name == "run"]


def _prose(text: str) -> str:
    """Return text without code and line breaks."""
    return " ".join(_code.sub(" X ", text).split())


class _Text(NamedTuple):
    """One docstring, comment or message."""

    where: str
    kind: str
    text: str


def _texts_of(path: Path) -> Iterator[_Text]:
    source = path.read_text(encoding="utf-8")
    name = str(path.relative_to(_root))
    docstrings = set()
    tree = parsed(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.add(id(node.value))
            yield _Text(f"{name}:{node.lineno}", "docstring", _prose(node.value.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            text = node.value
        else:
            continue
        if len(text.split()) >= 3:
            yield _Text(f"{name}:{node.lineno}", "message", _prose(text))
    for line, comment in _comments(source):
        yield _Text(f"{name}:{line}", "comment", _prose(comment))


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Return the comments, with those on consecutive lines joined."""
    joined: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if joined and token.start[0] != last + 1:
                yield last, " ".join(joined)
                joined = []
            joined.append(token.string.lstrip("# "))
            last = token.start[0]
    if joined:
        yield last, " ".join(joined)


@cache
def _texts() -> list[_Text]:
    return [text for path in _python() for text in _texts_of(path)]


@cache
def _paragraphs() -> list[_Text]:
    """Return the paragraphs, list items and table rows of all documents."""
    found = []
    for path in _files("*.md"):
        text = re.sub(r"```.*?```", lambda code: "\n" * code[0].count("\n"), path.read_text("utf-8"), flags=re.DOTALL)
        number = 1
        for part in re.split(r"(\n(?=\n|\s*[-*|#]|\s*\d+\. ))", text):
            if part.strip():
                found.append(_Text(f"{path.relative_to(_root)}:{number}", "document", _prose(part)))
            number += part.count("\n")
    return found


def test_the_patterns_find_the_habits() -> None:
    assert [name for name, habit in _habits.items() if not habit.pattern.search(habit.shows)] == []
    good = [habit.plain for habit in _habits.values()]
    assert [(name, text) for name, habit in _habits.items() for text in good if habit.pattern.search(text)] == []
    assert _question.search("What a link says of a frame.")
    assert not _question.search("Return the verdict.")


def test_there_are_texts_to_check() -> None:
    kinds = [text.kind for text in _texts()]
    assert kinds.count("docstring") > 2_500
    assert kinds.count("message") > 1_000
    assert kinds.count("comment") > 300
    assert len(_paragraphs()) > 1_000


@pytest.mark.parametrize("name", _habits)
def test_texts_in_the_source_are_plain(name: str) -> None:
    found = [f"{text.where}: {text.text}" for text in _texts() if _habits[name].pattern.search(text.text)]
    assert found == [], f"{name}: write {_habits[name].plain!r}"


@pytest.mark.parametrize("name", _habits)
def test_documents_are_plain(name: str) -> None:
    found = [f"{text.where}: {text.text}" for text in _paragraphs() if _habits[name].pattern.search(text.text)]
    assert found == [], f"{name}: write {_habits[name].plain!r}"


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    docstrings = [text for text in _texts() if text.kind == "docstring"]
    found = [f"{text.where}: {text.text}" for text in docstrings if _question.search(text.text)]
    assert found == [], "expected a verb such as Return, or a noun"


def test_sentences_of_documents_are_short() -> None:
    sentences = [(text.where, one) for text in _paragraphs() for one in re.split(r"(?<=[.!?:;|·])\s", text.text)]
    assert [f"{where}: {one}" for where, one in sentences if len(one.split()) > _words_max] == []


def _names_defined(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each function, class, argument, and assigned variable or attribute."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr
            case ast.alias(asname=str(name)):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name


def _metaphors_in(source: str) -> list[tuple[int, str]]:
    return sorted(one for one in _names_defined(parsed(source)) if one[1].strip("_") in _metaphors)


def test_the_list_of_names_finds_each_kind_of_name() -> None:
    source = """
class Deeds:
    neighbour: int
def _told(said, *heard, docket=1):
    self._heard = said
    for knots, (_, _said) in pairs: pass
    with door as unheard: pass
    return [told for told in said if told.said], self.heard, call(neighbour=1)
import knowledge as __knots
"""
    assert _metaphors_in(source) == [
        (2, "Deeds"), (3, "neighbour"), (4, "_told"), (4, "docket"), (4, "heard"), (4, "said"), (5, "_heard"),
        (6, "_said"), (6, "knots"), (7, "unheard"), (8, "told"), (9, "__knots"),
    ]  # fmt: skip
    assert _metaphors_in("class Said: pass\nfor neighbours in untold: told_apart = said(heard.told)") == []


def test_names_in_the_source_are_plain() -> None:
    sources = [path for path in _python() if path.is_relative_to(_root / "src")]
    assert len(sources) > 300
    modules = [str(path.relative_to(_root)) for path in sources if path.stem.strip("_") in _metaphors]
    assert modules == [], "name the module after what it contains"
    found = [
        f"{path.relative_to(_root)}:{line}: {name}"
        for path in sources
        for line, name in _metaphors_in(path.read_text(encoding="utf-8"))
    ]
    assert found == [], "name what the value is"

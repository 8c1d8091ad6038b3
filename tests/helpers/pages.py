"""The fenced blocks of the documentation, played as printed.

Each page is played in a folder of its own, from top to bottom, as a reader would. The language of a block says how:

- ``sh``: commands, one per line. A remark such as ``# exit code 1`` names the expected exit code; otherwise it is 0.
- ``console``: commands after ``$``, each followed by what it prints. A line ``…`` stands for any lines, and ``…`` in a
  line for any text.
- ``text`` without a title: a part of what the last command printed.
- any language with ``title="NAME"``: the block is saved as that file. Files of text must be used by a later command.
- ``python`` without a title: a program.
- ``toml`` and ``json``: read by the reader of such files; a fragment of a topology is completed first.

``antecede up`` and ``antecede serve`` run in the background until the next of them, or the end of the page.
``antecede status`` is repeated until it prints what the page shows, because servers still work when a question has been
answered: they sync records and acknowledge. Ports are replaced by free ones. Blocks that are not played are in
``EXEMPT``, with the reason.
"""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from helpers.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
Command = Callable[[list[str]], tuple[int, str]]

SERVICE = "needs an outside service"
MINUTES = "takes minutes"
SHOWN = "output of a run that is not repeated here"
FILES = "needs files of other projects"
DRAWING = "a drawing, not something to run"

EXEMPT: dict[str, dict[str, str]] = {
    "README.md": {"./run demo ": MINUTES},
    "docs/architecture.md": {
        "send(message)   -> effects": DRAWING,
        "objects/model (arguments, time limit)": DRAWING,
    },
    "docs/design/log.md": {"data directory ── identity": DRAWING, "… group 5 │ bad bytes │ group 7": DRAWING},
    "docs/design/objects.md": {
        "destination of a conflicting request": DRAWING,
        "final    audits   control": SHOWN,
    },
    "docs/design/orders.md": {"send(message)   ──► effects": DRAWING},
    "docs/design/servers.md": {"client ──► s1 ──► s2": DRAWING},
    "docs/design/planning.md": {"s1                 s1 is the parent": DRAWING},
    "docs/design/scenarios.md": {"S1 ── A ── S3": DRAWING},
    "docs/design/backup.md": {"s1   ──────── hold": DRAWING},
    "docs/design/imports.md": {
        "antecede import example.ndjson": FILES,
        "B:1            A's clock was": DRAWING,
        "client   ├──": DRAWING,
    },
    "docs/design/measures.md": {"arrive x  deliver x": DRAWING},
    "docs/design/spark.md": {"files ── encode ──▶": DRAWING, "cut 1          cut 2": DRAWING},
    "docs/design/verdicts.md": {
        "epoch of m          epochs between": DRAWING,
        "T₀   only the sender": DRAWING,
    },
    "docs/guide/bench.md": {
        "./run python -m pip install nats-py": SERVICE,
        "./run bench channel --against 616aa1a": MINUTES,
        "./run bench objects ": MINUTES,
        "./run bench paper000 ": MINUTES,
    },
    "docs/guide/operations.md": {
        "useradd --system antecede": SERVICE,
        "python3 -c 'import secrets": SERVICE,
        "docker compose -f deploy/compose.yaml exec": SERVICE,
    },
    "docs/guide/verify.md": {
        "antecede verify 's3://bucket/run-17/' --master spark://head:7077": SERVICE,
        "causal       holds where it was guaranteed": SHOWN,
    },
    "docs/scale.md": {"antecede plan n1000.csv": MINUTES},
}
"""By page: how each block that is not played begins, and why it is not played."""

SPARK = ("sweep.md", "verify.md")
"""Pages that use Spark."""


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    title: str
    text: str

    def begins(self, texts: Iterable[str]) -> str:
        """Return which of these texts the block begins with; "" if none."""
        return next((text for text in texts if self.text.lstrip().startswith(text)), "")


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^( *)```(\w*)([^\n]*)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    name = str(page.relative_to(ROOT))
    made = []
    for one in found:
        indent, language, rest, body = one.groups()
        title = re.search(r'title="(.*?)"', rest)
        body = re.sub(f"^{indent}", "", body, flags=re.MULTILINE)
        made.append(Block(name, text[: one.start()].count("\n") + 1, language, title[1] if title else "", body))
    return made


def play(
    page: Path,
    folder: Path,
    command: Command,
    before: dict[str, Callable[[Path], None]],
    program: Callable[[str], str] | None = None,
) -> None:
    """Play all blocks of a page in this folder. ``command`` runs a command of Antecede. ``before`` has what the text
    asks the reader to do before a block that begins so; each is done once. ``program`` runs a block of Python and
    returns its output; without it the block gets a process of its own."""
    player = _Player(folder, command, program)
    try:
        found = blocks(page)
        for place, block in enumerate(found):
            if block.begins(EXEMPT.get(block.page, {})):
                player.printed = None
                continue
            if step := block.begins(before):
                before.pop(step)(folder)
            try:
                player.play(block, found[place + 1 :])
            except AssertionError as error:
                raise AssertionError(f"{block.page}:{block.line}: {error}") from None
    finally:
        player.stop()


class _Player:
    def __init__(self, folder: Path, command: Command, program: Callable[[str], str] | None) -> None:
        self.folder = folder
        self.printed: str | None = None
        self._command = command
        self._program = program or (lambda text: self._python(["-c", text], 0))
        self._ports: dict[str, str] = {}
        self._servers: subprocess.Popen[bytes] | None = None
        self._log = folder / "servers.log"
        self._reloads = 0
        self._awaited = _pattern("")
        shutil.copytree(ROOT / "examples", folder / "examples")
        self._renumber()

    def play(self, block: Block, later: list[Block]) -> None:
        text = self._free(block.text)
        if block.title:
            self._save(block, text, later)
        elif block.language == "sh":
            outputs = (one.text for one in later if one.language == "text" and not one.title)
            self._awaited = _pattern(next((one for one in outputs if "letters waiting" in one), ""))
            for line in text.replace("\\\n", " ").splitlines():
                self._run(line)
        elif block.language == "console":
            self._console(text)
        elif block.language == "text":
            assert self.printed is not None, "text that is neither a file nor the output of a command before it"
            assert _pattern(text).search(self.printed), f"printed instead:\n{self.printed}"
        elif block.language == "python":
            self.printed = self._program(text)
        elif block.language == "log":
            # The lines of somebody's log, explained by the text around it.
            self.printed = None
        else:
            check_data(block.language, text)

    def _save(self, block: Block, text: str, later: list[Block]) -> None:
        file = self.folder / block.title
        file.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("    ") and file.exists():
            # A class that the text completes later: its method is appended.
            text = file.read_text(encoding="utf-8") + "\n" + text
        if block.language == "python":
            compile(text, block.title, "exec")
        elif block.language in ("toml", "json"):
            check_data(block.language, text)
        if block.title.startswith("examples/"):
            assert file.read_text(encoding="utf-8").endswith(text), f"{block.title} is different"
            return
        if block.language == "text":
            assert any(block.title in one.text for one in later), f"no command uses {block.title}"
        file.write_text(text, encoding="utf-8")

    def _console(self, text: str) -> None:
        line, shown = "", ""
        for row in [*text.splitlines(keepends=True), "$ "]:
            if row.startswith("$ "):
                if line:
                    self._run(line)
                if shown:
                    assert self.printed is not None
                    assert _pattern(shown).fullmatch(self.printed), f"{line} printed instead:\n{self.printed}"
                line, shown = row[2:].strip(), ""
            else:
                shown += row

    def _run(self, line: str) -> None:
        words = shlex.split(line.removeprefix("./run "), comments=True)
        if not words:
            return
        remark = re.search(r"\s# .*\bexit (?:code )?(\d)", line)
        wanted = int(remark[1]) if remark else 0
        if words[:2] in (["antecede", "up"], ["antecede", "serve"]):
            self._start(words[1:])
        elif words[0] == "bench":
            assert words[-1] == "--list", f"{line}: takes minutes"
            code, self.printed = self._command(words)
            assert code == wanted, f"{line}: exit code {code}\n{self.printed}"
        elif words[0] == "python":
            self.printed = self._python(words[1:], wanted)
        elif words[:2] == ["antecede", "chat"] and "--name" in words:
            self.printed = self._python(["-m", *words], wanted)
        elif words == ["kill", "-HUP", "PID"]:
            self._reload()
        else:
            assert words[0] == "antecede", f"{line}: a command that no test can run"
            code, self.printed = self._command(words[1:])
            end = time.monotonic() + 10
            while words[1] == "status" and not self._awaited.search(self.printed) and time.monotonic() < end:
                code, self.printed = self._command(words[1:])
            assert code == wanted, f"{line}: exit code {code}\n{self.printed}"
            if words[1] == "sample":
                self._renumber()

    def _python(self, arguments: list[str], wanted: int) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            timeout=120,
        )
        assert done.returncode == wanted, f"{arguments}: exit code {done.returncode}\n{done.stdout}"
        return done.stdout

    def _start(self, arguments: list[str]) -> None:
        self.stop()
        self._reloads = 0
        with self._log.open("wb") as log:
            command = [sys.executable, "-m", "antecede", *arguments]
            self._servers = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self._until("ready: " if arguments[0] == "up" else " started ", 1)

    def _until(self, event: str, times: int) -> None:
        end = time.monotonic() + 60
        while (said := self._log.read_text()).count(event) < times:
            assert self._servers is not None
            assert self._servers.poll() is None, f"the servers ended:\n{said}"
            assert time.monotonic() < end, f"in vain: {event}\n{said}"
            time.sleep(0.05)

    def _reload(self) -> None:
        assert self._servers is not None
        self._reloads += 1
        self._servers.send_signal(signal.SIGHUP)
        self._until("access-reloaded", self._reloads * self._log.read_text().count(" started "))

    def stop(self) -> None:
        """Stop the servers in the background, as Ctrl-C does."""
        if self._servers is not None:
            self._servers.send_signal(signal.SIGTERM)
            assert self._servers.wait(60) == 0, self._log.read_text()
            self._servers = None

    def _free(self, text: str) -> str:
        """Return the text with ports that nobody uses."""
        for port in re.findall(r"127\.0\.0\.1:(\d+)", text):
            if port not in self._ports and port not in self._ports.values():
                self._ports[port] = str(free_ports(1)[0])
        return re.sub(r"(127\.0\.0\.1:)(\d+)", lambda one: one[1] + self._ports.get(one[2], one[2]), text)

    def _renumber(self) -> None:
        for file in [*self.folder.rglob("*.toml"), *self.folder.glob("examples/*.py")]:
            file.write_text(self._free(file.read_text(encoding="utf-8")), encoding="utf-8")


def _pattern(shown: str) -> re.Pattern[str]:
    """Return the pattern of what the page shows."""
    made = ""
    for line in shown.rstrip("\n").splitlines():
        made += "(?:.*\n)*?" if line.strip() == "…" else re.escape(line).replace("…", ".*") + " *\n"
    return re.compile(made + r"\n*")


def check_data(language: str, text: str) -> None:
    """Read a block of data with the reader of such files."""
    if language == "json":
        from antecede.trace import conflicts_in

        for line in text.splitlines():
            document = json.loads(line)
            if "*" in document:
                conflicts_in(document, "page")
        return
    assert language == "toml", f"a block of the language {language!r}: expected one of those in tests/helpers/pages.py"
    document = tomllib.loads(text)
    servers = document.get("servers", {})
    if "project" in document:
        assert document["project"]["entry-points"]
    elif "processes" in document:
        from antecede.pipeline.sweep import cells_of, study

        with TemporaryDirectory() as folder:
            (Path(folder) / "grid.toml").write_text(text, encoding="utf-8")
            assert cells_of(study(f"{folder}/grid.toml"), {}, 1.0)
    elif "map" in document:
        from antecede.trace.foreign import read_mapping

        with TemporaryDirectory() as folder:
            (Path(folder) / "mapping.toml").write_text(text, encoding="utf-8")
            read_mapping(f"{folder}/mapping.toml")
    elif any(isinstance(server, dict) for server in servers.values()):
        from antecede.access import parse_access

        for letter in "ABCDE":
            text = text.replace("ed25519:…", f"ed25519:{letter}{'A' * 42}=", 1)
        parse_access(text.replace("sha256:…", f"sha256:{'0' * 64}"))
    else:
        from antecede.topology import parse_topology

        if not servers:
            text += "\n[servers]\n" + "".join(f's{n} = "tcp://127.0.0.1:{7100 + n}"\n' for n in range(1, 5))
        if "domains" not in document:
            text += '\n[domains]\nA = { servers = ["s1", "s2", "s3", "s4"] }\n'
        parse_topology(text)

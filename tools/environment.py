"""Make the environment of this clone, ``.venv``, from ``requirements.lock`` (standard library only).

The work has several phases, each with its own mark, so that an interrupted start continues where it stopped: an empty
environment; a pip for it (:mod:`find_pip`); the build tools of the lock; its libraries; and packages that exist as
source only, built with those build tools instead of unchecked ones. The project itself needs no build: a path file
points at ``src``. pip's own configuration decides where packages come from.

Nothing outside the clone is written except pip's own cache. A finished environment records the hash of its lock and the
name of its Python; when either changes, it is rebuilt.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

import find_pip

disk_bytes_min = 4 * 1024**3
"""The environment (1.3 GB), and beside it the archives and build folders while it is being made (3.1 GB in all)."""

root = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
venv = os.path.join(root, ".venv")
python = os.path.join(venv, "bin", "python")
state = os.path.join(root, ".run")
log_file = os.path.join(state, "install.log")
lock_file = os.path.join(root, "requirements.lock")
layout = "1"
"""Increased when environments made by older code must be rebuilt."""

build_tools = {"setuptools"}
source_only = {"pyspark"}

clone = "antecede_clone-0.dist-info"
"""The folder of the project's entry points. It must not be named as a package of uv or pip, which would be removed."""
offers = "entry_points.txt"


class Stop(Exception):
    """The start cannot continue; the text is the one line to show."""


def prepare() -> None:
    """Ensure that the environment matches the lock."""
    wanted = digest()
    if stamp() != wanted:
        check_machine()
        with one_at_a_time():
            if stamp() != wanted:
                make(wanted)
    link_project()


def digest() -> str:
    with open(lock_file, "rb") as file:
        return hashlib.sha256(layout.encode() + file.read()).hexdigest()


def stamp() -> str | None:
    """Return what the environment was made from; None if it is unfinished, or was changed by a new Python or by uv."""
    if glob.glob(os.path.join(glob.escape(venv), "lib", "python3*", "site-packages", "antecede-*.dist-info")):
        return None
    try:
        with open(os.path.join(venv, "antecede.stamp")) as file:
            made_from, interpreter = file.read().split("\n", 1)
    except (OSError, ValueError):
        return None
    return made_from if interpreter == os.path.realpath(python) and os.access(python, os.X_OK) else None


def check_machine() -> None:
    for folder in (root, state):
        if os.path.exists(folder) and not os.access(folder, os.W_OK):
            raise Stop(f"cannot write to {folder}: clone the project into your own folder")
    os.makedirs(state, exist_ok=True)
    free = shutil.disk_usage(root).free
    if free < disk_bytes_min:
        raise Stop(
            f"{free / 1024**3:.1f} GB free on the disk of {root}: expected {disk_bytes_min / 1024**3:.0f} GB or more"
        )


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Allow one start at a time: a second one waits for the first and finds its work done."""
    with open(os.path.join(state, "lock"), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another ./run is making .venv; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make(wanted: str) -> None:
    """Make the environment, or finish one that was begun from the same lock."""
    begun = os.path.join(venv, "antecede.begun")
    if not (read(begun) == wanted + "\n" + os.path.realpath(python) and runs([python, "-c", ""])):
        with phase("a new .venv in place of the old one" if os.path.exists(venv) else "an empty .venv"):
            make_empty()
            write(begun, wanted + "\n" + os.path.realpath(python))
    temporary = os.path.join(state, "tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    os.makedirs(temporary)
    try:
        install = installer()
        parts = split_lock()
        for part, (title, text) in enumerate(parts, 1):
            done = os.path.join(venv, f"antecede.part{part}")
            if os.path.exists(done):
                continue
            listing = os.path.join(state, f"part{part}.txt")
            write(listing, text)
            with phase(f"{title} ({part} of {len(parts)})"):
                call([*install, "-r", listing])
            write(done, "")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    write(os.path.join(venv, "antecede.stamp"), wanted + "\n" + os.path.realpath(python))


def prepare_docs() -> str:
    """Ensure that the environment of the documentation site matches its lock; return its Python. It is separate, since
    nothing else needs these packages."""
    folder, lock = os.path.join(root, ".venv-docs"), os.path.join(root, "docs", "requirements.lock")
    builder, mark = os.path.join(folder, "bin", "python"), os.path.join(folder, "antecede.stamp")
    with open(lock, "rb") as file:
        wanted = hashlib.sha256(file.read()).hexdigest()
    if read(mark) == wanted and os.access(builder, os.X_OK):
        return builder
    check_machine()
    with one_at_a_time(), phase("the packages of the documentation site"):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(os.path.join(state, "tmp"), exist_ok=True)
        if not runs([getattr(sys, "_base_executable", None) or sys.executable, "-m", "venv", folder]):
            raise Stop("cannot make .venv-docs: install the system's python3-venv")
        call([builder, "-m", "pip", "install", "-r", lock])
        write(mark, wanted)
    return builder


def make_empty() -> None:
    """Make an environment without pip. Without the venv module it is a link and two lines of text."""
    shutil.rmtree(venv, ignore_errors=True)
    base = getattr(sys, "_base_executable", None) or sys.executable
    if runs([base, "-m", "venv", "--without-pip", venv]):
        return
    shutil.rmtree(venv, ignore_errors=True)
    os.makedirs(os.path.dirname(python))
    os.makedirs(packages())
    os.symlink(base, python)
    write(os.path.join(venv, "pyvenv.cfg"), f"home = {os.path.dirname(base)}\ninclude-system-site-packages = false\n")
    if not runs([python, "-c", "import sys; sys.exit(sys.prefix == sys.base_prefix)"]):
        raise Stop(f"{base} cannot make a virtual environment: install the system's python3-venv")


def packages() -> str:
    return os.path.join(venv, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")


def split_lock() -> list[tuple[str, str]]:
    """Return the lock in three parts: build tools, packages to unpack, and packages to build."""
    with open(lock_file) as file:
        entries = re.split(r"\n(?=[A-Za-z0-9])", file.read().strip())
    named = [(entry.partition("==")[0], entry) for entry in entries]
    titles = ("the build tools", "libraries and tools", "Spark, built from its source")
    texts = [
        [entry for name, entry in named if name in build_tools],
        [entry for name, entry in named if name not in build_tools | source_only],
        [entry for name, entry in named if name in source_only],
    ]
    return [(title, "\n".join(text) + "\n") for title, text in zip(titles, texts, strict=True)]


def link_project() -> None:
    """Point the environment at ``src``, give it the ``antecede`` command, and let other packages find what the project
    offers them, such as its plug-in of pytest; again if the folder was moved or the offer changed."""
    script = os.path.join(os.path.dirname(python), "antecede")
    text = f'#!/bin/sh\nexec {shlex.quote(python)} -m antecede "$@"\n'
    offered = entry_points()
    folders = glob.glob(os.path.join(glob.escape(venv), "lib", "python3*", "site-packages"))
    if read(script) == text and all(read(os.path.join(folder, clone, offers)) == offered for folder in folders):
        return
    for folder in folders:
        source = os.path.relpath(os.path.join(root, "src"), os.path.realpath(folder))
        write(os.path.join(folder, "antecede.pth"), source)
        os.makedirs(os.path.join(folder, clone), exist_ok=True)
        write(os.path.join(folder, clone, "METADATA"), "Metadata-Version: 2.1\nName: antecede-clone\nVersion: 0\n")
        write(os.path.join(folder, clone, offers), offered)
    write(script, text)
    os.chmod(script, 0o755)


def entry_points() -> str:
    """Return the entry points of the project as an installed package would have them."""
    import tomllib

    with open(os.path.join(root, "pyproject.toml"), "rb") as file:
        groups = tomllib.load(file)["project"].get("entry-points", {})
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in members.items())
        for group, members in groups.items()
    ]
    return "\n".join(lines)


def installer() -> list[str]:
    """The command that installs a part of the lock into the environment."""
    options = ["--no-deps", "--require-hashes", "--no-build-isolation"]
    uv = shutil.which("uv")
    if uv and find_pip.uv_is_equal() and runs([uv, "--version"]):
        say("installing with uv")
        return [uv, "pip", "install", "--python", python, *options]
    with phase("looking for a pip"):
        found = find_pip.find(python, state, runs)
    if found is None:
        raise Stop("found no pip for .venv: install the system's python3-venv or python3-pip, or uv, and ./run again")
    place, command = found
    say(f"installing with pip: {place}")
    # A half-unpacked package of an interrupted start has no record to uninstall it: it is overwritten.
    return [*command, "install", *options, "--use-pep517", "--ignore-installed", "--no-warn-script-location"]


# Running commands and reporting them.


def child_environment() -> dict[str, str]:
    """Return the user's environment, without variables that would install outside ``.venv``; builds happen here, not in
    /tmp."""
    away = {"PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON", "__PYVENV_LAUNCHER__"}
    kept = {name: value for name, value in os.environ.items() if name not in away}
    ours = {"PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    return {**kept, **ours, "PYTHONNOUSERSITE": "1", "TMPDIR": os.path.join(state, "tmp")}


def runs(command: list[str], folder: str = root) -> bool:
    """Return whether a command succeeds; its output goes to the log."""
    with open(log_file, "ab") as log:
        log.write(("\n$ " + hide_password(shlex.join(command)) + "\n").encode())
        log.flush()
        try:
            return not subprocess.call(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, env=child_environment()
            )
        except OSError as error:
            log.write(f"{error}\n".encode())
            return False


def call(command: list[str]) -> None:
    begin = os.path.getsize(log_file) if os.path.exists(log_file) else 0
    if runs(command):
        return
    with open(log_file, errors="replace") as log:
        log.seek(begin)
        lines = [line.strip() for line in log if line.strip()]
    said = [line for line in lines if re.match(r"(?i)error|fatal|.*no space left", line)] or lines
    raise Stop(f"{hide_password(said[-1])} (more in {os.path.relpath(log_file)}; ./run again continues from here)")


def hide_password(text: str) -> str:
    return re.sub(r"//[^/@\s]*@", "//", text)


def say(text: str) -> None:
    print(f"run: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def phase(title: str) -> Iterator[None]:
    """Print one line per phase: its name when it begins, its seconds when it ends."""
    print(f"run: {title} … ", end="", file=sys.stderr, flush=True)
    begin = time.monotonic()
    try:
        yield
    except BaseException:
        print("failed", file=sys.stderr)
        raise
    print(f"{time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)


def read(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None


def write(path: str, text: str) -> None:
    """Write all of the text or none of it, even if the machine stops."""
    with open(path + ".new", "w") as file:
        file.write(text)
    os.replace(path + ".new", path)

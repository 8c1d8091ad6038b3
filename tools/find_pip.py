"""Find a pip that can install into an environment, on a machine that may have none (standard library only).

Some systems ship Python without ensurepip, some without pip, some without either. Each place in :func:`candidates`
offers commands that may be a pip; the first that runs is used. Cheap places come first. None of them installs anything
on the system, and no address is written here: an index is used only if pip's own configuration names one.
"""

from __future__ import annotations

import base64
import configparser
import contextlib
import glob
import hashlib
import html
import json
import netrc
import os
import re
import shutil
import ssl
import sys
import urllib.request
from collections.abc import Callable, Iterator
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit

Call = Callable[..., bool]
"""Run a command quietly, in ``folder``; return whether it succeeded."""

harmless = {"default-timeout", "timeout", "disable-pip-version-check", "no-color", "no-input", "progress-bar"}
harmless |= {"root-user-action", "break-system-packages", "require-virtualenv", "cache-dir", "no-cache-dir", "user"}
"""Settings of pip that do not change what is installed. With only these, uv, which reads none of them, does the
same."""


def find(python: str, store: str, call: Call) -> tuple[str, list[str]] | None:
    """Return the place and the command of a pip for the environment of ``python``; ``store`` may keep a fetched one."""
    for place, commands in candidates(python, store, call):
        for command in commands:
            if call([*command, "--version"]):
                return place, command
    return None


def uv_is_equal() -> bool:
    """Return whether uv, which does not read pip's configuration, would install from the same places."""
    return not set(settings()) - harmless


def candidates(python: str, store: str, call: Call) -> Iterator[tuple[str, Iterator[list[str]]]]:
    yield "Python's own", _bundled(python, call)
    yield "a wheel on this machine", _stored(python, store)
    yield "the system's", _system(python)
    yield "the configured index", _from_index(python, store)
    yield "the system's package archive, unpacked in .run", _from_debian(python, store, call)


def _bundled(python: str, call: Call) -> Iterator[list[str]]:
    command = [python, "-m", "pip"]
    if call([*command, "--version"]) or call([python, "-m", "ensurepip", "--default-pip"]):
        yield command


def _stored(python: str, store: str) -> Iterator[list[str]]:
    """A pip wheel runs without being installed."""
    for folder in (store, "/usr/share/python-wheels", *settings().get("find-links", "").split()):
        path = unquote(urlsplit(folder).path) if folder.startswith("file:") else folder
        for wheel in sorted(glob.glob(os.path.join(glob.escape(path), "pip-*.whl")), reverse=True):
            yield [python, os.path.join(wheel, "pip")]


def _system(python: str) -> Iterator[list[str]]:
    base = getattr(sys, "_base_executable", None) or sys.executable
    commands = [[base, "-m", "pip"], [sys.executable, "-m", "pip"]]
    commands += [[found] for found in (shutil.which("pip3"), shutil.which("pip")) if found]
    for command in commands:
        yield [*command, "--python", python]


def _from_index(python: str, store: str) -> Iterator[list[str]]:
    """Return the newest pip on an index in pip's configuration, if there is one; its hash is checked."""
    chosen = settings()
    for index in filter(None, [chosen.get("index-url"), *chosen.get("extra-index-url", "").split()]):
        try:
            for name, address, checksum in _wheels(index.rstrip("/") + "/pip/", chosen)[:3]:
                body, _ = _fetch(address, chosen)
                if hashlib.sha256(body).hexdigest() != checksum:
                    raise ValueError(f"{name} does not match the hash in its index")
                with open(os.path.join(store, name), "wb") as file:
                    file.write(body)
                yield [python, os.path.join(store, name, "pip")]
        except (OSError, ValueError, KeyError, TypeError):
            # An index that cannot be read is not an error: the next place may work.
            continue


def _wheels(page: str, chosen: dict[str, str]) -> list[tuple[str, str, str]]:
    """Name, address and hash of each pip that an index page offers (PEP 503 or 691), newest first."""
    body, page = _fetch(page, chosen)
    if body.lstrip().startswith(b"{"):
        links = [f"{file['url']}#sha256={file['hashes'].get('sha256')}" for file in json.loads(body)["files"]]
    else:
        links = [html.unescape(link) for link in re.findall(r"href\s*=\s*[\"']([^\"']+)", body.decode())]
    found = []
    for link in links:
        address, fragment = urldefrag(urljoin(page, link))
        name = unquote(os.path.basename(urlsplit(address).path))
        version = re.fullmatch(r"pip-([0-9]+(?:\.[0-9]+)*)-py3-none-any\.whl", name)
        checksum = re.fullmatch(r"sha256=([0-9a-f]{64})", fragment)
        if version and checksum:
            found.append((tuple(map(int, version[1].split("."))), name, address, checksum[1]))
    return [entry[1:] for entry in sorted(found, reverse=True)]


def _fetch(address: str, chosen: dict[str, str]) -> tuple[bytes, str]:
    """Return a page and its final address, with pip's configured certificates, proxy, password and timeout."""
    parts = urlsplit(address)
    if parts.scheme == "file" and os.path.isdir(unquote(parts.path)):
        address = address.rstrip("/") + "/index.html"
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    request = urllib.request.Request(address if parts.scheme == "file" else urlunsplit(bare))
    request.add_header("Accept", "application/vnd.pypi.simple.v1+json, text/html;q=0.5, */*;q=0.1")
    user, password = parts.username, parts.password
    if user is None and parts.hostname:
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            user, _, password = netrc.netrc().authenticators(parts.hostname) or (None, None, None)
    if user is not None:
        pair = f"{unquote(user)}:{unquote(password or '')}"
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(pair.encode()).decode())
    context = ssl.create_default_context(cafile=chosen.get("cert"))
    if {parts.hostname, bare.netloc} & set(chosen.get("trusted-host", "").split()):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=context)]
    if chosen.get("proxy"):
        handlers.append(urllib.request.ProxyHandler({"http": chosen["proxy"], "https": chosen["proxy"]}))
    wait = float(chosen.get("timeout") or chosen.get("default-timeout") or 15)
    with urllib.request.build_opener(*handlers).open(request, timeout=wait) as answer:
        return answer.read(), answer.url


def _from_debian(python: str, store: str, call: Call) -> Iterator[list[str]]:
    """Fetch the Debian package with pip's wheel, check its signature and unpack it, without installing it.

    All of apt's state is in our own folder, so that this needs no special rights and changes nothing else.
    """
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return
    home = os.path.join(store, "apt")
    for folder in ("lists/partial", "archives/partial", "unpacked"):
        os.makedirs(os.path.join(home, folder), exist_ok=True)
    places = {"Dir::State::Lists": f"{home}/lists", "Dir::Cache": home, "Dir::Cache::Archives": f"{home}/archives"}
    apt = ["apt-get", "-q", "-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=root"]
    apt += [word for key, value in places.items() for word in ("-o", f"{key}={value}")]
    if call([*apt, "update"]):
        for package in ("python3-pip-whl", "python-pip-whl"):
            if call([*apt, "download", package], folder=home):
                break
        for archive in glob.glob(os.path.join(glob.escape(home), "*.deb")):
            call(["dpkg-deb", "-x", archive, os.path.join(home, "unpacked")])
        for wheel in glob.glob(os.path.join(glob.escape(home), "unpacked", "usr", "share", "*", "pip-*.whl")):
            shutil.copy(wheel, store)
    shutil.rmtree(home, ignore_errors=True)
    yield from _stored(python, store)


def settings() -> dict[str, str]:
    """pip's configuration, as pip reads it: files from the system's to the user's, then ``PIP_*``."""
    chosen = os.environ.get("PIP_CONFIG_FILE")
    files = [f"{folder}/pip/pip.conf" for folder in (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)]
    files += ["/Library/Application Support/pip/pip.conf", "/etc/pip.conf", os.path.expanduser("~/.pip/pip.conf")]
    files += [os.path.expanduser("~/Library/Application Support/pip/pip.conf")]
    files += [os.path.join(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "pip", "pip.conf")]
    if chosen:
        files = [] if chosen == os.devnull else [*files, chosen]
    found: dict[str, str] = {}
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file)
        except (configparser.Error, UnicodeDecodeError):
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                found.update((key.replace("_", "-"), value) for key, value in parser.items(section) if value)
    for name, value in os.environ.items():
        if name.startswith("PIP_") and name != "PIP_CONFIG_FILE" and value:
            found[name[4:].lower().replace("_", "-")] = value
    return found

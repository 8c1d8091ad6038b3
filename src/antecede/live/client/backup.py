"""Back up a running system over TCP for an operator. First, make a consistent *cut*: each server chooses a position in
its log (:class:`antecede.server.operations.cutting.Cutting`). Then copy the files of the servers."""

import asyncio
import ssl
from base64 import b64decode
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import random
from secrets import token_hex
from time import monotonic
from typing import Any

import msgspec

from antecede.access.proof import Keyring
from antecede.backups.copying import Cut, ServerCopy
from antecede.backups.folder import NewBackup, SavedServer
from antecede.errors import AntecedeError, ClosedError, OverloadError, RefusedError
from antecede.live.client.operator import request
from antecede.server.operations.cutting import Cutting
from antecede.topology import Address

ReportProgress = Callable[[int, int], None]
"""A function that reports the progress of a backup. Its arguments are the number of bytes that are copied so far, and
an upper bound for the size of the whole backup."""


class Remote:
    """Makes one backup of a running system: sends requests to its servers and stores their files."""

    def __init__(
        self, servers: Mapping[str, Address], token: str, tls: ssl.SSLContext | None, keyring: Keyring | None
    ) -> None:
        self._servers = servers
        self._token = token
        self._tls = tls
        self._keyring = keyring
        self._cutting = Cutting(servers, token_hex(16))
        self.held_seconds = 0.0
        """The duration of the cut, in seconds. During this time, or a part of it, each server accepted no messages from
        other servers."""

    async def cut(self) -> dict[str, Cut]:
        """Ask all servers to stop accepting messages from each other. When all have stopped, ask each server for its
        cut: the position in its log, and the files to copy. Return the cuts, by server."""
        cutting, begun = self._cutting, monotonic()
        while not cutting.over:
            due = cutting.requests()
            await asyncio.gather(*(self._ask(*one) for one in due))
        self.held_seconds = monotonic() - begun
        if cutting.failure is not None:
            server, error = cutting.failure
            raise type(error)(f"server {server}: {error}") if not isinstance(error, RefusedError) else error
        return {server: msgspec.convert(cutting.cuts[server], Cut) for server in self._servers}

    async def copy(
        self, cuts: Mapping[str, Cut], new: NewBackup, report_progress: ReportProgress
    ) -> dict[str, SavedServer]:
        """Copy the files of all servers into the new backup, one server after the other. After each page (a piece of a
        file that one request reads), call ``report_progress``."""
        copies = {server: ServerCopy(new.folder(server), cut) for server, cut in cuts.items()}
        total = sum(copy.total for copy in copies.values())
        for server, copy in copies.items():
            for name, offset in copy.pages():
                document = await self._read(server, name, offset)
                copy.take(b64decode(document["bytes"]))
                report_progress(sum(one.bytes for one in copies.values()), total)
        return {server: copy.result() for server, copy in copies.items()}

    async def end(self) -> None:
        """Inform all servers that the backup has ended. A server that does not answer ends the backup by itself after
        some time."""
        await asyncio.gather(*(self._end(*one) for one in self._cutting.releases()))

    async def _end(self, server: str, command: str, arguments: list[str]) -> None:
        with suppress(AntecedeError):
            await self._request(server, command, *arguments)

    async def _ask(self, server: str, command: str, arguments: list[str]) -> None:
        try:
            self._cutting.answered(server, await self._request(server, command, *arguments), None)
        except AntecedeError as error:
            self._cutting.answered(server, None, error)

    async def _read(self, server: str, name: str, offset: int) -> Any:
        """Read a page of a file. If the server refuses the request because of a rate limit, wait and try again."""
        [(_, _, [id_])] = [one for one in self._cutting.releases() if one[0] == server]
        for left in reversed(range(_tries)):
            try:
                return await self._request(server, "backup-read", id_, name, str(offset))
            except OverloadError:
                if not left:
                    raise
                await asyncio.sleep(_pause_seconds * (1 + random()))
        raise ClosedError(f"server {server}: {_tries} tries to read {name} failed")

    async def _request(self, server: str, command: str, *arguments: str) -> Any:
        address = self._servers[server]
        return await request(address, self._token, command, *arguments, tls=self._tls, keyring=self._keyring)


_tries = 50
_pause_seconds = 0.2

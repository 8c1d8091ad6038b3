"""A minimal program for ``./run bench objects``. Its cost is a lower bound (the *floor*) for the cost of Antecede.

For each request, the program does only what Antecede must do for a compatible call (a call that conflicts with no
operation): it sends the frames, and it syncs the logs.

A client sends a request to the first process. The first process writes the request to its log and sends it to two other
processes. These write the request to their logs and answer. When both have answered, the first process answers the
client and writes the end of the request to its log. Then it informs the two other processes, which also write the end
to their logs. When several items wait for a disk, the process writes them together and syncs only once. If a process
has no folder for its log, it writes nothing.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import payload
from benchmarks.bare import End, Log, dial, framed, listen
from benchmarks.common import act, say
from benchmarks.replicated import timed

_Then = Callable[[], None]


class _Durable:
    """Writes each item to the disk, and then calls the function that was given with the item. Without a folder, it
    writes nothing and calls the function immediately."""

    def __init__(self, data: str | None) -> None:
        self._log = None if data is None else Log(data, self._written)
        self._waiting: dict[int, _Then] = {}
        self._number = 0
        self._done = 0

    def keep(self, body: bytes, then: _Then) -> None:
        if self._log is None:
            then()
            return
        self._number += 1
        self._waiting[self._number] = then
        self._log.append([(self._number, body)])

    def _written(self, upto: int) -> None:
        while self._done < upto:
            self._done += 1
            self._waiting.pop(self._done)()


async def replica(data: str | None = None) -> None:
    """Run one of the two processes that get requests from the first process. Write every request to the log, and then
    answer it. Write the end of every request to the log, without an answer."""
    durable = _Durable(data)

    def got(end: End, items: list[tuple[int, bytes]]) -> None:
        for number, body in items:
            durable.keep(body, partial(_answer, end, number) if number >= 0 else _nothing)

    await listen(got)


async def first(others: list[int], data: str | None = None) -> None:
    """Run the first process: accept requests of clients, send each request to the other processes, and answer the
    client when all of them have answered. ``others``: the ports of the other processes."""
    durable = _Durable(data)
    replicas: list[End] = []
    asked: dict[int, tuple[End, int, list[int]]] = {}
    count = [0]

    def answered(end: End, items: list[tuple[int, bytes]]) -> None:
        for number, body in items:
            client, theirs, answers = asked[number]
            answers.append(number)
            if len(answers) == len(replicas):
                del asked[number]
                client.transport.write(framed([(theirs, b"")]))
                durable.keep(body, partial(finish, number))

    def finish(number: int) -> None:
        for one in replicas:
            one.transport.write(framed([(-number - 1, b"")]))

    def requested(end: End, items: list[tuple[int, bytes]]) -> None:
        for theirs, body in items:
            count[0] += 1
            asked[count[0]] = (end, theirs, [])
            durable.keep(body, partial(forward, count[0], body))

    def forward(number: int, body: bytes) -> None:
        for one in replicas:
            one.transport.write(framed([(number, body)]))

    for port in others:
        replicas.append(await dial(port, answered))
    await listen(requested)


async def caller(port: int, calls: int, under_way: int, pids: list[int], warm: int = 50) -> None:
    """Send ``calls`` requests to the first process, ``under_way`` of them at a time, and report the figures."""
    loop = asyncio.get_running_loop()
    waiting: dict[int, asyncio.Future[None]] = {}
    count = [0]

    def got(end: End, items: list[tuple[int, bytes]]) -> None:
        for number, _ in items:
            waiting.pop(number).set_result(None)

    end = await dial(port, got)

    async def one(_: Any) -> None:
        count[0] += 1
        waiting[count[0]] = answer = loop.create_future()
        end.transport.write(framed([(count[0], payload)]))
        await answer

    say(**await timed(one, calls, under_way, pids, warm))


def _answer(end: End, number: int) -> None:
    end.transport.write(framed([(number, payload)]))


def _nothing() -> None:
    """Do nothing, because the end of a request needs no answer."""


if __name__ == "__main__":
    act({"replica": replica, "first": first, "caller": caller})

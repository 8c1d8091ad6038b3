"""The measurement of etcd in ``./run bench objects``, for comparison with replicated objects: three nodes on one
machine, and a client. The client sends puts through the HTTP gateway. A *put* is a request to write one value.

etcd orders all puts in one sequence. It answers a put when the put is on the disks of two of the three nodes. Puts that
wait for answers at the same time use different connections. The client opens these connections once, and uses them
again for later puts. The client writes HTTP itself, because a library for HTTP would take more time than the
put itself.
"""

import asyncio
import json
from base64 import b64encode
from time import monotonic

from benchmarks.common import act, say, settle
from benchmarks.replicated import timed

_value = b64encode(b"x" * 100).decode()


def server_commands(program: str, place: str, clients: list[int], peers: list[int]) -> list[list[str]]:
    """Return the commands that start the three nodes. ``clients`` and ``peers``: the ports of the nodes."""
    cluster = ",".join(f"n{number}=http://127.0.0.1:{port}" for number, port in enumerate(peers))
    return [
        [
            program,
            *("--name", f"n{number}"),
            *("--data-dir", f"{place}/etcd{number}"),
            *("--listen-client-urls", f"http://127.0.0.1:{client}"),
            *("--advertise-client-urls", f"http://127.0.0.1:{client}"),
            *("--listen-peer-urls", f"http://127.0.0.1:{peer}"),
            *("--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"),
            *("--initial-cluster", cluster),
            *("--log-level", "error"),
        ]
        for number, (client, peer) in enumerate(zip(clients, peers, strict=True))
    ]


class _Line:
    """One HTTP connection to a node."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    async def put(self, key: str) -> bool:
        body = json.dumps({"key": b64encode(key.encode()).decode(), "value": _value})
        head = f"POST /v3/kv/put HTTP/1.1\r\nHost: etcd\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write((head + body).encode())
        answer = await self._reader.readuntil(b"\r\n\r\n")
        fields = [line for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        if not fields:
            return False
        await self._reader.readexactly(int(fields[0].split(b":")[1]))
        return answer.startswith(b"HTTP/1.1 200")


async def caller(port: int, calls: int, under_way: int, pids: list[int], warm: int = 50) -> None:
    """Send puts (requests to write a value) to one node, and report the figures. ``calls``: the number of measured
    puts. ``under_way``: the number of puts that wait for their answers at the same time. ``pids``: the processes whose
    CPU time is measured. ``warm``: at least this number of puts is sent before the measurement begins."""
    until = monotonic() + 30
    while True:
        try:
            first = _Line(port)
            await first.open()
            if await first.put("first"):
                break
        except (OSError, asyncio.IncompleteReadError):
            pass
        if monotonic() > until:
            raise TimeoutError("etcd did not accept a put within 30 s")
        await asyncio.sleep(0.1)
    free = [_Line(port) for _ in range(under_way)]
    await asyncio.gather(*(line.open() for line in free))
    settle()

    async def one(number: int) -> None:
        line = free.pop()
        if not await line.put(f"key {number % 100}"):
            raise RuntimeError("etcd refused a put")
        free.append(line)

    say(**await timed(one, calls, under_way, pids, warm))


if __name__ == "__main__":
    act({"caller": caller})

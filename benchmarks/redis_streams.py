"""Redis Streams as a side of the benchmark (one of the compared systems), through redis-py. The sender uses the command
XADD, either in pipelines or for one message at a time. The consumer uses XREAD and sends no XACK."""

from time import perf_counter
from typing import Any

from benchmarks import payload
from benchmarks.common import act, figures, program, say, settle, until_told


def server_command(port: int, data: str) -> list[str]:
    """Return the command of a Redis server that answers a write only when the write is on disk."""
    settings = {
        "port": str(port),
        "bind": "127.0.0.1",
        "dir": data,
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "daemonize": "no",
        "auto-aof-rewrite-percentage": "0",
    }
    return [program("redis-server") or "", *(word for name, value in settings.items() for word in (f"--{name}", value))]


def _client(port: int) -> Any:
    import redis

    settle()
    return redis.Redis(port=port, protocol=3)


async def receiver(port: int, messages: int) -> None:
    """Read this number of messages from a stream, and report the time at which the last message was read."""
    client = _client(port)
    say(ready=True)
    last: bytes | str = "0"
    count = 0
    while count < messages:
        found = client.xread({"items": last}, count=1_000, block=1_000)
        for batch in found.values() if isinstance(found, dict) else [entries for _, entries in found]:
            entries = batch[0] if isinstance(found, dict) else batch
            count += len(entries)
            last = entries[-1][0]
    say(at=perf_counter())
    await until_told()


async def pipelined(port: int, messages: int, together: int = 500) -> None:
    """Add messages to a stream, in pipelines of ``together`` XADD commands."""
    client = _client(port)
    started = perf_counter()
    for start in range(0, messages, together):
        pipe = client.pipeline(transaction=False)
        for _ in range(min(together, messages - start)):
            pipe.xadd("items", {b"body": payload})
        pipe.execute()
    say(started=started, at=perf_counter())


async def accepted(port: int, messages: int, warm: int = 200) -> None:
    """Add messages to a stream, one after the other, and wait for each answer."""
    client = _client(port)
    times = []
    for _ in range(warm + messages):
        started = perf_counter()
        client.xadd("items", {b"body": payload})
        times.append(perf_counter() - started)
    say(**figures(times[warm:]))


if __name__ == "__main__":
    act({"receiver": receiver, "pipelined": pipelined, "accepted": accepted})

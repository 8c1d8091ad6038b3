"""NATS as a side of the benchmark (one of the compared systems), through nats-py. It has two modes. The first is core
NATS with request and reply. The second is JetStream: the sender publishes many messages before it waits for the
acknowledgements, and the server syncs each message to disk separately."""

import asyncio
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks import payload
from benchmarks.common import act, figures, program, say, settle, until_told


def server_command(port: int, data: str, sync: bool) -> list[str]:
    """Write the configuration of a NATS server, and return the command that starts it. ``sync``: use JetStream, and
    acknowledge a message only when it is on disk."""
    file = Path(data) / "nats.conf"
    stream = f'jetstream {{ store_dir: "{data}/js", sync_interval: always }}\n' if sync else ""
    file.write_text(f"listen: 127.0.0.1:{port}\n{stream}")
    return [program("nats-server") or "", "-c", str(file)]


async def _connect(port: int) -> Any:
    import nats

    connection = await nats.connect(f"nats://127.0.0.1:{port}")
    settle()
    return connection


async def receiver(port: int, messages: int) -> None:
    """Make a stream, read this number of messages from it, and report the time at which the last message came."""
    from nats.js.api import AckPolicy, ConsumerConfig

    connection = await _connect(port)
    stream = connection.jetstream()
    await stream.add_stream(name="items", subjects=["items"])
    done = asyncio.Event()
    count = 0

    async def got(_: Any) -> None:
        nonlocal count
        count += 1
        if count == messages:
            done.set()

    await stream.subscribe("items", cb=got, config=ConsumerConfig(ack_policy=AckPolicy.NONE), manual_ack=True)
    say(ready=True)
    await done.wait()
    say(at=perf_counter())
    await until_told()
    await connection.close()


async def pipelined(port: int, messages: int, together: int = 1_000) -> None:
    """Publish messages to the stream in batches of ``together`` messages. Send a batch only when the previous one is
    acknowledged."""
    connection = await _connect(port)
    stream = connection.jetstream(publish_async_max_pending=2 * together)
    started = perf_counter()
    for start in range(0, messages, together):
        count = min(together, messages - start)
        waiting = [await stream.publish_async("items", payload) for _ in range(count)]
        await asyncio.gather(*waiting)
    say(started=started, at=perf_counter())
    await connection.close()


async def echo(port: int) -> None:
    """Send every message back to its sender."""
    connection = await _connect(port)

    async def got(message: Any) -> None:
        await message.respond(message.data)

    await connection.subscribe("echo", cb=got)
    await connection.flush()
    say(ready=True)
    await until_told()
    await connection.close()


async def ping(port: int, messages: int, warm: int = 200) -> None:
    """Send requests one after the other, wait for each answer, and report the round-trip times. The first ``warm``
    requests are not measured."""
    connection = await _connect(port)
    times = []
    for _ in range(warm + messages):
        started = perf_counter()
        await connection.request("echo", payload)
        times.append(perf_counter() - started)
    say(**figures(times[warm:]))
    await connection.close()


if __name__ == "__main__":
    act({"receiver": receiver, "pipelined": pipelined, "echo": echo, "ping": ping})

"""ZeroMQ as a side of the benchmark (a compared system), through pyzmq: PUSH to PULL over TCP. msgspec encodes and
decodes typed structs, as in Antecede.

ZeroMQ is measured twice: with plain blocking calls, and with ``zmq.asyncio``. Blocking calls are the fastest. But while
a blocking call waits, its thread cannot run an event loop. So a program that also awaits other things would use
``zmq.asyncio``.
"""

from time import perf_counter, sleep
from typing import Any

import msgspec

from benchmarks import payload
from benchmarks.common import act, say, settle, until_told


class Item(msgspec.Struct):
    """A message."""

    body: bytes
    last: bool = False


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Item).decode


def _socket(kind: str, waits: bool) -> Any:
    import zmq
    import zmq.asyncio

    context = zmq.asyncio.Context() if waits else zmq.Context()
    return context.socket(getattr(zmq, kind))


async def receiver(messages: int, waits: bool) -> None:
    """Receive this number of messages, and report the time at which the last message came. If ``waits`` is true, await
    each message in an event loop. If ``waits`` is false, use blocking calls."""
    pull = _socket("PULL", waits)
    port = pull.bind_to_random_port("tcp://127.0.0.1")
    settle()
    say(port=port)
    receive = pull.recv
    if waits:
        for _ in range(messages):
            _decode(await receive())
    else:
        for _ in range(messages):
            _decode(receive())
    say(at=perf_counter())
    await until_told()


async def pipelined(port: int, messages: int, waits: bool) -> None:
    """Send messages, one call per message. If ``waits`` is true, await each call in an event loop; a call waits only
    until the queue has space. If ``waits`` is false, use blocking calls."""
    push = _socket("PUSH", waits)
    push.connect(f"tcp://127.0.0.1:{port}")
    settle()
    sleep(0.2)
    send = push.send
    started = perf_counter()
    if waits:
        for _ in range(messages):
            await send(_encode(Item(payload)))
    else:
        for _ in range(messages):
            send(_encode(Item(payload)))
    say(started=started, at=perf_counter())
    push.close(linger=10_000)


if __name__ == "__main__":
    act({"receiver": receiver, "pipelined": pipelined})

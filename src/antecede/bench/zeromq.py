"""ZeroMQ through pyzmq: PUSH to PULL over TCP, typed structs in and out by msgspec, as ours are.

It is measured twice: with plain blocking calls, which are the fastest but leave a program without an event loop; and
with ``zmq.asyncio``, which a program that also awaits other things would use.
"""

import os
from time import perf_counter, sleep
from typing import Any

import msgspec

from antecede.bench import payload
from antecede.bench.children import act, say, settle


class Item(msgspec.Struct):
    """A message."""

    body: bytes
    last: bool = False


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Item).decode


def _pull(context: Any) -> Any:
    import zmq

    pull = context.socket(zmq.PULL)
    port = pull.bind_to_random_port("tcp://127.0.0.1")
    settle()
    say(port=port)
    return pull


def _push(context: Any, port: int) -> Any:
    import zmq

    push = context.socket(zmq.PUSH)
    push.connect(f"tcp://127.0.0.1:{port}")
    settle()
    sleep(0.2)
    return push


def _linger() -> None:
    while os.read(0, 4096):
        sleep(0.01)


async def receiver(messages: int) -> None:
    """Receive this many messages, and report when it is done."""
    import zmq

    receive = _pull(zmq.Context()).recv
    for _ in range(messages):
        _decode(receive())
    say(at=perf_counter())
    _linger()


async def pipelined(port: int, messages: int) -> None:
    """Send, one call per message."""
    import zmq

    push = _push(zmq.Context(), port)
    send = push.send
    started = perf_counter()
    for _ in range(messages):
        send(_encode(Item(payload)))
    say(started=started, at=perf_counter())
    push.close(linger=10_000)


async def async_receiver(messages: int) -> None:
    """Await this many messages, and report when it is done."""
    import zmq.asyncio

    receive = _pull(zmq.asyncio.Context()).recv
    for _ in range(messages):
        _decode(await receive())
    say(at=perf_counter())
    _linger()


async def async_pipelined(port: int, messages: int) -> None:
    """Await each send, which waits only for space in the queue."""
    import zmq.asyncio

    push = _push(zmq.asyncio.Context(), port)
    send = push.send
    started = perf_counter()
    for _ in range(messages):
        await send(_encode(Item(payload)))
    say(started=started, at=perf_counter())
    push.close(linger=10_000)


if __name__ == "__main__":
    act(
        {
            "receiver": receiver,
            "pipelined": pipelined,
            "async-receiver": async_receiver,
            "async-pipelined": async_pipelined,
        }
    )

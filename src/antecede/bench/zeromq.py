"""ZeroMQ through pyzmq: PUSH to PULL over TCP, plain blocking calls, bytes as they are."""

import os
from time import perf_counter, sleep

from antecede.bench import payload
from antecede.bench.children import act, say, settle


async def receiver(messages: int) -> None:
    """Takes so many, and says when it has them."""
    import zmq

    pull = zmq.Context().socket(zmq.PULL)
    port = pull.bind_to_random_port("tcp://127.0.0.1")
    settle()
    say(port=port)
    receive = pull.recv
    for _ in range(messages):
        receive()
    say(at=perf_counter())
    while os.read(0, 4096):
        sleep(0.01)


async def pipelined(port: int, messages: int) -> None:
    """Sends, one call a message."""
    import zmq

    push = zmq.Context().socket(zmq.PUSH)
    push.connect(f"tcp://127.0.0.1:{port}")
    settle()
    sleep(0.2)
    send = push.send
    started = perf_counter()
    for _ in range(messages):
        send(payload)
    say(started=started, at=perf_counter())
    push.close(linger=10_000)


if __name__ == "__main__":
    act({"receiver": receiver, "pipelined": pipelined})

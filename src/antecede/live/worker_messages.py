"""The messages between a server and the worker process of an isolated agent: four bytes of length, then MessagePack.

Both ends are the same program, so there are no versions.
"""

import struct
from typing import Final

import msgspec

from antecede.engine import React, Reaction


class Setup(msgspec.Struct, frozen=True, tag=True):
    """The first message to a worker; it is sent again when the topology has changed."""

    server: str
    agent: str
    kind: str
    """The agent's class, as ``module:Class``."""
    topology: str
    """The text of the topology file."""


class Batch(msgspec.Struct, frozen=True, tag=True):
    """Letters to react to."""

    due: React
    load: bool
    """Whether the worker must first load the agent from ``due.state``; if not, ``due.state`` is None."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The worker has loaded its class; or it could not, and ``failure`` is the reason."""

    failure: str = ""


class At(msgspec.Struct, frozen=True, tag=True):
    """The handler of this letter of the batch is called next."""

    letter: str


class Done(msgspec.Struct, frozen=True, tag=True):
    """The outcome of a batch."""

    reactions: list[Reaction]
    state: bytes | None
    failure: str = ""
    """The description of the exception of the reaction that failed; empty: none failed."""
    traceback: str = ""
    too_early: bool = False
    """Whether the batch ended at a reaction that needs a durable letter; then ``failure`` is empty."""


ToWorker = Setup | Batch
FromWorker = Ready | At | Done
LENGTH: Final = struct.Struct("<I")
encode = msgspec.msgpack.Encoder().encode
decode_to_worker: Final = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker: Final = msgspec.msgpack.Decoder(FromWorker).decode


def framed(message: ToWorker | FromWorker) -> bytes:
    """Return a message as a frame."""
    body = encode(message)
    return LENGTH.pack(len(body)) + body

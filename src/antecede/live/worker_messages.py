"""The messages between a server and the worker process of an isolated agent. A message is sent as four bytes with its
length, and then its content as MessagePack.

Both ends run the same program, so the messages need no version.
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
    """A message with letters to which the agent must react."""

    due: React
    load: bool
    """Whether the worker must first load the agent from ``due.state``; if not, ``due.state`` is None."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The worker's answer to the first ``Setup``. If ``failure`` is empty, the worker has loaded the agent's class.
    Otherwise ``failure`` is the reason why it could not load the class."""

    failure: str = ""


class At(msgspec.Struct, frozen=True, tag=True):
    """The worker is about to call the handler of this letter."""

    letter: str


class Done(msgspec.Struct, frozen=True, tag=True):
    """The outcome of a batch."""

    reactions: list[Reaction]
    state: bytes | None
    failure: str = ""
    """The text of the exception with which a reaction failed. It is empty if no reaction failed."""
    traceback: str = ""
    too_early: bool = False
    """Whether a handler ended the batch because it asked for the id of its reaction while a crash could still change
    this id (:class:`antecede.engine.agents.TooEarly`). Then ``failure`` is empty."""


ToWorker = Setup | Batch
FromWorker = Ready | At | Done
LENGTH: Final = struct.Struct("<I")
encode = msgspec.msgpack.Encoder().encode
decode_to_worker: Final = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker: Final = msgspec.msgpack.Decoder(FromWorker).decode


def framed(message: ToWorker | FromWorker) -> bytes:
    """Return a message as bytes: its length, then its content."""
    body = encode(message)
    return LENGTH.pack(len(body)) + body

"""Record the handler calls that are in progress, in shared memory. For each call, the memory contains the agent and
the letter's id. After a restart, the server reads this memory.

A *life* of a server lasts from one start of its process to the end of this process. The memory is a file that is mapped
and never synced. When a process ends, even if it is killed, the operating system keeps the content of the file. The
next life counts the interrupted calls, or one of them (see below), as tries of their letters. A power cut may leave any
old content in the file, so **no call is counted after a power cut**: the file contains the identity of the computer's
boot (``boot``). After another boot, the calls in the file are ignored.

The file also contains the number of the life that writes the file. The next life copies this number and the calls into
its first record in the log. It may crash after this record and before it writes to the file. Even then no call is
counted twice.

A plain handler (one that is not ``async``) has the event loop until it ends. An ``async`` handler may wait while others
run. If the process ends while a handler has the event loop, only the call of this handler is counted. If no handler has
the event loop, all calls in progress are counted, because a thread that one of these calls started may have ended the
process.

The file has a head, and slots of equal size. The first slot is for plain handlers: only one plain handler runs at a
time. The content of this slot is valid only while the head names this slot. When a plain call ends, only the head is
written. When the next one begins, usually only the letter's id and the head are written. If the new id has the same
length as the previous id (the usual case), one write of a few bytes replaces the previous id. Otherwise there are three
writes: the length of the id is set to zero, the id is written, and the length is set to its new value. So a slot never
has a wrong id, even if the process is killed between these writes. This module knows only this layout.
:mod:`antecede.live.reactions` opens and maps the file.
"""

import struct
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from antecede import limits


class Memory(Protocol):
    """Shared memory that can be written: a mapped file, or a bytearray."""

    def __len__(self) -> int: ...

    def __setitem__(self, place: slice, content: bytes, /) -> None: ...


class Interrupted(msgspec.Struct, frozen=True):
    """The calls that were in progress when a *life* (one run of the server's process) ended."""

    life: int = 0
    calls: tuple[tuple[str, str], ...] = ()
    """For each call: the agent, and the id of the letter."""


ENDED_WELL: Final = Interrupted()


class Progress:
    """Records the handler calls that are in progress in the present life of the server."""

    def __init__(self, memory: Memory, boot: str, life: int, grow: Callable[[int], Memory | None]) -> None:
        """``memory``: at least ``size_of(1)`` bytes, all zero. ``grow``: returns the same memory with more bytes, or
        None if there is no space. Then calls that do not fit into the memory are not recorded."""
        self._memory = memory
        self._grow = grow
        self._slots = (len(memory) - _head_bytes) // _slot_bytes
        self._free = list(range(self._slots - 1, _plain, -1))
        self._agents: dict[int, str] = {}
        self.number = 0
        """A number that changes when a batch of calls of plain handlers (not ``async``) begins, at each call of an
        ``async`` handler, and when a batch of such calls continues after a wait. If a watchdog sees the same number
        with the same letter twice, the same call is still running."""
        self._running = -1
        """The slot of the batch of calls that has the event loop now. A slot is a part of the memory. The value is −1
        if no batch has the event loop, or if the batch has no slot."""
        self._letters: dict[int, str] = {}
        self._names: dict[int, tuple[int, int, int]] = {}
        """For each slot with a letter: the start and the end of the letter's id in the memory, and the length of this
        id."""
        self._agent = self._letter = ""
        """The agent and the letter of the last call of a plain handler (one that is not ``async``)."""
        self._name = slice(0, 0)
        self._name_bytes = 0
        """The length of the letter's id in the last call of a plain handler (one that is not ``async``). ``_name`` is
        the position of this id in the memory. If the next id has the same length, it is written to the same
        position."""
        self._plain_runs = _nothing
        """The bytes that are written into the head of the memory while a plain handler (one that is not ``async``)
        runs. They are all zero if the agent's name is too long for a slot."""
        memory[0:_head_bytes] = _head.pack(_magic, life, 0, boot.encode()[:_boot_bytes])

    @property
    def running(self) -> tuple[str, str] | None:
        """The agent and the letter of the handler call that occupies the event loop now. The value is None if there is
        no such call, or if this call has no slot (see ``begin``)."""
        slot = self._running
        if slot == _plain:
            return self._agent, self._letter
        return None if slot < 0 else (self._agents[slot], self._letters.get(slot, ""))

    # Plain handlers.

    def call(self, agent: str, letter: str) -> None:
        """Record that plain handlers (not ``async``) of this agent are called next. The first call is for this letter.
        The handlers have the event loop until ``off`` is called."""
        self.number += 1
        if agent != self._agent:
            self._name_agent(agent)
        self.then(letter)
        self._memory[_running_place] = self._plain_runs
        self._running = _plain

    def then(self, letter: str) -> None:
        """Record that a plain handler (not ``async``) of the same agent is called for this letter next."""
        self._letter = letter
        name = letter.encode()
        if len(name) == self._name_bytes:
            self._memory[self._name] = name
        else:
            self._name_letter(name)

    def _name_agent(self, agent: str) -> None:
        self._agent = agent
        name = agent.encode()
        named = len(name) <= _agent_bytes
        self._plain_runs = _running.pack(_plain + 1) if named else _nothing
        if named:
            self._write_agent(_plain, name)
        self._name_bytes = 0

    def _name_letter(self, name: bytes) -> None:
        start, end = self._write_letter(_plain, name)
        self._name, self._name_bytes = slice(start, end), end - start

    # Handlers that may wait.

    def begin(self, agent: str) -> int:
        """Reserve a slot (a part of the memory) for a batch of calls of ``async`` handlers of this agent. Return the
        number of the slot. Return -1 if no slot is free, or if the agent's name is too long for a slot."""
        if not self._free:
            self._more()
        name = agent.encode()
        if not self._free or len(name) > _agent_bytes:
            return -1
        slot = self._free.pop()
        self._write_agent(slot, name)
        self._agents[slot] = agent
        return slot

    def at(self, slot: int, letter: str) -> None:
        """Record that the next call in the batch of this slot is for this letter."""
        self.number += 1
        if slot < 0:
            return
        self._letters[slot] = letter
        name = letter.encode()
        known = self._names.get(slot)
        if known is not None and known[2] == len(name):
            self._memory[known[0] : known[1]] = name
            return
        start, end = self._write_letter(slot, name)
        self._names[slot] = (start, end, end - start)

    def _write_agent(self, slot: int, name: bytes) -> None:
        start = _head_bytes + slot * _slot_bytes
        self._memory[start : start + 4] = _lengths.pack(len(name), 0)
        self._memory[start + 4 : start + 4 + len(name)] = name

    def _write_letter(self, slot: int, name: bytes) -> tuple[int, int]:
        """Write a letter's id into a slot. If the id is too long, write an empty id. Return the start and the end of
        the written id in the memory."""
        if len(name) > _letter_bytes:
            name = b""
        start = _head_bytes + slot * _slot_bytes + 2
        text, memory = start + _letter_at, self._memory
        memory[start : start + 2] = _none
        memory[text : text + len(name)] = name
        memory[start : start + 2] = _length.pack(len(name))
        return text, text + len(name)

    def on(self, slot: int) -> None:
        """Record that the batch of calls in this slot has the event loop from now on."""
        self.number += 1
        if slot >= 0:
            self._memory[_running_place] = _running.pack(slot + 1)
        self._running = slot

    def off(self) -> None:
        """Record that no batch has the event loop."""
        self._running = -1
        self._memory[_running_place] = _nothing

    def end(self, slot: int) -> None:
        """Record that the batch of calls in this slot has ended. The slot is then free again."""
        if slot >= 0:
            start = _head_bytes + slot * _slot_bytes
            self._memory[start : start + 4] = _nothing
            self._letters.pop(slot, None)
            self._names.pop(slot, None)
            self._free.append(slot)

    def clear(self) -> None:
        """Record that the server ends for a reason other than its handler calls, so that no call in progress is counted
        as a try of its letter."""
        self._memory[0:_head_bytes] = bytes(_head_bytes)

    def detach(self) -> None:
        """Write to other memory from now on: this process is a copy of the server's process."""
        self._memory, self._grow = bytearray(len(self._memory)), lambda size: None

    def _more(self) -> None:
        slots = min(2 * self._slots, limits.calls_named_max + 1)
        memory = self._grow(size_of(slots - 1)) if slots > self._slots else None
        if memory is not None:
            self._memory = memory
            self._free = list(range(slots - 1, self._slots - 1, -1))
            self._slots = slots


def size_of(slots: int) -> int:
    """Return the size of the memory for this number of calls of ``async`` handlers and one call of a plain handler."""
    return _head_bytes + (slots + 1) * _slot_bytes


def interrupted(content: bytes, boot: str) -> Interrupted:
    """Return the number of the life that wrote ``content``, and the calls of this life that are counted as tries of
    their letters. (A *life* is one run of the server's process.) If a call had the event loop when the life ended, only
    this call is counted. Otherwise all calls in progress are counted. Return life 0 and no calls if ``clear`` was
    called, if the computer has booted again after this life, or if ``content`` is not valid."""
    if len(content) < _head_bytes:
        return Interrupted()
    magic, life, running, booted = _head.unpack(content[:_head_bytes])
    if magic != _magic or not boot or booted.rstrip(b"\0") != boot.encode()[:_boot_bytes]:
        return Interrupted()
    slots = (len(content) - _head_bytes) // _slot_bytes
    chosen = range(running - 1, running) if 0 < running <= slots else range(_plain + 1, slots)
    calls = []
    for slot in chosen:
        start = _head_bytes + slot * _slot_bytes
        agent, letter = _lengths.unpack(content[start : start + 4])
        if 0 < agent <= _agent_bytes and 0 < letter <= _letter_bytes:
            names = (content[start + 4 : start + 4 + agent], content[start + 2 + _letter_at :][:letter])
            calls.append((names[0].decode(errors="replace"), names[1].decode(errors="replace")))
    return Interrupted(life, tuple(calls))


_magic: Final = b"acalls02"
_plain: Final = 0
"""The number of the slot for plain handlers."""
_boot_bytes: Final = 40
_head: Final = struct.Struct(f"<8sQI4x{_boot_bytes}s")
_head_bytes: Final = _head.size
_running_place: Final = slice(16, 20)
_running: Final = struct.Struct("<I")
_lengths: Final = struct.Struct("<HH")
_length: Final = struct.Struct("<H")
_none, _nothing = bytes(2), bytes(4)
_slot_bytes: Final = 1_024
_letter_bytes: Final = 4 * 50
"""The number of bytes for a letter's id. An id consists of a server's name (up to 64 characters) and two numbers."""
_letter_at: Final = _slot_bytes - 2 - _letter_bytes - 4
_agent_bytes: Final = _letter_at - 2

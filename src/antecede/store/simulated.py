"""A simulated disk that can lose data. It replaces the real file layer in simulations and tests.

Each file has two contents: the visible bytes, which readers see, and the bytes on the disk. The two contents differ
where a write was not synced. The unsynced writes are recorded for each page. File names are treated in the same way:
there are visible names, and names on the disk. The following failures are simulated:

- :meth:`kill` ends the process. Unsynced data is still visible, but is still not on the disk.
- :meth:`power_cut` may lose unsynced data. Each unsynced page then has one of the contents that it had since the last
  sync. A page may also be torn: new bytes up to some position, and old bytes after it. The pages are independent,
  because a disk reorders writes. Any unsynced change of a name may be lost.
- A sync may **fail**. Then the bytes are visible, but not on the disk. A later sync ignores them, as on a
  real disk, unless the process writes them again.
- A full disk: ``capacity`` is the size of the disk in bytes.
- ``script`` may raise an error or cut the power at any operation.

The random generator is an argument, so that the same seed gives the same run. An open file is a number, like a file
descriptor of the operating system.
"""

import errno
from collections.abc import Callable, Sequence
from random import Random

from antecede.store.files import Files

page_bytes = 64
"""The size of a page in bytes. It is small, so that even a small group of records spans several pages."""


class PowerCut(BaseException):
    """Raised between two operations to end the simulated process. ``except Exception`` does not catch it."""


class Inode:
    """One file: the visible bytes, the bytes on the disk, and the states of each page since its last sync."""

    def __init__(self) -> None:
        self.seen = bytearray()
        self.kept = bytearray()
        self.sizes: list[int] = []
        """The lengths that the file had since the last sync."""
        self.pages: dict[int, list[bytes]] = {}
        """The states of each page since its last sync, oldest first."""
        self.lost: set[int] = set()
        """Numbers of pages that are visible but not on the disk, because their sync failed. The next sync ignores
        them."""

    def touch(self, begin: int, end: int) -> None:
        """Record that the bytes from ``begin`` to ``end`` have just changed."""
        for page in range(begin // page_bytes, -(-end // page_bytes)):
            state = bytes(self.seen[page * page_bytes : (page + 1) * page_bytes])
            self.pages.setdefault(page, []).append(state)
            self.lost.discard(page)

    def keep(self) -> None:
        """Perform a successful sync: all changed pages reach the disk, but not the pages in ``lost``."""
        seen, kept = self.seen, self.kept
        # No other byte differs than those of the pages that were written.
        del kept[len(seen) :]
        kept.extend(bytes(len(seen) - len(kept)))
        for page in self.pages:
            place = slice(page * page_bytes, (page + 1) * page_bytes)
            kept[place] = seen[place]
        self.pages.clear()
        self.sizes.clear()

    def forget(self, random: Random, style: str) -> None:
        """Simulate a power cut: unsynced data may be lost. ``style`` says which of the unsynced pages reach the disk:
        ``none`` of them, ``all`` of them, or ``some`` (a random choice)."""
        size = random.choice([len(self.kept), *self.sizes]) if style != "none" else len(self.kept)
        if style == "all" and self.sizes:
            size = self.sizes[-1]
        kept = self.kept[:size].ljust(size, b"\0")
        for page in sorted(self.pages):
            states = self.pages[page]
            if style == "none" or (style == "some" and random.random() < 0.5):
                continue
            state = states[-1] if style == "all" else random.choice(states)
            if style != "all" and random.random() < 0.2:
                old = bytes(kept[page * page_bytes : (page + 1) * page_bytes]).ljust(len(state), b"\0")
                torn = random.randrange(len(state) + 1)
                state = state[:torn] + old[torn : len(state)]
            place = slice(page * page_bytes, page * page_bytes + len(state))
            kept[place] = state[: max(0, size - place.start)]
        self.kept = kept[:size]
        self.settle()

    def settle(self) -> None:
        """Make the visible bytes equal to those on the disk."""
        self.seen = bytearray(self.kept)
        self.pages.clear()
        self.sizes.clear()
        self.lost.clear()


class SimulatedDisk(Files):
    """A simulated disk with the files of one directory."""

    def __init__(self, capacity: int = 1 << 40, random: Random | None = None) -> None:
        self.capacity = capacity
        self.random = random
        self.seen: dict[str, Inode] = {}
        self.kept: dict[str, Inode] = {}
        self.changes: list[tuple[str, str, Inode | None]] = []
        """The changes of names since the last sync of the directory, each as old name, new name and file. The old name
        is empty if the file was created, and the new name is empty if it was deleted."""
        self.script: Callable[[str, str], None] | None = None
        """A function that is called before each operation, with the name of the operation and a path."""
        self._open: dict[int, tuple[str, Inode]] = {}
        self._locked: dict[str, bytes] = {}
        """The holder of each lock, by path."""
        self._next = 3

    def kill(self, random: Random) -> None:
        """End the process. The kernel keeps the visible bytes, with one exception: if the sync of some pages of a file
        failed, the kernel may drop these pages. Then the old bytes on the disk are visible again."""
        self._open.clear()
        self._locked.clear()
        for inode in self.seen.values():
            if inode.lost and random.random() < 0.5:
                for page in inode.lost:
                    place = slice(page * page_bytes, min((page + 1) * page_bytes, len(inode.seen)))
                    state = bytes(inode.kept[place]).ljust(place.stop - place.start, b"\0")
                    inode.seen[place] = state
                inode.lost.clear()

    def power_cut(self, random: Random) -> None:
        """Cut the power of the machine."""
        style = random.choice(("none", "all", "some", "some", "some"))
        names = dict(self.kept)
        ordered = random.random() < 0.5
        upto = random.randrange(len(self.changes) + 1) if ordered else len(self.changes)
        for old, new, inode in self.changes[:upto]:
            if style == "none" or (style == "some" and not ordered and random.random() < 0.5):
                continue
            names.pop(old, None)
            if new and inode:
                names[new] = inode
        for inode in {id(inode): inode for inode in [*self.seen.values(), *names.values()]}.values():
            inode.forget(random, style)
        self.seen, self.kept = dict(names), dict(names)
        self.changes.clear()
        self._open.clear()
        self._locked.clear()

    def contents(self) -> dict[str, bytes]:
        """Return a copy of the visible bytes of each file, by path."""
        return {path: bytes(inode.seen) for path, inode in self.seen.items()}

    def replace(self, contents: dict[str, bytes]) -> None:
        """Replace all files on the disk. ``contents``: the content of each new file, by path. The new files count as
        synced. No file may be open."""
        self.seen = {path: Inode() for path in contents}
        for path, inode in self.seen.items():
            inode.kept = bytearray(contents[path])
            inode.settle()
        self.kept = dict(self.seen)
        self.changes.clear()

    def random_bits(self, count: int) -> int:
        if self.random is None:
            return super().random_bits(count)
        # Only ``random()`` gives the same draws on every Python; 0 is not a valid incarnation.
        return int(self.random.random() * (1 << 48)) + 1

    def make_directory(self, path: str) -> None:
        raise FileExistsError(errno.EEXIST, "the simulated disk has only one directory, which exists already", path)

    def names(self, directory: str) -> list[str]:
        return [path.rpartition("/")[2] for path in self.seen]

    def create(self, path: str) -> int:
        self._step("create", path)
        inode = Inode()
        self.seen[path] = inode
        self.changes.append(("", path, inode))
        return self._opened(path, inode)

    def open(self, path: str, write: bool = False) -> int:
        if path not in self.seen:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._opened(path, self.seen[path])

    def close(self, file: int) -> None:
        path, _ = self._open.pop(file, ("", None))
        self._locked.pop(path, None)

    def size(self, file: int) -> int:
        return len(self._open[file][1].seen)

    def read(self, file: int, count: int, offset: int) -> bytes:
        return bytes(memoryview(self._open[file][1].seen)[offset : offset + count])

    def write(self, file: int, buffers: Sequence[bytes], offset: int) -> None:
        path, inode = self._open[file]
        self._step("write", path)
        data = b"".join(buffers)
        self._grow(path, inode, offset + len(data))
        inode.seen[offset : offset + len(data)] = data
        inode.touch(offset, offset + len(data))

    def allocate(self, file: int, size: int) -> None:
        path, inode = self._open[file]
        self._step("allocate", path)
        self._grow(path, inode, size)

    def truncate(self, file: int, size: int) -> None:
        path, inode = self._open[file]
        self._step("truncate", path)
        before = len(inode.seen)
        inode.seen = inode.seen[:size].ljust(size, b"\0")
        inode.sizes.append(size)
        if size < before:
            # Pages after the end are zeros if the file grows again, now or, if nothing was synced, after a power cut.
            inode.touch(size, before)

    def fdatasync(self, file: int) -> None:
        path, inode = self._open[file]
        try:
            self._step("sync", path)
        except OSError:
            inode.lost |= set(inode.pages)
            inode.pages.clear()
            raise
        inode.keep()

    def fsync(self, file: int) -> None:
        self.fdatasync(file)

    def sync_directory(self, path: str) -> None:
        self._step("sync_directory", path)
        self.kept = dict(self.seen)
        self.changes.clear()

    def rename(self, old: str, new: str) -> None:
        self._step("rename", new)
        inode = self.seen.pop(old)
        self.seen[new] = inode
        self.changes.append((old, new, inode))

    def unlink(self, path: str) -> None:
        self._step("unlink", path)
        if path not in self.seen:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        del self.seen[path]
        self.changes.append((path, "", None))

    def lock(self, path: str, holder: bytes) -> int:
        if path in self._locked:
            raise BlockingIOError(errno.EAGAIN, self._locked[path].decode().strip())
        self._locked[path] = holder
        return self._opened(path, Inode())

    def _step(self, operation: str, path: str) -> None:
        if self.script:
            self.script(operation, path)

    def _opened(self, path: str, inode: Inode) -> int:
        self._next += 1
        self._open[self._next] = (path, inode)
        return self._next

    def _grow(self, path: str, inode: Inode, size: int) -> None:
        if size <= len(inode.seen):
            return
        used = sum(len(other.seen) for other in self.seen.values())
        if used + size - len(inode.seen) > self.capacity:
            raise OSError(errno.ENOSPC, "no space on the simulated disk", path)
        inode.seen.extend(bytes(size - len(inode.seen)))
        inode.sizes.append(size)

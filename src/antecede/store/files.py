"""The few file operations that a log needs, in one small class. Tests replace the class to simulate a faulty disk.

Every method offers one guarantee of the operating system. The rules of durability:

- written bytes are durable after ``fdatasync`` of their file, and not before;
- a name (created, renamed, unlinked) is durable after ``sync_directory``, and not before;
- after a *failed* ``fdatasync`` the kernel may treat the bytes as already written. So a successful second sync proves
  nothing. The bytes must be written again and synced.

Directories are given as paths, and open files are given as numbers (file descriptors). All errors are ``OSError``, and
the callers add an explanation.
"""

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from secrets import randbits

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""The errors of a full disk."""
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
"""The error numbers which mean that the process or the machine has too many open files. Nothing was written, so the
operation may be tried again."""


class Files:
    """The file operations of a log, on the real file system."""

    def random_bits(self, count: int) -> int:
        """Return a new random number with this number of bits."""
        return randbits(count)

    def make_directory(self, path: str) -> None:
        """Create a directory that only the user of this process can access. Files from ``create`` have the same
        restriction."""
        os.mkdir(path, 0o700)

    def names(self, directory: str) -> list[str]:
        return os.listdir(directory)

    def create(self, path: str) -> int:
        """Create a new, empty file to read and write; an existing file of that name is emptied."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def open(self, path: str, write: bool = False) -> int:
        """Open a file. Raise OSError if it is not a regular file: reading a pipe might never end."""
        file = os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(errno.EINVAL, "not a regular file", path)
        return file

    def close(self, file: int) -> None:
        os.close(file)

    @contextmanager
    def opened(self, path: str, write: bool = False) -> Iterator[int]:
        """Open a file for a ``with`` block, and close it at the end of the block. The block gets the file
        descriptor."""
        file = self.open(path, write)
        try:
            yield file
        finally:
            self.close(file)

    def size(self, file: int) -> int:
        return os.fstat(file).st_size

    def read(self, file: int, count: int, offset: int) -> bytes:
        """Return ``count`` bytes from ``offset`` on, or fewer at the end of the file."""
        data = os.pread(file, count, offset)
        while data and len(data) < count:
            more = os.pread(file, count - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def write(self, file: int, buffers: Sequence[bytes], offset: int) -> None:
        """Write all of these bytes, one after the other, beginning at ``offset``."""
        written = os.pwritev(file, buffers, offset)
        expected = sum(map(len, buffers))
        if written == expected:
            return
        rest = memoryview(b"".join(buffers))
        while written < expected:
            step = os.pwrite(file, rest[written:], offset + written)
            if not step:
                raise OSError(errno.EIO, "the operating system wrote no bytes")
            written += step

    def allocate(self, file: int, size: int) -> None:
        """Extend the file to ``size`` bytes, and reserve disk space for all of them. The new bytes are zeros."""
        try:
            os.posix_fallocate(file, 0, size)
        except (AttributeError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            # If a file system cannot reserve space, writing forces it to.
            zeros = bytes(1 << 20)
            for offset in range(self.size(file), size, len(zeros)):
                self.write(file, [zeros[: size - offset]], offset)

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def fdatasync(self, file: int) -> None:
        """Make the file's bytes durable. If the file's length is needed to read these bytes, make the length durable,
        too."""
        if sys.platform == "darwin":
            fcntl.fcntl(file, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(file)

    def fsync(self, file: int) -> None:
        """Make the file's bytes and all its metadata durable."""
        if sys.platform == "darwin":
            fcntl.fcntl(file, fcntl.F_FULLFSYNC)
        else:
            os.fsync(file)

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def lock(self, path: str, holder: bytes) -> int:
        """Lock the file ``path``, write ``holder`` into it, and return its file descriptor. The lock ends when the
        descriptor is closed or the process ends.

        Raise ``BlockingIOError`` if another process has the lock. The text of the error is the ``holder`` that the
        other process has written.
        """
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(file, 0)
            os.pwrite(file, holder, 0)
        except BlockingIOError as error:
            other = os.pread(file, 64, 0).decode("ascii", "replace").strip()
            os.close(file)
            raise BlockingIOError(error.errno, other) from error
        except OSError:
            os.close(file)
            raise
        return file

"""Read small text files that people write, such as topologies, mappings, grids, tables and tokens."""

import os

from antecede.errors import AntecedeError, UsageError


def read_bytes(path: str | os.PathLike[str], bytes_max: int, error: type[AntecedeError] = UsageError) -> bytes:
    """Return the content of a file. Raise ``error`` if the file cannot be read or is longer than ``bytes_max``. Read at
    most ``bytes_max`` + 1 bytes, because a special file such as ``/dev/zero`` never ends."""
    name = os.fsencode(path).decode("utf-8", "replace")
    try:
        with open(path, "rb") as file:
            data = file.read(bytes_max + 1)
    except (OSError, ValueError) as cause:
        raise error(f"{name}: cannot be read: {getattr(cause, 'strerror', None) or cause}") from None
    if len(data) > bytes_max:
        raise error(f"{name}: longer than {bytes_max} bytes")
    return data


def read_text(path: str | os.PathLike[str], bytes_max: int, error: type[AntecedeError] = UsageError) -> str:
    """Return the text of a UTF-8 file, with or without a byte order mark. Raise ``error`` if the file cannot be read,
    is longer than ``bytes_max`` or is not UTF-8."""
    data = read_bytes(path, bytes_max, error)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        name, line = os.fsencode(path).decode("utf-8", "replace"), data.count(b"\n", 0, cause.start) + 1
        raise error(f"{name}:{line}: expected UTF-8 text") from None

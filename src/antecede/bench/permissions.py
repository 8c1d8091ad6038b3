"""``antecede bench channel --permissions``: a client with permissions and one without, in turns, by CPU time per
message.

With permissions the server has an access file: both ends prove their identity once, and each publish is checked.
Without them there is one token for all. Neither uses TLS. Both run in every round, one directly after the other; see
:mod:`antecede.bench.versions` for the figures.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import antecede
from antecede.bench import payload
from antecede.bench.channel import Ours, Sample, Side, sides
from antecede.bench.interpreter import interpreter
from antecede.bench.versions import in_turns, row
from antecede.errors import UsageError

NAME = "program"
"""The name of the client in :mod:`antecede.bench.ours`."""


def restrictable(only: str | None) -> list[Side]:
    """Return the sides in a comma-separated list whose sender is a client; all such sides without a list."""
    ours = {side.name: side for side in sides if isinstance(side.run, Ours) and not side.run.embedded}
    names = tuple(ours) if only is None else tuple(name.strip() for name in only.split(","))
    for name in names:
        if name not in ours:
            raise UsageError(f"--sides {name}: with --permissions, expected some of {', '.join(ours)}")
    return [side for name, side in ours.items() if name in names]


def compare_permissions(
    wanted: Sequence[Side],
    messages: int,
    rounds: int,
    directory: str | None,
    tell: Callable[[str], None],
    step: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Measure with and without permissions in turns; return the report."""
    source = os.path.dirname(os.path.dirname(os.path.abspath(antecede.__file__)))

    def measured(side: Side, variant: str) -> Sample:
        assert isinstance(side.run, Ours)
        with TemporaryDirectory(prefix="antecede-bench-", dir=directory) as place:
            keys = issue(Path(place) / "keys") if variant == "this" else None
            return side.run(max(100, round(messages * side.share)), place, source, keys)

    samples = in_turns(wanted, measured, rounds, tell, step)
    return {
        "bench": "channel",
        "against": "no permissions",
        "payload_bytes": len(payload),
        "messages": messages,
        "rounds": rounds,
        "interpreter": interpreter(),
        "sides": [row(side, samples[side.name]) for side in wanted],
    }


def issue(folder: Path) -> Path:
    """Write keys for both servers and the client, and an access file with the client's permissions."""
    from antecede.access.model import CLIENT, SERVER, Identity, Key
    from antecede.live.issuing import new_key, table, write_folder, write_servers

    identities = []
    for role, name in ((SERVER, "s1"), (SERVER, "s2"), (CLIENT, NAME)):
        key = new_key()
        write_folder(folder / name, role, name, key, None, None)
        send, receive = (("wall", "sink"), ("wall",)) if role == CLIENT else ((), ())
        identities.append(Identity(role, name, (Key(key.public),), send=send, receive=receive))
    write_servers(folder / NAME, identities[:2])
    (folder / "access.toml").write_text("".join(map(table, identities)))
    return folder

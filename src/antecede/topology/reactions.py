"""The part of a topology file about reactions: how long they may take, and which agents have a separate process.

::

    [application]
    reaction_seconds_max = 60                                            # of every agent (default 300)
    [agents]
    resize = { server = "s1", class = "shop:Resize", isolate = "process", reaction_seconds_max = 5 }

A *reaction* is the handling of one letter by an agent. Its time limit is ``reaction_seconds_max``. If a handler that
is not ``async`` exceeds the limit, its server's process ends, because nothing else can stop the handler. If an
``async`` handler exceeds the limit, it is cancelled. The handlers of an agent with ``isolate = "process"`` run in a
worker process. If such a handler exceeds the limit, the worker process is killed, but the server and all other agents
continue. In all three cases, the server counts one failed attempt to process the letter. These settings are not part of
the epoch (a hash of the topology), so they may change whenever the server restarts.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from antecede import limits

ISOLATE: Final = ("none", "process")
KEYS: Final = ("isolate", "reaction_seconds_max")


class ReactionSettings(msgspec.Struct, frozen=True):
    """The settings of all reactions."""

    seconds: float = limits.reaction_seconds_max
    """The limit of each agent that is not in ``named``."""
    named: dict[str, float] = {}
    """The agents with a separate limit, each with this limit in seconds."""
    isolated: frozenset[str] = frozenset()
    """Agents whose handlers run in a worker process."""

    def limit(self, agent: str) -> float:
        """Return how long one reaction of this agent may take."""
        return self.named.get(agent, self.seconds)

    @property
    def longest(self) -> float:
        """The largest of all limits."""
        return max(self.seconds, *self.named.values(), 0.0)

    def keys(self, agent: str) -> str:
        """Return an agent's own settings as text for its entry in a topology file, or an empty text if there are none.
        An example: ``, isolate = "process", reaction_seconds_max = 5``."""
        seconds = f", reaction_seconds_max = {self.named[agent]:g}" if agent in self.named else ""
        return (', isolate = "process"' if agent in self.isolated else "") + seconds


def read_reactions(document: dict[str, Any], error: Callable[..., Exception]) -> ReactionSettings:
    """Read the settings from a topology document. The types of its tables must have been checked before. The function
    ``error(reason, *path)`` returns the error to raise; ``path`` is the place in the document."""

    def seconds_in(entry: dict[str, Any], what: str, *path: str) -> float | None:
        value = entry.get("reaction_seconds_max")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and 0 < value <= limits.reaction_seconds_limit):
            expected = f"expected seconds, more than 0 and at most {limits.reaction_seconds_limit:g}"
            raise error(f"{what}reaction_seconds_max = {value!r}: {expected}", *path)
        return None if value is None else float(value)

    named: dict[str, float] = {}
    isolated: set[str] = set()
    for name, entry in document.get("agents", {}).items():
        isolate = entry.get("isolate", ISOLATE[0])
        given = [key for key in KEYS if key in entry]
        if given and "servers" in entry:
            raise error(f"object {name}: {given[0]} is only for agents; remove it", "agents", name)
        if isolate not in ISOLATE:
            raise error(f"agent {name}: isolate = {isolate!r}: expected {' or '.join(ISOLATE)}", "agents", name)
        if isolate == "process":
            isolated.add(name)
        seconds = seconds_in(entry, f"agent {name}: ", "agents", name)
        if seconds is not None:
            named[name] = seconds
    application = seconds_in(document.get("application", {}), "", "application", "reaction_seconds_max")
    return ReactionSettings(application or limits.reaction_seconds_max, named, frozenset(isolated))

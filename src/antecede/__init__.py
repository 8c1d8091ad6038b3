"""Antecede: messages between processes that never arrive before the messages that caused them.

This module exports what applications need: ``Agent``, ``Notification``, ``Context``, ``Topic``, ``ReplicatedObject``,
``connect``. Names are imported when they are used, so that ``import antecede`` costs nothing. ``docs/architecture.md``
lists the packages, lowest first; a package imports only from the packages below it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

_names = {
    "antecede.channel.letters": ("Letter",),
    "antecede.engine.agents": ("Agent", "Notification", "Returned", "Timeout", "Unanswered"),
    "antecede.engine.context": ("Context",),
    "antecede.engine.topic": ("Subscribe", "Topic", "Unsubscribe"),
    "antecede.errors": (
        *("AntecedeError", "CallTimeoutError", "ClosedError", "MailboxFullError", "NotAllowedError"),
        *("OperationError", "OverloadError", "RefusedError", "UnansweredError", "UsageError"),
    ),
    "antecede.live": ("ServerRuntime",),
    "antecede.live.client": ("Bus", "Received"),
    "antecede.live.client.line": ("connect",),
    "antecede.objects": ("Call", "CallFailed", "ReplicatedObject", "operation"),
    "antecede.topology": ("parse_topology",),
}
_homes = {name: home for home, names in _names.items() for name in names}
__all__ = sorted(_homes)

if TYPE_CHECKING:
    # Type checkers count a name that is imported under its own name as exported.
    from antecede.channel.letters import Letter as Letter
    from antecede.engine.agents import Agent as Agent
    from antecede.engine.agents import Notification as Notification
    from antecede.engine.agents import Returned as Returned
    from antecede.engine.agents import Timeout as Timeout
    from antecede.engine.agents import Unanswered as Unanswered
    from antecede.engine.context import Context as Context
    from antecede.engine.topic import Subscribe as Subscribe
    from antecede.engine.topic import Topic as Topic
    from antecede.engine.topic import Unsubscribe as Unsubscribe
    from antecede.errors import AntecedeError as AntecedeError
    from antecede.errors import CallTimeoutError as CallTimeoutError
    from antecede.errors import ClosedError as ClosedError
    from antecede.errors import MailboxFullError as MailboxFullError
    from antecede.errors import NotAllowedError as NotAllowedError
    from antecede.errors import OperationError as OperationError
    from antecede.errors import OverloadError as OverloadError
    from antecede.errors import RefusedError as RefusedError
    from antecede.errors import UnansweredError as UnansweredError
    from antecede.errors import UsageError as UsageError
    from antecede.live import ServerRuntime as ServerRuntime
    from antecede.live.client import Bus as Bus
    from antecede.live.client import Received as Received
    from antecede.live.client.line import connect as connect
    from antecede.objects import Call as Call
    from antecede.objects import CallFailed as CallFailed
    from antecede.objects import ReplicatedObject as ReplicatedObject
    from antecede.objects import operation as operation
    from antecede.topology import parse_topology as parse_topology


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    home = _homes.get(name)
    if home is None:
        raise AttributeError(f"module 'antecede' has no attribute {name!r}")
    return getattr(import_module(home), name)

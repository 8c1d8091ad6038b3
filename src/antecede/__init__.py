"""Antecede: messages between processes. No message is delivered before the messages that caused it.

This module exports what applications need, for example ``Agent``, ``Notification``, ``Context``, ``Topic``,
``ReplicatedObject``, and ``connect``. Each name is imported at its first use, so that ``import antecede`` is fast.
``docs/architecture.md`` lists the packages. A package imports only from packages that come before it in this list.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

_homes = {
    "Agent": "antecede.engine.agents",
    "AntecedeError": "antecede.errors",
    "Bus": "antecede.live.client",
    "Call": "antecede.objects",
    "CallFailed": "antecede.objects",
    "CallTimeoutError": "antecede.errors",
    "ClosedError": "antecede.errors",
    "Context": "antecede.engine.agents",
    "Letter": "antecede.channel.letters",
    "NotAllowedError": "antecede.errors",
    "Notification": "antecede.engine.agents",
    "OperationError": "antecede.errors",
    "MailboxFullError": "antecede.errors",
    "OverloadError": "antecede.errors",
    "Received": "antecede.live.client",
    "RefusedError": "antecede.errors",
    "ReplicatedObject": "antecede.objects",
    "Returned": "antecede.engine.agents",
    "ServerRuntime": "antecede.live",
    "Subscribe": "antecede.engine.agents",
    "Timeout": "antecede.engine.agents",
    "Unanswered": "antecede.engine.agents",
    "UnansweredError": "antecede.errors",
    "Topic": "antecede.engine.agents",
    "Unsubscribe": "antecede.engine.agents",
    "UsageError": "antecede.errors",
    "connect": "antecede.live.client.line",
    "operation": "antecede.objects",
    "parse_topology": "antecede.topology",
}

if TYPE_CHECKING:
    from antecede.channel.letters import Letter
    from antecede.engine.agents import (
        Agent,
        Context,
        Notification,
        Returned,
        Subscribe,
        Timeout,
        Topic,
        Unanswered,
        Unsubscribe,
    )
    from antecede.errors import (
        AntecedeError,
        CallTimeoutError,
        ClosedError,
        MailboxFullError,
        NotAllowedError,
        OperationError,
        OverloadError,
        RefusedError,
        UnansweredError,
        UsageError,
    )
    from antecede.live import ServerRuntime
    from antecede.live.client import Bus, Received
    from antecede.live.client.line import connect
    from antecede.objects import Call, CallFailed, ReplicatedObject, operation
    from antecede.topology import parse_topology

__all__ = [
    "Agent",
    "AntecedeError",
    "Bus",
    "Call",
    "CallFailed",
    "CallTimeoutError",
    "ClosedError",
    "Context",
    "Letter",
    "MailboxFullError",
    "NotAllowedError",
    "Notification",
    "OperationError",
    "OverloadError",
    "Received",
    "RefusedError",
    "ReplicatedObject",
    "Returned",
    "ServerRuntime",
    "Subscribe",
    "Timeout",
    "Topic",
    "Unanswered",
    "UnansweredError",
    "Unsubscribe",
    "UsageError",
    "connect",
    "operation",
    "parse_topology",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    home = _homes.get(name)
    if home is None:
        raise AttributeError(f"module 'antecede' has no attribute {name!r}")
    return getattr(import_module(home), name)

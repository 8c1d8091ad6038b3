"""Clients of an overloaded server."""

import asyncio
from collections.abc import Callable

import pytest

from antecede.errors import ClosedError
from antecede.live.client import Bus, Ticket


async def refused(bus: Bus, ticket: Ticket) -> str:
    """Wait until a publish is accepted, or refused for now. Return the reason of a refusal, or an empty text."""
    async with asyncio.timeout(30):
        while not ticket.settled and not bus.trouble:
            await asyncio.sleep(0.001)
    return "" if ticket.settled else bus.trouble


async def fill(bus: Bus, send: Callable[[], Ticket], most: int = 100_000) -> tuple[int, str]:
    """Publish one after the other until the server refuses a publish for now, then close the bus. Return how many
    publishes were accepted, and the reason of the refusal."""
    for accepted in range(most):
        ticket = send()
        if reason := await refused(bus, ticket):
            await bus.close()
            with pytest.raises(ClosedError):
                await ticket
            return accepted, reason
    raise AssertionError(f"{most} publishes were accepted")

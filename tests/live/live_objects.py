"""Replicated objects for live tests."""

from collections.abc import Generator
from typing import Any

from antecede import Call, ReplicatedObject, operation


class Account(ReplicatedObject):
    """Deposits commute; all else waits for its turn."""

    balance: int = 0

    @operation(conflicts_with=["withdraw", "pay", "audit"])
    def deposit(self, amount: int) -> None:
        self.balance += amount

    @operation(conflicts_with=["withdraw", "pay", "audit"])
    def withdraw(self, amount: int) -> int:
        if amount > self.balance:
            raise ValueError(f"only {self.balance}")
        self.balance -= amount
        return self.balance

    @operation(conflicts_with=["pay", "audit"])
    def pay(self, to: str, amount: int) -> Generator[Call, Any, int]:
        """Every replica repeats the nested call; the other account is paid once."""
        if amount > self.balance:
            raise ValueError(f"only {self.balance}")
        self.balance -= amount
        yield Call(to, "deposit", (amount,))
        return self.balance

    @operation
    def audit(self) -> int:
        return self.balance


class Stuck(ReplicatedObject):
    """An operation that never returns."""

    @operation
    def loop(self) -> None:
        while True:
            pass

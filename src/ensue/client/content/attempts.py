"""Attempts at one transaction: `bus.transaction(retries=…)`.

    async for attempt in bus.transaction(retries=5):
        async with attempt as tx:
            await tx.unsubscribe(mine)
            await tx.invite("agent", {"instance": "x1"})

Python can't run the block of an `async with` again, so a loop does. The loop ends when an attempt
is committed. An attempt that conflicts with another transaction (`TransactionAborted.is_conflict`)
has had no effect: its exception is swallowed, and the next one follows after a random pause that
doubles each time. The last attempt raises. Every other exception ends the loop: those of the block,
a timeout, a client that is gone, `TransactionPending`.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Generic, NoReturn, Self, TypeVar, cast

from ensue.client.content.plan import PlannedTransaction
from ensue.client.content.transaction import Transaction
from ensue.core.errors import BadInput, LocalProtocolError, TransactionAborted
from ensue.transports.reconnect import pause

__all__ = ["Attempt", "Attempts", "check_retries"]

RETRIES_MAX = 1_000

T = TypeVar("T", bound=Transaction | PlannedTransaction)


def check_retries(retries: int) -> None:
    """Refuse an invalid number of retries."""
    if isinstance(retries, bool) or not isinstance(retries, int) or not 0 <= retries <= RETRIES_MAX:
        raise BadInput(f"retries must be a whole number from 0 to {RETRIES_MAX}, got {retries!r}")


class Attempt(Generic[T]):
    """One attempt at a transaction; enter it with `async with`."""

    def __init__(self, transaction: T, number: int, *, is_last: bool) -> None:
        self._transaction = transaction
        self._is_last = is_last
        self.number = number
        """1, 2, 3, …"""
        self.is_over = False
        """Whether it was entered and left."""
        self.is_refused = False
        """Whether it conflicted, and another attempt is to follow."""

    async def __aenter__(self) -> T:
        return cast("T", await self._transaction.__aenter__())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self.is_over = True
        try:
            await self._transaction.__aexit__(kind, error, traceback)
        except TransactionAborted as refused:
            self.is_refused = refused.is_conflict and not self._is_last
            if not self.is_refused:
                raise
        else:
            is_aborted = isinstance(error, TransactionAborted) and error.is_conflict
            self.is_refused = is_aborted and not self._is_last
        return self.is_refused


class Attempts(Generic[T]):
    """Attempts at a transaction. Made by `Bus.transaction`; iterate with `async for`."""

    def __init__(self, make: Callable[[], T], retries: int) -> None:
        check_retries(retries)
        self._make = make
        self._retries = retries
        self._last: Attempt[T] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Attempt[T]:
        last = self._last
        if last is not None:
            if not last.is_over:
                raise LocalProtocolError("enter each attempt: `async with attempt as tx`")
            if not last.is_refused:
                raise StopAsyncIteration
            await pause(last.number - 1)
        number = 1 if last is None else last.number + 1
        self._last = Attempt(self._make(), number, is_last=number > self._retries)
        return self._last

    async def __aenter__(self) -> NoReturn:
        raise LocalProtocolError(
            "a block can't be run again: use `async for attempt in bus.transaction(retries=…)`, "
            "and in it `async with attempt as tx`"
        )

    async def __aexit__(self, *_: object) -> None:
        """Never called: entering raises."""

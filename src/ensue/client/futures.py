"""Futures that may fail with nobody listening any more."""

import asyncio
from typing import TypeVar

__all__ = ["fail"]

T = TypeVar("T")


def fail(future: asyncio.Future[T], error: Exception) -> None:
    """Fail a future, unless it is settled already.

    Whoever waited may have been cancelled since: asyncio must not complain that nobody looked.
    """
    if not future.done():
        future.set_exception(error)
        future.exception()

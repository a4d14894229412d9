"""Failures of a client: the error for a refusal, and futures that fail."""

import asyncio
from typing import TypeVar

from ensue.core.errors import EnsueError, InternalError, LogLost, refused_client
from ensue.protocols.interface import Refuse
from ensue.runtime.driver import Failed

__all__ = ["client_failure", "fail"]

T = TypeVar("T")


def client_failure(outcome: Refuse, client: str, about: str = "") -> EnsueError:
    """Return the error of a client that was refused, lost a log, or whose node failed.

    The text begins with `about`: what the failure means for an event.
    """
    if not isinstance(outcome, Failed):
        text = f"{about}the server refused this client: {outcome.reason}"
        return refused_client(text, reason=outcome.reason)
    lost = outcome.error
    if isinstance(lost, LogLost):
        return LogLost(f"{about}{lost}", server=lost.server, reason=lost.reason)
    failure = InternalError(f"{about}{client} failed: {outcome.reason}")
    failure.__cause__ = outcome.error
    return failure


def fail(future: asyncio.Future[T], error: Exception) -> None:
    """Fail a future, unless it is settled already.

    The task that waited may have been cancelled: asyncio must not log that the exception was never
    retrieved.
    """
    if not future.done():
        future.set_exception(error)
        future.exception()

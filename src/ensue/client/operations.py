"""Operations of a transaction that were begun, until they are over.

One is begun when its method is called, not when somebody first awaits it: so a forgotten `await` is noticed, and nothing is committed that lacks a part.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

__all__ = ["Operations"]

T = TypeVar("T")


class _Begun(Coroutine[Any, Any, T]):
    """An operation: a coroutine like any other, but nothing warns if it never runs, for its transaction says so."""

    def __init__(self, what: str, work: Coroutine[Any, Any, T]) -> None:
        self.__name__ = self.__qualname__ = what
        self._work = work

    def __await__(self) -> Generator[Any, Any, T]:
        # Not the other's own iterator, which would not keep this object alive.
        return (yield from self._work.__await__())

    def send(self, value: Any) -> Any:
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __del__(self) -> None:
        if inspect.getcoroutinestate(self._work) == inspect.CORO_CREATED:
            self._work.close()


class Operations:
    """Those of one transaction."""

    def __init__(self) -> None:
        self._open: dict[object, str] = {}
        """What was begun and is not over: also if nobody waits for it any more."""

    def begin(
        self, what: str, work: Callable[[], Coroutine[Any, Any, T]]
    ) -> Coroutine[Any, Any, T]:
        """Note that an operation was begun; return what is to be awaited."""
        key = object()
        self._open[key] = what
        return _Begun(what, self._until_over(key, work))

    async def _until_over(self, key: object, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            done = await work()
        except (asyncio.CancelledError, GeneratorExit):
            raise  # It can't be taken back, and nobody knows how it ends.
        except BaseException:
            del self._open[key]
            raise
        del self._open[key]
        return done

    @property
    def unawaited(self) -> str:
        """Say so if something is not over."""
        if not self._open:
            return ""
        names = ", ".join(f"{what}(…)" for what in dict.fromkeys(self._open.values()))
        was = "was" if len(self._open) == 1 else "were"
        return f"{names} {was} not awaited to the end: await all that you do in it"

"""A durable subscription by content, read in turn by processes that end, leave or are killed."""

import asyncio
from collections.abc import Callable
from random import Random

import ensue
from ensue.core.errors import (
    EventsInDoubt,
    LimitReached,
    LocalProtocolError,
    SubscriptionLost,
    TransportError,
)
from ensue.runtime.hub_memory import CLOSE_TIMEOUT_S
from ensue.testing.process import Process
from ensue.testing.swarm.client_watch import ClientWatch
from ensue.testing.world import World

__all__ = ["Mailboxes"]

NAME = "mail"
WHERE = "mail exists"
MARGIN_S = 0.1
"""How much earlier than its limit a wait may seem to end."""


class UnansweredError(Exception):
    """A closed reader did not learn that its acknowledgement was stored, as faults may cause."""


class Mailboxes:
    """A publisher, the readers of a durable subscription, and what they owe each other.

    Every event that was confirmed after the subscription began is handed out, and none after its
    acknowledgement has returned. Drawn and played by generators of its own.
    """

    def __init__(
        self,
        world: World,
        seed: int,
        problems: list[str],
        *,
        watch: ClientWatch,
        expired: tuple[type[Exception], ...],
        url: Callable[[Random], str],
        is_calm: Callable[[], bool],
        is_over: Callable[[], bool],
    ) -> None:
        self._world, self._problems, self._any_url = world, problems, url
        self._watch, self._expired = watch, expired
        self._is_calm, self._is_over = is_calm, is_over
        self._random = Random(f"{seed}/mailboxes")  # noqa: S311 - replays a seed
        self._safe = 0
        """Up to where an acknowledgement has returned, to any reader."""
        self._pending_max = self._random.choice((1, 4, 1_000))
        self._published = 0
        self._readers = 0
        """Number of readers that were started."""
        self._has_begun = False
        """Whether the subscription was in effect."""
        self._owed: dict[int, None] = {}
        """Confirmed events, by number."""
        self._handed: dict[int, int] = {}
        """By number of an event that was handed out: its position."""

    def start(self) -> list[Process]:
        """Start the publisher, and the process that starts readers."""
        return [
            self._world.start("mailer", self._publish),
            self._world.start("postmaster", self._start_readers),
        ]

    def judge(self) -> list[str]:
        """Return what was lost."""
        lost = [number for number in self._owed if number not in self._handed]
        return [f"lost: {NAME} never got {len(lost)} events: {lost[:5]}"] if lost else []

    def _url(self) -> str:
        return self._any_url(self._random)

    async def _publish(self) -> None:
        while not self._is_calm():
            with self._watch.expects("mailer", TransportError, EventsInDoubt, *self._expired):
                async with ensue.connect(self._url(), order=None, name="mailer") as bus:
                    await bus.advertise(where=WHERE)
                    while not self._is_calm():
                        self._published += 1
                        number, is_owed = self._published, self._has_begun
                        await bus.publish({"mail": number}, timeout=20.0)
                        if is_owed:
                            self._owed[number] = None
                        await asyncio.sleep(self._random.uniform(0.0, 0.4))
            self._world.crashed(self._world.host("mailer"))

    async def _start_readers(self) -> None:
        """Start one reader after the other; the last one stays until the end."""
        while not self._is_over():
            self._readers += 1
            is_last, name = self._is_calm(), f"reader-{self._readers}"
            reader = self._world.start(name, self._read, name)
            if is_last:
                await reader.ended()
                break
            await asyncio.sleep(self._random.uniform(0.5, 4.0))
            if self._random.random() < 0.5 and not self._is_calm():
                reader.kill()
            # Otherwise the next one takes over, while it reads.

    async def _read(self, process: str) -> None:
        """Read until another reader takes over."""
        while not self._is_over():
            # At times its user has as many as are allowed.
            with self._watch.expects(
                process,
                TransportError,
                EventsInDoubt,
                LimitReached,
                UnansweredError,
                *self._expired,
            ):
                try:
                    await self._connected(process)
                except SubscriptionLost as error:
                    if error.reason == "superseded":
                        break
                finally:
                    self._world.crashed(self._world.host(process))
            await asyncio.sleep(0.5)

    async def _connected(self, process: str) -> None:
        # An earlier reader may still hold events that a later one has acknowledged.
        safe = self._safe
        async with (
            ensue.connect(self._url(), order=None, name=process) as bus,
            bus.subscribe(
                where=WHERE,
                name=NAME,
                durable=True,
                acknowledge="manual",
                pending_max=self._pending_max,
            ) as events,
        ):
            self._has_begun = True
            closing = asyncio.create_task(self._close(events))
            try:
                async for event in events:
                    if event.position <= safe:
                        self._problems.append(
                            f"again: {process} got position {event.position} of {NAME}, and the "
                            f"acknowledgement of {safe} had returned before"
                        )
                    await self._handle(process, events, event, closing)
            finally:
                closing.cancel()

    async def _close(self, events: ensue.Subscription) -> float:
        """Close when the run is over, or at some time; return when, on the process's clock."""
        leave_s = self._random.uniform(0.5, 10.0)
        await asyncio.sleep(leave_s)
        while self._is_calm() and not self._is_over():  # noqa: ASYNC110 - processes share no event
            await asyncio.sleep(0.5)
        events.close()
        return asyncio.get_running_loop().time()

    async def _handle(
        self,
        process: str,
        events: ensue.Subscription,
        event: ensue.ReceivedEvent,
        closing: asyncio.Task[float],
    ) -> None:
        number = int(str(event.attributes["mail"]))
        known = self._handed.setdefault(number, event.position)
        if known != event.position:
            self._problems.append(f"moved: event {number} of {NAME} had two positions")
        if events.pending > self._pending_max:
            self._problems.append(f"options: {NAME} has {events.pending} events pending")
        if self._random.random() < 0.3 and not self._is_calm():
            await asyncio.sleep(self._random.uniform(0.0, 0.5))
        await self._acknowledge(process, event, closing)

    async def _acknowledge(
        self, process: str, event: ensue.ReceivedEvent, closing: asyncio.Task[float]
    ) -> None:
        """Acknowledge an event: it may come again unless that returns."""
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        try:
            await event.ack()
        except LocalProtocolError as error:
            if not closing.done():
                raise
            waited_s = loop.time() - max(asked_s, closing.result())
            if waited_s < CLOSE_TIMEOUT_S - MARGIN_S:
                self._problems.append(
                    f"acknowledged: {process} closed {NAME}, and gave up after {waited_s:.1f} s"
                )
            raise UnansweredError(str(error)) from None
        self._safe = max(self._safe, event.position)

"""The publications of a bus on topics: checked, held up while there is no room, and sent.

Order. Nothing is awaited between the last check for room and the node: events of one bus are
published in the sequence in which their calls found room.

Many at once. `publish_many` checks all events before it publishes the first. It publishes them in
parts of up to `BURST_MAX`, one command of the node each; between parts it waits for room, and other
calls may publish. A part ends before an event to a subscription that is known to be full. Where
publishers wait for subscriptions (`memory://`), these get events behind the part, so that one may
get a whole part beyond its `pending_max`.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from ensue import orders
from ensue.client.backpressure import wait_for_room
from ensue.client.receipts import NO_ROOM, ManyReceipts, Receipts, receipt_by, room_by
from ensue.client.validation import (
    Payload,
    check_content_event,
    check_headers,
    check_key,
    check_payload,
    check_size,
    check_topic_event,
    check_topics,
)
from ensue.core.errors import BadInput, EnsueError, LocalProtocolError, PublishTimeout
from ensue.core.event import Event
from ensue.orders import PublisherNode
from ensue.runtime.driver import Driver
from ensue.runtime.hub_memory import Hub

__all__ = ["Pair", "Publications"]

Topic = str | Mapping[str, object]
Headers = Mapping[str, str]
Pair = (
    tuple[Topic, Payload]
    | tuple[Topic, Payload, bytes | None]
    | tuple[Topic, Payload, bytes | None, Headers | None]
)
"""An event of `publish_many`: topic or attributes, payload, and a key and headers if it has any."""
Checked = tuple[str, bytes, bytes | None, Headers | None]
ByContent = Callable[[Mapping[str, object]], tuple[str, dict[str, str]]]
"""Returns the topic and the headers of an event by content."""

BURST_MAX = 128
"""Events published in a row before other tasks get a turn."""
CHECKED_MAX = 10_000
"""Valid topics that are remembered."""
UNSETTLED_MAX = 20_000
"""Events without a receipt before publishing waits for some."""


class Publications:
    """Publishes the events of one bus on topics."""

    def __init__(
        self,
        hub: Hub,
        driver: Driver[PublisherNode],
        receipts: Receipts,
        *,
        name: str,
        ended: "asyncio.Future[None]",
        check_open: Callable[[], object],
        confirm: Callable[[Event], None],
    ) -> None:
        self._hub = hub
        self._driver = driver
        self._receipts = receipts
        self._name = name
        self._ended = ended
        """Done once the bus is being closed."""
        self._check_open = check_open
        """Raises unless the bus is open."""
        self._confirm = confirm
        """Records that a receipt came."""
        self._checked: set[str] = set()
        """Topics known to be valid."""
        self._burst = 0

    def check_topic(self, topic: str) -> None:
        """Refuse a topic that no event can have."""
        if type(topic) is str and topic in self._checked:
            return
        check_topics((topic,))
        why = orders.of(self._hub.order).topic_refusal(topic)
        if why is not None:
            raise BadInput(why)
        if len(self._checked) < CHECKED_MAX:
            self._checked.add(topic)

    async def publish(
        self,
        topic: str,
        payload: Payload,
        *,
        key: bytes | None,
        headers: Mapping[str, str] | None,
        wanted: bool,
        by_s: float | None,
    ) -> Event:
        """Publish an event; return it, stamped if its receipt is wanted.

        It waits up to a time of the event loop; None: as long as it takes.
        """
        hub, driver, receipts = self._hub, self._driver, self._receipts
        topic, payload, key, headers = self._fit(topic, payload, key, headers)
        if hub.full or len(receipts.open) >= UNSETTLED_MAX:
            async with room_by(by_s):
                await self._wait_for_room(topic)
        node, now_ns = driver.begin()
        try:
            event = node.publish(topic, payload, now_ns=now_ns, key=key, headers=headers)
            settled = receipts.expect(event, wanted=wanted)
            if hub.recorder is not None:
                hub.recorder.submitted(self._name, event, now_ns)
        finally:
            driver.end()
        self._burst += 1
        if self._burst >= BURST_MAX:
            self._burst = 0
            await asyncio.sleep(0)
        if settled is None:
            return event
        # Shielded: cancelling the caller must not make a settled event look lost.
        stamped = (
            settled.result()
            if settled.done()
            else await receipt_by(by_s, event, asyncio.shield(settled))
        )
        if hub.recorder is not None:
            self._confirm(stamped)
        return stamped

    def check_pairs(self, pairs: Iterable[Pair], by_content: ByContent | None) -> list[Checked]:
        """Return the events of pairs; refuse them all if one is wrong, and name its index."""
        if isinstance(pairs, Mapping):
            raise BadInput("pairs must be tuples (topic, payload), got a mapping: give its items()")
        if not isinstance(pairs, Iterable):
            raise BadInput(
                f"pairs must be an iterable of (topic, payload), got {type(pairs).__name__}"
            )
        checked: list[Checked] = []
        known, bytes_max = self._checked, self._hub.payload_bytes_max
        for index, pair in enumerate(pairs):
            if by_content is None and type(pair) is tuple and len(pair) == 2:
                topic, payload = pair
                if (
                    type(topic) is str
                    and topic in known
                    and type(payload) is bytes
                    and len(payload) <= bytes_max
                ):
                    checked.append((topic, payload, None, None))
                    continue
            try:
                checked.append(self._check_pair(pair, by_content))
            except BadInput as error:
                if type(error) is BadInput:
                    raise BadInput(f"pairs[{index}]: {error}") from None
                error.add_note(f"in pairs[{index}]")
                raise
        return checked

    async def publish_many(
        self, events: Sequence[Checked], *, wanted: bool, by_s: float | None
    ) -> list[Event]:
        """Publish checked events; return them, stamped if their receipts are wanted.

        It waits up to a time of the event loop; None: as long as it takes.
        """
        many, hub = ManyReceipts(), self._hub
        stopped: EnsueError | None = None
        try:
            async with asyncio.timeout_at(by_s) as limit:
                await self._publish_parts(events, many, wanted=wanted)
        except TimeoutError:
            if not limit.expired():
                raise
            if len(many.events) < len(events):
                stopped = PublishTimeout("publish_many timed out before there was room for more")
        except EnsueError as error:
            stopped = error
            if self._ended.done():
                stopped = LocalProtocolError("the bus was closed")
        if stopped is not None and not many.events:
            raise PublishTimeout(NO_ROOM) if isinstance(stopped, PublishTimeout) else stopped
        if wanted:
            await many.wait(by_s)
            if hub.recorder is not None:
                for stamped in many.stamped:
                    self._confirm(stamped)
        return many.outcome(len(events), stopped, wanted=wanted)

    async def _publish_parts(
        self, events: Sequence[Checked], many: ManyReceipts, *, wanted: bool
    ) -> None:
        first = 0
        while first < len(events):
            self._check_open()
            last = self._end_of_part(events, first)
            if last == first:
                await self._wait_for_room(events[first][0])
                continue
            self._publish_part(events[first:last], many, wanted=wanted)
            self._burst += last - first
            first = last
            if self._burst >= BURST_MAX:
                self._burst = 0
                await asyncio.sleep(0)

    def _publish_part(self, events: Sequence[Checked], many: ManyReceipts, *, wanted: bool) -> None:
        driver, recorder = self._driver, self._hub.recorder
        expect = self._receipts.expect_with
        node, now_ns = driver.begin()
        publish = node.publish
        try:
            for topic, payload, key, headers in events:
                event = publish(topic, payload, now_ns=now_ns, key=key, headers=headers)
                expect(many, event, wanted=wanted)
                if recorder is not None:
                    recorder.submitted(self._name, event, now_ns)
        finally:
            driver.end()

    def _end_of_part(self, events: Sequence[Checked], first: int) -> int:
        """Return up to where events can be published now, as far as room is known."""
        room = min(BURST_MAX, UNSETTLED_MAX - len(self._receipts.open))
        last = min(len(events), first + max(0, room))
        if self._hub.full:
            blocker = self._hub.blocker
            blocked = (index for index in range(first, last) if blocker(events[index][0]))
            last = next(blocked, last)
        return last

    def _check_pair(self, pair: Pair, by_content: ByContent | None) -> Checked:
        if not isinstance(pair, tuple | list) or not 2 <= len(pair) <= 4:
            raise BadInput(
                "an event must be a tuple (topic, payload), or (topic, payload, key, headers), "
                f"got {pair!r:.100}"
            )
        topic, payload, key, headers = (*pair, None, None)[:4]
        if isinstance(topic, Mapping):
            check_content_event(key, headers)
            if by_content is None:
                raise BadInput(
                    "attributes need order=…, such as order=ensue.Total(): without one, publish "
                    "them one by one with bus.publish"
                )
            cell, headers = by_content(topic)
            return self._fit(cell, payload, None, headers)
        check_topic_event(ordered=by_content is not None)
        self.check_topic(topic)
        return self._fit(topic, payload, key, headers)

    def _fit(
        self, topic: str, payload: Payload, key: bytes | None, headers: Headers | None
    ) -> Checked:
        """Refuse what an event can't carry; return copies that the caller can't change."""
        bytes_max = self._hub.payload_bytes_max
        if type(payload) is not bytes or len(payload) > bytes_max:
            payload = check_payload(payload, bytes_max)
        if key is None and headers is None:
            return (topic, payload, None, None)
        check_key(key)
        copied = check_headers(headers)
        check_size(payload, key, copied, bytes_max)
        return (topic, payload, key, copied)

    async def _wait_for_room(self, topic: str) -> None:
        """Wait while subscriptions have no room, or too many events lack a receipt."""
        await wait_for_room(self._hub, topic, self._ended)
        while len(self._receipts.open) >= UNSETTLED_MAX:
            await self._receipts.wait_for_room(UNSETTLED_MAX)
            self._check_open()

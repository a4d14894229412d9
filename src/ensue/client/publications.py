"""The publications of a bus on topics: checked, held up while there is no room, and sent.

Order. Nothing is awaited between the last check for room and the node: events of one bus are
published in the sequence in which their calls found room.
"""

import asyncio
from collections.abc import Callable, Mapping

from ensue.client.backpressure import wait_for_room
from ensue.client.receipts import Receipts, receipt_by, room_by
from ensue.client.validation import (
    Payload,
    check_headers,
    check_key,
    check_payload,
    check_size,
    check_topics,
)
from ensue.core.event import Event
from ensue.orders import PublisherNode
from ensue.runtime.driver import Driver
from ensue.runtime.hub_memory import Hub

__all__ = ["Publications"]

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
        if topic in self._checked:
            return
        check_topics((topic,))
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
        if type(payload) is not bytes or len(payload) > hub.payload_bytes_max:
            payload = check_payload(payload, hub.payload_bytes_max)
        copied = None
        if key is not None or headers is not None:
            check_key(key)
            copied = check_headers(headers)
            check_size(payload, key, copied, hub.payload_bytes_max)
        if hub.full or len(receipts.open) >= UNSETTLED_MAX:
            async with room_by(by_s):
                await self._wait_for_room(topic)
        node, now_ns = driver.begin()
        try:
            event = node.publish(topic, payload, now_ns=now_ns, key=key, headers=copied)
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

    async def _wait_for_room(self, topic: str) -> None:
        """Wait while subscriptions have no room, or too many events lack a receipt."""
        await wait_for_room(self._hub, topic, self._ended)
        while len(self._receipts.open) >= UNSETTLED_MAX:
            await self._receipts.wait_for_room(UNSETTLED_MAX)
            self._check_open()

"""A subscription by content, as the application reads it.

It asks for one filter, once, and ends when a transaction has withdrawn it. Nothing is kept for it elsewhere: where publishers don't wait for readers
(`ensue://`), one that has no room for what comes next is over (`SubscriptionLost`), behind the last transaction that it had room for as a whole.

The trace says `delivered` when the application is handed an event, and not when its client has it; of what was still here when the bus was closed it says so (`unread`).
"""

from dataclasses import replace

from ensue.client.content import CONTENT
from ensue.client.content_reader import ContentShare, Where
from ensue.client.received import ReceivedEvent
from ensue.client.subscription import Subscription
from ensue.errors import LocalProtocolError
from ensue.protocols.core import Leave
from ensue.runtime.hub import Hub

__all__ = ["ContentSubscription"]


class ContentSubscription(Subscription):
    """A subscription by content."""

    def __init__(self, hub: Hub, *, client: str, wanted: Where) -> None:
        options = wanted.options
        super().__init__(
            hub,
            client=client,
            name=options.name,
            topics=(CONTENT,),
            order=replace(wanted, room=self._room),
            pending_max=options.pending_max,
            acknowledge=options.acknowledge,
        )
        self._handlers[Leave] = lambda _outcome: self.close()
        wanted.client.keep_recorded(self)

    async def subscribe(self, *topics: str) -> None:
        """Refuse topics; entering asks for `CONTENT`."""
        self._check(topics)
        await super().subscribe(*topics)

    async def unsubscribe(self, *topics: str) -> None:
        """Refuse topics."""
        self._check(topics)
        self.record_rest("not_subscribed")
        await super().unsubscribe(*topics)

    async def __anext__(self) -> ReceivedEvent:
        event = await super().__anext__()
        # Nothing is awaited from here on, so a cancelled task has not taken the event.
        if (share := self._share) is not None:
            share.handed(event.position, "delivered")
        return event

    def record_rest(self, verdict: str) -> None:
        """Write into the trace what becomes of events that are here and were not handed out."""
        if (share := self._share) is not None:
            for delivery in self._queue:
                share.handed(delivery.position, "discarded", verdict)

    @property
    def _share(self) -> ContentShare | None:
        share = None if self._reader is None else self._reader.node
        return share if isinstance(share, ContentShare) else None

    def _check(self, topics: tuple[str, ...]) -> None:
        if topics != (CONTENT,):
            raise LocalProtocolError(
                f"a subscription by content has no topics such as {topics}: open another one, or close it"
            )

    def _room(self) -> int | None:
        """Return how many more events there is room for; None: publishers wait, so there always is."""
        return None if self._hub.holds_publishers else self.pending_max - self.pending

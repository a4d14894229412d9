"""A subscription by content, as the application reads it.

It asks for one filter, once, and ends when a transaction has withdrawn it. Nothing is kept for it elsewhere: where publishers don't wait for readers
(`ensue://`), one that has no room for what comes next is over (`SubscriptionLost`), behind the last transaction that it had room for as a whole.
"""

from dataclasses import replace

from ensue.client.content import CONTENT
from ensue.client.content_reader import Where
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

    async def subscribe(self, *topics: str) -> None:
        """Refuse topics; entering asks for `CONTENT`."""
        self._check(topics)
        await super().subscribe(*topics)

    async def unsubscribe(self, *topics: str) -> None:
        """Refuse topics."""
        self._check(topics)
        await super().unsubscribe(*topics)

    def _check(self, topics: tuple[str, ...]) -> None:
        if topics != (CONTENT,):
            raise LocalProtocolError(
                f"a subscription by content has no topics such as {topics}: open another one, or close it"
            )

    def _room(self) -> int | None:
        """Return how many more events there is room for; None: publishers wait, so there always is."""
        return None if self._hub.holds_publishers else self.pending_max - self.pending

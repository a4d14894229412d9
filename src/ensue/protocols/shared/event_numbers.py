"""The numbers of a publisher's events, in every order: 1, 2, 3, … per topic."""

from collections.abc import Mapping

from ensue.core.event import Event

__all__ = ["EventNumbers"]


class EventNumbers:
    """Makes and numbers the events of one publisher."""

    __slots__ = ("_publisher", "last")

    def __init__(self, publisher: str) -> None:
        self._publisher = publisher
        self.last: dict[str, int] = {}
        """Topic to the number of its last event."""

    def make(
        self,
        topic: str,
        payload: bytes,
        now_ns: int,
        key: bytes | None,
        headers: Mapping[str, str] | None,
    ) -> Event:
        """Return the next event of a topic."""
        number = self.last[topic] = self.last.get(topic, 0) + 1
        if key is None and not headers:
            return Event(
                topic=topic,
                payload=payload,
                publisher=self._publisher,
                publisher_seq=number,
                published_at_ns=now_ns,
            )
        return Event(
            topic=topic,
            payload=payload,
            publisher=self._publisher,
            publisher_seq=number,
            key=key,
            headers=dict(headers) if headers else {},
            published_at_ns=now_ns,
        )

"""Topic readers: the members that may have subscribed to each topic."""

__all__ = ["TopicReaders"]


class TopicReaders:
    """Members by topic, each with the number of its last request for the topic."""

    def __init__(self) -> None:
        self._requests: dict[str, dict[str, int]] = {}
        """By topic and member."""
        self._topics: dict[str, dict[str, None]] = {}
        """By member."""

    def of(self, topic: str) -> tuple[str, ...]:
        """Return the members that may have subscribed to a topic."""
        return tuple(self._requests.get(topic, ()))

    def add(self, name: str, topic: str, request: int) -> bool:
        """Record a request to subscribe; return whether it is the first."""
        requests = self._requests.setdefault(topic, {})
        is_new = name not in requests
        requests[name] = max(request, requests.get(name, 0))
        self._topics.setdefault(name, {})[topic] = None
        return is_new

    def release(self, name: str, topic: str, request: int) -> bool:
        """Remove a member from a topic, unless it requested it again since."""
        known = self._requests.get(topic, {}).get(name)
        if known is None or known > request:
            return False
        self._remove(name, topic)
        return True

    def part(self, name: str) -> tuple[str, ...]:
        """Remove a member from all its topics; return them."""
        topics = tuple(self._topics.get(name, ()))
        for topic in topics:
            self._remove(name, topic)
        return topics

    def _remove(self, name: str, topic: str) -> None:
        del self._requests[topic][name]
        if not self._requests[topic]:
            del self._requests[topic]
        del self._topics[name][topic]
        if not self._topics[name]:
            del self._topics[name]

"""Writes small traces."""

from ensue.core.trace import Row


class Script:
    """Rows in the order they are written: one nanosecond and one step each."""

    def __init__(self, *, run: str = "r", simulated: bool = True) -> None:
        self.rows: list[Row] = []
        self._run = run
        self._simulated = simulated
        self._steps: dict[str, int] = {}
        self._names: dict[str, tuple[str, str, int]] = {}

    def row(self, node: str, action: str, **columns: object) -> "Script":
        step = self._steps[node] = self._steps.get(node, 0) + 1
        now_ns = len(self.rows) + 1
        self.rows.append(
            Row(
                run=self._run,
                node=node,
                step=step,
                at_ns=now_ns,
                true_ns=now_ns if self._simulated else None,
                action=action,
                **columns,  # type: ignore[arg-type]
            )
        )
        return self

    def subscribe(self, node: str, *topics: str, subscription: str = "main") -> "Script":
        for topic in topics:
            self.row(node, "subscribed", topic=topic, subscription=subscription)
        return self

    def leave(self, node: str, *topics: str, subscription: str = "main") -> "Script":
        for topic in topics:
            self.row(node, "unsubscribed", topic=topic, subscription=subscription)
        return self

    def publish(self, node: str, event: str, topic: str = "x") -> "Script":
        number = 1 + sum(1 for known in self._names.values() if known[:2] == (node, topic))
        self._names[event] = (node, topic, number)
        return self.row(
            node, "published", event=event, topic=topic, publisher=node, publisher_seq=number
        )

    def deliver(
        self,
        node: str,
        *events: str,
        subscription: str = "main",
        verdict: str = "",
        position: int | None = None,
    ) -> "Script":
        for event in events:
            publisher, topic, number = self._names.get(event, ("nobody", "x", 1))
            self.row(
                node,
                "delivered",
                event=event,
                topic=topic,
                publisher=publisher,
                publisher_seq=number,
                subscription=subscription,
                verdict=verdict,
                position=position,
            )
        return self

    def discard(self, node: str, event: str, verdict: str) -> "Script":
        return self.row(node, "discarded", event=event, verdict=verdict)

    def crash(self, node: str) -> "Script":
        return self.row(node, "crashed")

    def restart(self, node: str) -> "Script":
        return self.row(node, "restarted")

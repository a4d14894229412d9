"""Gaps that subscriptions report, and the judge of gaps that they do not.

A subscription gets the slots of a topic one after the other. It may skip a slot that is void, or
that it reports as missed because no log has it any longer (`Subscription.missed`).
"""

from collections.abc import Iterable, Sequence

import ensue
from ensue.client.topic_changes import Missed
from ensue.core.trace import Row
from ensue.testing.swarm.absences import missed

__all__ = ["GapReports"]


class GapReports:
    """What the subscriptions of a run reported as missed."""

    def __init__(self) -> None:
        self._missed: dict[str, dict[Missed, None]] = {}
        """By name of a subscription."""

    def note(self, events: ensue.Subscription) -> None:
        """Note what a subscription reports; at each event, because only the latest are kept."""
        if missed := events.missed:
            self._missed.setdefault(events.name, {}).update(dict.fromkeys(missed))

    def judge(self, rows: Iterable[Row], whole: Iterable[str] = ()) -> list[str]:
        """Return the gaps without a report, in words.

        `whole` are subscriptions that began with the first event of a log that drops nothing.
        """
        rows, begun = list(rows), set(whole)
        voids = {
            (row.topic, (row.stamp or {}).get(row.topic or ""))
            for row in rows
            if row.action == "discarded" and row.verdict == "void"
        }
        problems: list[str] = []
        last: dict[tuple[str, str], int] = {}
        """By subscription and topic: its last slot so far."""
        for row in rows:
            if row.subscription is None or row.action != "delivered":
                continue
            topic = row.topic or ""
            slot = (row.stamp or {})[topic]
            key = (row.subscription, topic)
            before = last.get(key, 0 if row.subscription in begun else slot - 1)
            last[key] = slot  # After a crash, slots of a durable subscription come again.
            between = [each for each in range(before + 1, slot) if (topic, each) not in voids]
            if skipped := self._unreported(row.subscription, topic, between):
                problems.append(
                    f"gap: {row.subscription} got slot {slot} of {topic} at {row.node} after slot "
                    f"{before}, and did not report {skipped} as missed"
                )
        return problems

    def without_reported(self, problems: Sequence[str], rows: Iterable[Row]) -> list[str]:
        """Leave out that a subscription missed an event, if it reported that."""
        slots: dict[str, tuple[str, int]] = {}
        names: dict[str, set[str]] = {}
        for row in rows:
            if row.subscription is not None:
                names.setdefault(row.node, set()).add(row.subscription)
                names[f"{row.node}/{row.subscription}"] = {row.subscription}
                names[f"durable {row.subscription}"] = {row.subscription}
            topic = row.topic or ""
            if row.event is not None and row.stamp is not None and topic in row.stamp:
                slots[row.event] = (topic, row.stamp[topic])

        def is_reported(problem: str) -> bool:
            subscriber, event = missed(problem)
            if event not in slots:
                return False
            topic, slot = slots[event]
            of_it = names.get(subscriber, ())
            return any(not self._unreported(name, topic, [slot]) for name in of_it)

        return [each for each in problems if not is_reported(each)]

    def _unreported(self, name: str, topic: str, slots: Iterable[int]) -> list[int]:
        missed = [each for each in self._missed.get(name, ()) if each.topic == topic]
        return [slot for slot in slots if not any(one.first <= slot <= one.last for one in missed)]

"""Checks that deliveries in order are also on time.

Rule: an event is delivered at most `within_ns` after its publication. Tagged deliveries are set
aside, and of an event delivered twice the first counts. Merged order promises delta + 3 epsilon, to
the end of the tick.

Times of runs on real machines come from two clocks: give the clock error as well, or a fast clock
looks like a slow delivery.

HAZARD: an event that is never delivered is not late. The rule `complete` reports those.
"""

from functools import partial

from ensue.checkers.history import Delivery, History, Publication, ordinal
from ensue.checkers.verdict import Collector

__all__ = ["judge"]

MILLISECOND_NS = 1_000_000


def judge(history: History, collector: Collector, *, within_ns: int, clock_error_ns: int) -> None:
    """Report every delivery that is too long after its publication."""
    bound_ns = within_ns if history.simulated else within_ns + clock_error_ns
    for subscriber in history.delivered:
        name = history.name(subscriber)
        for delivery in history.judged(subscriber):
            publication = history.published.get(delivery.event)
            if publication is None or delivery.time_ns - publication.time_ns <= bound_ns:
                continue
            explain = partial(_explain, name, publication, delivery, bound_ns)
            collector.violation("slow", (subscriber,), (delivery.event,), explain)


def _explain(name: str, publication: Publication, delivery: Delivery, bound_ns: int) -> str:
    took_ns = delivery.time_ns - publication.time_ns
    return (
        f"{name} delivered {delivery.event} (its {ordinal(delivery.position)}) "
        f"{took_ns / MILLISECOND_NS:g} ms after {publication.node} published it; "
        f"the limit is {bound_ns / MILLISECOND_NS:g} ms"
    )

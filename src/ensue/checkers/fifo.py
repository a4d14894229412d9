"""Checks that subscribers deliver the events of each publisher in its order.

Rule: a subscriber delivers the events of one publisher on one topic by rising `publisher_seq`, and
none of them twice. Tagged deliveries are set aside: the application knows of them.

Method: one pass per subscriber. For each publisher and topic, a stack holds the deliveries that no
later one exceeds. After smaller numbers are popped, its top is the nearest earlier delivery with a
greater number: the smallest witness, in amortized constant time.
"""

from functools import partial

from ensue.checkers.history import Delivery, History, ordinal
from ensue.checkers.verdict import Collector, Subscriber

__all__ = ["judge"]


def judge(history: History, collector: Collector) -> None:
    """Report every delivery that is too late or repeated."""
    for subscriber in history.delivered:
        _judge_subscriber(history, subscriber, collector)


def _judge_subscriber(history: History, subscriber: Subscriber, collector: Collector) -> None:
    seen: dict[str, Delivery] = {}
    stacks: dict[tuple[str, str], list[Delivery]] = {}
    name = history.name(subscriber)
    for late in history.delivered[subscriber]:
        if late.tagged:
            continue
        first = seen.setdefault(late.event, late)
        if first is not late:
            explain = partial(_explain_twice, name, first, late)
            collector.violation("duplicate", (subscriber,), (late.event,), explain)
            continue
        stack = stacks.setdefault((late.publisher, late.topic), [])
        while stack and stack[-1].publisher_seq <= late.publisher_seq:
            stack.pop()
        if stack:
            early = stack[-1]
            explain = partial(_explain_order, name, early, late)
            collector.violation("fifo", (subscriber,), (early.event, late.event), explain)
        stack.append(late)


def _explain_twice(name: str, first: Delivery, again: Delivery) -> str:
    return (
        f"{name} delivered {first.event} twice "
        f"(its {ordinal(first.position)} and its {ordinal(again.position)})"
    )


def _explain_order(name: str, early: Delivery, late: Delivery) -> str:
    return (
        f"{name} delivered {early.event} (its {ordinal(early.position)}) before {late.event} "
        f"(its {ordinal(late.position)}), but they are numbers {early.publisher_seq} and "
        f"{late.publisher_seq} of {late.publisher} on {late.topic}"
    )

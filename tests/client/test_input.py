"""Invalid arguments are refused with a reason; valid ones are copied."""

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.transports.suite import take

import ensue


def test_headers_are_copied_and_read_only() -> None:
    async def main() -> None:
        async with (
            ensue.connect("memory://") as bus,
            bus.subscribe("a") as one,
            bus.subscribe("a") as other,
        ):
            headers = {"k": "v"}
            await bus.publish("a", b"", headers=headers)
            headers["k"] = "changed"
            (seen,) = await take(one, 1)
            with pytest.raises(TypeError):
                seen.headers["mine"] = "too"  # type: ignore[index]
            (seen_too,) = await take(other, 1)
            assert seen.headers == seen_too.headers == {"k": "v"}

    asyncio.run(main())


@pytest.mark.parametrize(
    "payload", [bytearray(b"xyz"), memoryview(b"xyz"), memoryview(b"x-y-z")[::2]]
)
def test_payload_may_be_any_bytes_and_is_copied(
    payload: bytearray | memoryview,
) -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus, bus.subscribe("a") as events:
            await bus.publish("a", payload)
            if isinstance(payload, bytearray):
                payload[0] = 0
            (event,) = await take(events, 1)
            assert event.payload == b"xyz"
            assert type(event.payload) is bytes

    asyncio.run(main())


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"key": "text"}, "key must be bytes or None, got str"),
        ({"headers": [("a", "b")]}, "headers must be a mapping of str to str, got list"),
        ({"headers": {"a": 1}}, "got int in 'a': 1"),
        ({"headers": {1: "a"}}, "got int in 1: 'a'"),
        ({"headers": {"a": "\ud800"}}, "headers must be text that UTF-8 can carry"),
        ({"payload": "text"}, "payload must be bytes, got str: encode it"),
        ({"payload": None}, "payload must be bytes, got None: use b''"),
        ({"payload": bytearray(16 * 1024 * 1024 + 1)}, "at most 16777216 bytes"),
    ],
)
def test_invalid_events_are_refused(given: dict[str, Any], complaint: str) -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus:
            with pytest.raises(ensue.BadInput, match=complaint):
                await bus.publish("a", **{"payload": b"", **given})

    asyncio.run(main())


ORDERS = ["total", ensue.Total, 1, ensue.Order()]


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_value_that_is_no_order_is_refused(order: Any) -> None:
    complaint = (
        r"order must be one of ensue\.Total\(\), ensue\.Causal\(\), "
        r"ensue\.Merged\(epsilon=…, delta=…\), ensue\.Dead"
    )

    async def main() -> None:
        async with ensue.connect("memory://") as bus:
            with pytest.raises(ensue.BadInput, match=complaint):
                bus.subscribe("a", order=order)

    with pytest.raises(ensue.BadInput, match=complaint):
        ensue.connect("memory://", order=order)
    asyncio.run(main())


@pytest.mark.parametrize("url", [None, 7, b"memory://"])
def test_url_must_be_text(url: Any) -> None:
    with pytest.raises(ensue.BadInput, match="a URL must be a str such as 'memory://'"):
        ensue.connect(url)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"pending_max": 0}, "pending_max must be at least 1, got 0"),
        ({"pending_max": 1.5}, "pending_max must be a whole number, got 1.5"),
        ({"pending_max": True}, "pending_max must be a whole number, got True"),
        ({"pending_max": "9"}, "pending_max must be a whole number, got '9'"),
        ({"acknowledge": "manually"}, "must be 'auto' or 'manual', got 'manually'"),
        ({"acknowledge": ["auto"]}, "must be 'auto' or 'manual'"),
    ],
)
def test_invalid_subscriptions_are_refused(given: dict[str, Any], complaint: str) -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus:
            with pytest.raises(ensue.BadInput, match=complaint):
                bus.subscribe("a", **given)

    asyncio.run(main())


def test_trace_must_be_a_path() -> None:
    async def main() -> None:
        trace: Any = 7
        with pytest.raises(ensue.BadInput, match="trace must be a path, got int"):
            await ensue.connect("memory://", trace=trace).__aenter__()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("total", r"got 'total': write ensue\.Total\(\)$"),
        ("totl", r"or None for no order, got 'totl'$"),
        (ensue.Total, r"got the class Total: write ensue\.Total\(\)$"),
        (ensue.Deadline, r"got the class Deadline: write ensue\.Deadline\(ms=…\)$"),
        (int, r"got the class int$"),
    ],
)
def test_error_shows_how_to_write_the_order(given: Any, said: str) -> None:
    with pytest.raises(ensue.BadInput, match=said):
        ensue.connect("memory://", order=given)


def plain(given: object):  # type: ignore[no-untyped-def]  # noqa: ANN201
    raise AssertionError(f"called with {given}")


def says_none(given: object) -> None:
    raise AssertionError(f"called with {given}")


class Plain:
    def __call__(self, given: object) -> None:
        raise AssertionError(f"called with {given}")

    async def other(self, given: object) -> None: ...


class Async:
    async def __call__(self, given: object) -> None: ...


async def handle(given: object, more: int = 0) -> None: ...


@functools.wraps(handle)
def decorated(*given: Any) -> Any:
    return handle(*given)


def passes_on(given: object) -> Awaitable[None]:
    return handle(given)


TAKERS: list[Callable[[ensue.Bus, ensue.Subscription, Any], Awaitable[object]]] = [
    lambda bus, _events, given: bus.on_invitation(given),
    lambda bus, _events, given: bus.on_subscription(given),
    lambda _bus, events, given: events.run(given),
    lambda _bus, events, given: events.run(handle, on_failure=ensue.Park(to=given)),
]


@pytest.mark.parametrize("take", TAKERS)
def test_handler_that_is_not_async_is_refused_before_it_is_called(
    take: Callable[[ensue.Bus, ensue.Subscription, Any], Awaitable[object]],
) -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus, bus.subscribe("a") as events:
            await bus.publish("a", b"1")
            with pytest.raises(ensue.BadInput, match=r"must be an async function of .*, got 3"):
                await take(bus, events, 3)
            for given, name in (
                (plain, "plain"),
                (says_none, "says_none"),
                (Plain(), "Plain"),
                (functools.partial(plain), "plain"),
            ):
                with pytest.raises(ensue.BadInput, match=f"and {name} is not: define it"):
                    await take(bus, events, given)
            events.close()
            for good in (
                handle,
                decorated,
                passes_on,
                Async(),
                Plain().other,
                functools.partial(handle, more=1),
                lambda given: handle(given, 1),
            ):
                await take(bus, events, good)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("topic", "wildcard"),
    [
        ("orders.*", "*"),
        ("orders.>", ">"),
        ("*.created", "*"),
        ("eu.*.orders", "*"),
        ("orders/#", "#"),
        ("orders/+/created", "+"),
        ("orders.**", "**"),
        ("*", "*"),
        ("#", "#"),
    ],
)
def test_wildcards_are_refused_and_not_taken_literally(topic: str, wildcard: str) -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus, bus.subscribe("orders") as events:
            why = re.escape(f"{topic!r} has the wildcard {wildcard!r}, which topics can't have")
            with pytest.raises(ensue.BadInput, match=why):
                bus.subscribe("orders", topic)
            with pytest.raises(ensue.BadInput, match=why):
                await events.subscribe(topic)
            with pytest.raises(ensue.BadInput, match=why):
                await bus.publish(topic, b"")
            await events.unsubscribe(topic)  # What an earlier version let in can be left.

    asyncio.run(main())


@pytest.mark.parametrize("topic", ["C#", "a*b", "x+y", "a->b", "orders.2*", "#1", "a.+1"])
def test_wildcard_characters_within_a_level_are_accepted(topic: str) -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus, bus.subscribe(topic) as events:
            await bus.publish(topic, b"1")
            (event,) = await take(events, 1)
            assert event.topic == topic

    asyncio.run(main())

import asyncio
from typing import Any

import pytest
from tests.transports.suite import take

import ensue


def test_generated_name_can_not_be_claimed() -> None:
    async def main() -> None:
        async with ensue.connect("memory://h", name="keeper") as keeper:
            async with ensue.connect("memory://h") as first:
                await first.publish("a", b"1")
            with pytest.raises(ensue.BadInput, match="marks generated names"):
                ensue.connect("memory://h", name=first.name)
            # The former form of generated names is an ordinary name.
            async with (
                ensue.connect("memory://h", name="client-1") as again,
                keeper.subscribe("a") as events,
            ):
                async with asyncio.timeout(10):
                    await again.publish("a", b"2")
                (event,) = await take(events, 1)
                assert event.id == "client-1/a/1"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (7, "a client's name must be a str, got int"),
        ("", "a client's name must have 1 to 255 bytes; the empty one"),
        ("é" * 128, "must have 1 to 255 bytes; .* has 256"),
        ("a/b", "must not contain '/'.*rename 'a/b'"),
        ("a~1", "must not contain '~'.*rename 'a~1'"),
        ("\ud800", "an unpaired surrogate"),
    ],
)
def test_invalid_client_name_is_refused_when_connecting(name: Any, complaint: str) -> None:
    with pytest.raises(ensue.BadInput, match=complaint):
        ensue.connect("memory://", name=name)


@pytest.mark.parametrize("name", ["ens", "node-1", "node-2"])
def test_names_of_the_hub_are_refused(name: str) -> None:
    async def main() -> None:
        with pytest.raises(ensue.BadInput, match=f"'{name}' belongs to the hub itself"):
            await ensue.connect("memory://?nodes=2", name=name).__aenter__()

    asyncio.run(main())


def test_name_of_a_bigger_chain_is_free_on_a_smaller_one() -> None:
    async def main() -> None:
        async with ensue.connect("memory://", name="node-2") as bus:
            event = await bus.publish("a", b"")
            assert event.publisher == "node-2"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (7, "a subscription's name must be a str, got int"),
        ("", "a subscription's name must have 1 to 255"),
    ],
)
def test_invalid_subscription_name_is_refused(name: Any, complaint: str) -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus:
            with pytest.raises(ensue.BadInput, match=complaint):
                bus.subscribe("a", name=name)

    asyncio.run(main())


def test_topics_that_are_not_utf8_are_refused() -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus:
            with pytest.raises(ensue.BadInput, match="a topic must be text that UTF-8 can carry"):
                await bus.publish("\ud800", b"")
            with pytest.raises(ensue.BadInput, match="a topic must be text that UTF-8 can carry"):
                bus.subscribe("a", "\ud800")

    asyncio.run(main())

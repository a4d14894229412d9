"""A chat room over a network that delays every message by a different time.

Without order, a listener receives answers before their questions. With causal order it never does,
and there is no server that orders anything. Run it: python examples/chat.py
"""

import asyncio

import ensue

QUESTIONS = 20
PEOPLE = ("bob", "carol", "dave")


async def talk(order: ensue.Causal | None) -> list[str]:
    """Return the messages that a listener received, in order."""
    url = "memory://room?jitter_ms=60&seed=7"
    async with (
        ensue.connect(url, order=order, name="ada") as ada,
        ensue.connect(url, order=order, name="bob") as bob,
        ensue.connect(url, order=order, name="carol") as carol,
        ensue.connect(url, order=order, name="dave") as dave,
        ensue.connect(url, order=order, name="listener") as listener,
        listener.subscribe("room") as received,
    ):

        async def answer(bus: ensue.Bus) -> None:
            async with bus.subscribe("room") as events:
                ready.release()
                answered = 0
                async for event in events:
                    if event.publisher == "ada":
                        text = f"{bus.name}: re {event.payload.decode()}"
                        await bus.publish("room", text.encode(), receipt=False)
                        answered += 1
                    if answered == QUESTIONS:
                        await bus.flush()
                        return

        ready = asyncio.Semaphore(0)
        answering = [asyncio.create_task(answer(bus)) for bus in (bob, carol, dave)]
        for _ in answering:
            await ready.acquire()
        for number in range(1, QUESTIONS + 1):
            await ada.publish("room", f"question {number}".encode(), receipt=False)
        await asyncio.gather(*answering)
        count = QUESTIONS * (1 + len(PEOPLE))
        return [(await anext(received)).payload.decode() for _ in range(count)]


def too_early(received: list[str]) -> list[str]:
    """Return the answers that arrived before their question."""
    return [
        text
        for index, text in enumerate(received)
        if ": re " in text and text.partition(": re ")[2] not in received[:index]
    ]


def main() -> None:
    """Chat without order and in causal order."""
    for label, order in (("without order", None), ("in causal order", ensue.Causal())):
        early = too_early(asyncio.run(talk(order)))
        first = f", first {early[0]!r}" if early else ""
        print(f"{label}: {len(early)} answers before their question{first}")


if __name__ == "__main__":
    main()

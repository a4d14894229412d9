"""A room that watches one film together, over a network that delays each command by another time and loses some.

Ada seeks one scene after the other and plays it; whenever Bob sees her play, he pauses. Everybody's player obeys whatever comes. Without order a play or a pause comes before
what it is for, and a seek that took too long moves the film back. With a deadline commands come in order and on time, or not at all.
Run it: python examples/watch_together.py
"""

import asyncio
from contextlib import AsyncExitStack

import ensue

SCENES = 25
EVERY_S = 0.02
USEFUL_MS = 150.0
GUESTS = ("carol", "dave", "erin")
VERBS = ("seek", "play", "pause")
"""What happens to a scene, each because of the one before."""
URL = "memory://room?jitter_ms=180&loss=0.05&seed=3"


class Player:
    """What one guest's player did."""

    def __init__(self) -> None:
        self.last: dict[int, int] = {}
        """By scene: the last of the verbs that was obeyed."""
        self.scene = 0
        self.obeyed = 0
        self.too_early = 0
        """Commands that were undone by one that they are the answer to: a pause by its play, a play by its seek."""
        self.moved_back = 0
        """Scenes that Ada went to before the one she had gone to."""

    def obey(self, command: str) -> None:
        """Do what somebody wants."""
        self.obeyed += 1
        verb, _, number = command.partition(" ")
        scene, step = int(number), VERBS.index(verb)
        self.too_early += step < self.last.get(scene, step)
        self.last[scene] = step
        if verb != "pause":
            self.moved_back += scene < self.scene
            self.scene = scene


async def watch(order: ensue.Deadline | None) -> list[Player]:
    """Return what the guests' players did."""
    async with (
        ensue.connect(URL, order=order, name="ada") as ada,
        ensue.connect(URL, order=order, name="bob") as bob,
        AsyncExitStack() as stack,
    ):
        players = [Player() for _ in GUESTS]
        ready = asyncio.Semaphore(0)

        async def obey(player: Player, name: str) -> None:
            guest = await stack.enter_async_context(ensue.connect(URL, order=order, name=name))
            async with guest.subscribe("film") as commands:
                ready.release()
                async for command in commands:
                    player.obey(command.payload.decode())

        async def pause() -> None:
            async with bob.subscribe("film") as commands:
                ready.release()
                async for command in commands:
                    verb, _, scene = command.payload.decode().partition(" ")
                    if verb == "play":
                        await bob.publish("film", f"pause {scene}".encode(), receipt=False)

        tasks = [asyncio.create_task(pause())]
        tasks += [
            asyncio.create_task(obey(player, name))
            for player, name in zip(players, GUESTS, strict=True)
        ]
        for _ in tasks:
            await ready.acquire()
        for scene in range(1, SCENES + 1):
            for verb in ("seek", "play"):
                await ada.publish("film", f"{verb} {scene}".encode(), receipt=False)
            await asyncio.sleep(EVERY_S)
        await asyncio.sleep(0.5)  # By then everything has come, or never will.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return players


def main() -> None:
    """Watch twice."""
    for label, order in (
        ("without order", None),
        (f"with a deadline of {USEFUL_MS:g} ms", ensue.Deadline(ms=USEFUL_MS)),
    ):
        players = asyncio.run(watch(order))
        obeyed = sum(player.obeyed for player in players)
        early = sum(player.too_early for player in players)
        back = sum(player.moved_back for player in players)
        print(
            f"{label}: {obeyed} of {len(VERBS) * SCENES * len(players)} commands obeyed, {early} undone by "
            f"what they came after, {back} times the film went back"
        )


if __name__ == "__main__":
    main()

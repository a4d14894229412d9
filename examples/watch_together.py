"""A room that watches one film together, over a network that delays each command by another time and loses some.

Ada plays and seeks; whenever Bob sees her play a scene, he pauses it a moment later. Everybody's player obeys whatever comes. Without order a pause comes before
the play that it is for, and a command that took too long moves the film back. With a deadline commands come in order and on time, or not at all.
Run it: python examples/watch_together.py
"""

import asyncio
from contextlib import AsyncExitStack

import ensue

SCENES = 25
EVERY_S = 0.02
USEFUL_MS = 150.0
GUESTS = ("carol", "dave", "erin")
URL = "memory://room?jitter_ms=180&loss=0.05&seed=3"


class Player:
    """What one guest's player did."""

    def __init__(self) -> None:
        self.paused: set[str] = set()
        self.scene = 0
        self.obeyed = 0
        self.too_early = 0
        """Pauses that came before the play they were for, which then undid them."""
        self.moved_back = 0
        """Scenes that were played after a later one."""

    def obey(self, command: str) -> None:
        """Do what somebody wants."""
        self.obeyed += 1
        verb, _, scene = command.partition(" ")
        if verb == "play":
            self.moved_back += int(scene) < self.scene
            self.scene = int(scene)
            self.too_early += scene in self.paused
        else:
            self.paused.add(scene)


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
            await ada.publish("film", f"play {scene}".encode(), receipt=False)
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
            f"{label}: {obeyed} of {2 * SCENES * len(players)} commands obeyed, {early} pauses came before "
            f"their play, {back} times the film went back"
        )


if __name__ == "__main__":
    main()

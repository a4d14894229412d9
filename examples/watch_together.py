"""Guests watch a film together over a network that delays and loses commands.

Ada seeks one scene after the other and plays it; Bob pauses each scene that she plays. Every player
applies the commands that arrive. Without order, a play or pause arrives before the command that
caused it, and a slow seek moves the film back. With a deadline, commands arrive in order and on
time, or not at all. Run it: python examples/watch_together.py
"""

import asyncio
from contextlib import AsyncExitStack

import ensue

SCENES = 25
EVERY_S = 0.02
USEFUL_MS = 150.0
GUESTS = ("carol", "dave", "erin")
VERBS = ("seek", "play", "pause")
"""The commands for a scene; each is caused by the previous one."""
URL = "memory://room?jitter_ms=180&loss=0.05&seed=3"


class Player:
    """The player of one guest."""

    def __init__(self) -> None:
        self.last: dict[int, int] = {}
        """By scene: the index of the last verb applied."""
        self.scene = 0
        self.applied = 0
        self.too_early = 0
        """Commands that arrived after one that they caused: a play after its pause, say."""
        self.moved_back = 0
        """Commands that moved the film to an earlier scene."""

    def apply(self, command: str) -> None:
        """Apply a command."""
        self.applied += 1
        verb, _, number = command.partition(" ")
        scene, step = int(number), VERBS.index(verb)
        self.too_early += step < self.last.get(scene, step)
        self.last[scene] = step
        if verb != "pause":
            self.moved_back += scene < self.scene
            self.scene = scene


async def watch(order: ensue.Deadline | None) -> list[Player]:
    """Return the players of the guests after the film."""
    async with (
        ensue.connect(URL, order=order, name="ada") as ada,
        ensue.connect(URL, order=order, name="bob") as bob,
        AsyncExitStack() as stack,
    ):
        players = [Player() for _ in GUESTS]
        ready = asyncio.Semaphore(0)

        async def follow(player: Player, name: str) -> None:
            guest = await stack.enter_async_context(ensue.connect(URL, order=order, name=name))
            async with guest.subscribe("film") as commands:
                ready.release()
                async for command in commands:
                    player.apply(command.payload.decode())

        async def pause() -> None:
            async with bob.subscribe("film") as commands:
                ready.release()
                async for command in commands:
                    verb, _, scene = command.payload.decode().partition(" ")
                    if verb == "play":
                        await bob.publish("film", f"pause {scene}".encode(), receipt=False)

        tasks = [asyncio.create_task(pause())]
        tasks += [
            asyncio.create_task(follow(player, name))
            for player, name in zip(players, GUESTS, strict=True)
        ]
        for _ in tasks:
            await ready.acquire()
        for scene in range(1, SCENES + 1):
            for verb in ("seek", "play"):
                await ada.publish("film", f"{verb} {scene}".encode(), receipt=False)
            await asyncio.sleep(EVERY_S)
        await asyncio.sleep(0.5)  # Longer than any delay: what has not arrived is lost.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return players


def main() -> None:
    """Watch without order and with a deadline."""
    for label, order in (
        ("without order", None),
        (f"with a deadline of {USEFUL_MS:g} ms", ensue.Deadline(ms=USEFUL_MS)),
    ):
        players = asyncio.run(watch(order))
        applied = sum(player.applied for player in players)
        early = sum(player.too_early for player in players)
        back = sum(player.moved_back for player in players)
        print(
            f"{label}: {applied} of {len(VERBS) * SCENES * len(players)} commands applied, "
            f"{early} arrived after their effect, {back} moved the film back"
        )


if __name__ == "__main__":
    main()

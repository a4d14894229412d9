"""Topics move between three server processes, one of which is killed at each step."""

import asyncio
import contextlib
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

from tests.brokers.servers import spare_port
from tests.server.helpers import DEADLINE_S, until, within
from tests.server.test_command import running

import ensue
from ensue.core.errors import EventVoided, TransportError
from ensue.runtime.topic_move import move_topic

KILL = """
import os, pathlib
from ensue.protocols.total.move_coordinator import MoveCoordinator
from ensue.protocols.total.sequencer import Sequencer

def kill_at(method, step):
    def run(self, frame, source, now_ns):
        state = self.state if isinstance(self, Sequencer) else self._state
        plan = pathlib.Path({folder!r}) / ("kill-" + state.name)
        if plan.exists() and plan.read_text() == step(frame):
            plan.unlink()
            os.kill(os.getpid(), 9)
        method(self, frame, source, now_ns)
    return run

Sequencer._on_move = kill_at(Sequencer._on_move, lambda frame: str(frame.phase))
Sequencer._on_move_step = kill_at(Sequencer._on_move_step, lambda frame: f"after {{frame.phase}}")
MoveCoordinator.on_request = kill_at(MoveCoordinator.on_request, lambda frame: "request")
"""
STEPS = (
    ("s0", "request"),
    ("s1", "1"),
    ("s2", "1"),
    ("s1", "2"),
    ("s0", "2"),
    ("s1", "3"),
    ("s2", "3"),
    ("s1", "4"),
    ("s0", "4"),
    ("s1", "5"),
    ("s2", "5"),
    ("s0", "after 5"),
)
"""Server and step: a request, the phase of a `Move` that it gets, or that of a `MoveStep`."""
TOPICS = [f"topic-{number}" for number in range(len(STEPS))]


class Processes:
    """The servers of a chain, each in a process."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.urls: dict[str, str] = {}
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self._stack = stack
        names = [f"s{number}" for number in range(3)]
        lines = []
        for name in names:
            lines += ["[[servers]]", f'name = "{name}"', f'listen = "127.0.0.1:{spare_port()}"']
            lines += [f'data = "{folder / name}"', f"topics = {TOPICS if name == 's1' else []}", ""]
        (folder / "chain.toml").write_text("\n".join(lines))
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        words = ("--config", self.folder / "chain.toml", "--name", name)
        before = KILL.format(folder=str(self.folder))
        process, ready = self._stack.enter_context(running(*words, before=before))
        self.processes[name] = process
        self.urls[name] = ready["url"]


async def moved(url: str, topic: str, to: str) -> None:
    """Move a topic, also if the first server is down for a while."""
    while True:
        try:
            await move_topic(url, topic, to, within_s=60)
        except TransportError:
            await asyncio.sleep(0.01)
        else:
            return


def test_nothing_is_lost_or_repeated_whichever_step_a_server_is_killed_at(tmp_path: Path) -> None:
    async def main(chain: Processes) -> None:
        published: list[bytes] = []
        seen: tuple[list[bytes], list[bytes]] = ([], [])
        done = asyncio.Event()

        async def publish(bus: ensue.Bus) -> None:
            number = 0
            while not done.is_set():
                for topic in TOPICS[number % 3 :: 3]:
                    payload = b"%d" % number
                    with contextlib.suppress(EventVoided):  # No subscriber gets it.
                        await bus.publish(topic, payload)
                        published.append(payload)
                    number += 1

        async def follow(events: "ensue.Subscription", payloads: list[bytes]) -> None:
            while True:
                payloads.append((await anext(events)).payload)

        async with (
            ensue.connect(chain.urls["s0"]) as bus,
            ensue.connect(chain.urls["s2"]) as other,
            bus.subscribe(*TOPICS) as first,
            other.subscribe(*TOPICS) as second,
        ):
            following = [
                asyncio.create_task(follow(first, seen[0])),
                asyncio.create_task(follow(second, seen[1])),
            ]
            publishing = asyncio.create_task(publish(bus))
            for number, (name, step) in enumerate(STEPS):
                (tmp_path / f"kill-{name}").write_text(step)
                url = chain.urls["s1" if name == "s2" else "s2"]
                moving = asyncio.create_task(moved(url, TOPICS[number], f"s{number % 2 * 2}"))
                process = chain.processes[name]
                await asyncio.to_thread(process.wait, DEADLINE_S)
                assert process.returncode == -signal.SIGKILL
                await asyncio.to_thread(chain.start, name)
                await within(moving)
            done.set()
            await within(publishing)
            await until(lambda: all(len(each) >= len(published) for each in seen), "all arrive")
            for task in following:
                task.cancel()
        assert seen[0] == seen[1]
        assert sorted(seen[0], key=int) == published

    with ExitStack() as stack:
        asyncio.run(main(Processes(tmp_path, stack)))

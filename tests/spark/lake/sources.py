"""Sources of lakes: runs of the simulator, and hand-made logs and traces."""

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.checkers.helpers import Script

from ensue.core import trace
from ensue.core.trace import Row
from ensue.simulation import run
from ensue.simulation.scenario_file import reader
from ensue.store import LogSink, LogWriter

SCENARIO = """
duration = "400ms"
order = "total"
topics = ["orders", "prices"]

[[ens]]
name = "ens"
count = 2

[[publishers]]
name = "exchange"
rates = [{ topics = ["orders", "prices"], per_second = 100 }]

[[subscribers]]
name = "desk"
count = 2
topics = ["orders", "prices"]
"""
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def record(place: Path) -> None:
    """Record a simulated run."""
    scenario = place.with_suffix(".toml")
    scenario.write_text(SCENARIO)
    played = run.play(reader.load(scenario), 3, encode=True, keep_events=True)
    sink = LogSink(place / "log")
    for slot, event in played.events:
        sink.accept(event, slot)
    sink.close()
    trace.write(played.rows, place / "trace")


def stamped(count: int, *, counts: dict[str, int], topics: Sequence[str] = ("a", "b")) -> list[Any]:
    """Return further rows of a log, alternating between topics."""
    found = []
    for _ in range(count):
        topic = topics[sum(counts.values()) % len(topics)]
        counts[topic] = counts.get(topic, 0) + 1
        found.append(
            {
                "topic": topic,
                "value": f"{topic} {counts[topic]}".encode(),
                "publisher": "web",
                "publisher_seq": counts[topic],
                "published_at": START + dt.timedelta(seconds=sum(counts.values())),
                "stamp": dict(counts),
            }
        )
    return found


def grow_log(place: Path, rows: Sequence[dict[str, Any]]) -> None:
    with LogWriter(place) as log:
        log.append(rows)


def agreeing(name: str, count: int = 3) -> list[Row]:
    """Return a run in which two subscribers get the same events in the same order."""
    script = Script(run=name).subscribe("s1", "x").subscribe("s2", "x")
    for number in range(count):
        script.publish("p", f"e{number}").deliver("s1", f"e{number}").deliver("s2", f"e{number}")
    return script.rows


def disagreeing(name: str) -> list[Row]:
    """Return a run in which two subscribers disagree on the order."""
    script = Script(run=name).subscribe("s1", "x", "y").subscribe("s2", "x", "y")
    script.publish("p", "a", "x").publish("q", "b", "y")
    return script.deliver("s1", "a", "b").deliver("s2", "b", "a").rows


def add_trace(place: Path, name: str, rows: Sequence[Row]) -> None:
    trace.write(rows, place, name=name, append=True)

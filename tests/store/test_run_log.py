"""The log of a run: slot order, whole stamps, and no effect on the run if writing fails."""

import asyncio
import logging
import random
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.store.helpers import everything, numbers

import ensue
from ensue.core import trace
from ensue.core.errors import BadInput, ConfigurationError
from ensue.core.event import Event, Stamp
from ensue.simulation import run
from ensue.simulation.scenario_file import reader
from ensue.store import LogSink, LogWriter, run_log

ROOT = Path(__file__).parents[2]


def event(topic: str, slot: int, *, void: bool = False, **entries: int) -> Event:
    """Return an event whose stamp has only changed entries, unless `whole`."""
    whole = bool(entries.pop("whole", 0))
    stamp = Stamp({topic: slot, **entries}, whole)
    return Event(
        topic=topic, payload=b"x", publisher="p", publisher_seq=slot, stamp=stamp, void=void
    )


def test_events_in_any_order_are_written_in_slot_order_with_whole_stamps(tmp_path: Path) -> None:
    events = [
        event("a", 1, whole=1),
        event("a", 2, b=3),
        event("a", 3),
        event("a", 4, c=1, void=True),
        event("a", 5, b=4),
        event("a", 6, whole=1, b=5),
    ]
    random.Random(1).shuffle(events)
    sink = LogSink(tmp_path / "log")
    for each in [*events, *events]:
        sink.accept(each, each.slot or 0)
    sink.close()
    found = everything(tmp_path / "log")["a"]
    assert [each["offset"] for each in found] == [0, 1, 2, 3, 4, 5]
    assert [dict(each["stamp"]) for each in found] == [
        {"a": 1},
        {"a": 2, "b": 3},
        {"a": 3, "b": 3},
        {"a": 4, "b": 3, "c": 1},
        {"a": 5, "b": 4, "c": 1},
        {"a": 6, "b": 5},
    ]
    assert [each["value"] for each in found] == [b"x", b"x", b"x", None, b"x", b"x"]
    assert sink.dropped == 0


def test_events_after_a_gap_keep_their_offsets(tmp_path: Path) -> None:
    sink = LogSink(tmp_path / "log")
    for slot in (1, 5, 3):
        sink.accept(event("a", slot), slot)
    sink.close()
    assert [each["offset"] for each in everything(tmp_path / "log")["a"]] == [0, 2, 4]


def test_waiting_events_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_log, "WAITING_MAX", 3)
    sink = LogSink(tmp_path / "log")
    for slot in (2, 3, 4, 5, 1, 6):
        sink.accept(event("a", slot), slot)
    sink.close()
    assert numbers(tmp_path / "log") == {"a": [2, 3, 4, 5, 6]}
    assert sink.dropped == 1


def test_rows_are_committed_by_count_and_by_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_log, "ROWS_MAX", 2)
    sink = LogSink(tmp_path / "log", flush_s=1000)
    for slot in range(1, 4):
        sink.accept(event("a", slot), slot)
    assert numbers(tmp_path / "log") == {"a": [1, 2]}
    sink.close()
    sink = LogSink(tmp_path / "other", flush_s=0)
    sink.accept(event("a", 1), 1)
    assert numbers(tmp_path / "other") == {"a": [1]}
    sink.close()


def test_failing_disk_loses_rows_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> bool:
        raise OSError(28, "No space left on device")

    sink = LogSink(tmp_path / "log", flush_s=0)
    sink.accept(event("a", 1), 1)
    monkeypatch.setattr(LogWriter, "append", full)
    with caplog.at_level(logging.WARNING, "ensue"):
        for slot in (2, 3, 4):
            sink.accept(event("a", slot), slot)
        sink.close()
    assert sink.dropped == 3
    assert "No space left on device" in caplog.text
    assert "dropped=3" in caplog.text
    monkeypatch.undo()
    assert numbers(tmp_path / "log") == {"a": [1]}


async def shop(url: str, record: Path, order: ensue.Order | None) -> list[ensue.Event]:
    connected = ensue.connect(url, order=order, record=str(record))
    async with connected as bus, bus.subscribe("a", "b"), bus.subscribe("b", "c"):
        jobs = [
            bus.publish("abc"[number % 3], bytes([number]), key=b"k", headers={"n": "1"})
            for number in range(60)
        ]
        return list(await asyncio.gather(*jobs))


def test_recorded_run_has_its_trace_and_events(tmp_path: Path) -> None:
    published = asyncio.run(shop("memory://?nodes=3&jitter_ms=3", tmp_path / "r", ensue.Total()))
    found = everything(tmp_path / "r")
    for topic in "abc":
        by_slot = {each.slot: each for each in published if each.topic == topic}
        assert [each["offset"] for each in found[topic]] == list(range(20))
        for each in found[topic]:
            mine = by_slot[each["offset"] + 1]
            assert (each["event"], each["value"]) == (mine.id, mine.payload)
            assert (each["key"], dict(each["headers"])) == (b"k", {"n": "1"})
            assert dict(each["stamp"])[topic] == each["offset"] + 1
    # One order over the topics of a subscription: 1, 2, 3, … without a gap.
    sums = [sum(dict(e["stamp"]).get(u, 0) for u in "ab") for t in "ab" for e in found[t]]
    assert sorted(sums) == list(range(1, 41))
    actions = {row.action for row in trace.read(tmp_path / "r")}
    assert actions >= {"submitted", "published", "node_delivered"}
    assert "delivered" not in actions, "the application reads nothing"


def test_without_an_order_events_are_logged_as_accepted(tmp_path: Path) -> None:
    asyncio.run(shop("memory://", tmp_path / "r", None))
    for found in everything(tmp_path / "r").values():
        assert [each["offset"] for each in found] == list(range(20))
        assert [each["stamp"] for each in found] == [None] * 20


def test_run_is_recorded_to_an_empty_directory(tmp_path: Path) -> None:
    async def enter(**options: str) -> None:
        async with ensue.connect("memory://", **options):  # type: ignore[arg-type]
            pass

    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("")
    offered = rf"not empty.* such as {re.escape(str(tmp_path))}/\d{{4}}-\d\d-\d\dT.*record=True"
    with pytest.raises(BadInput, match=offered):
        asyncio.run(enter(record=str(tmp_path / "used")))
    with pytest.raises(ConfigurationError, match="not both"):
        asyncio.run(enter(record=str(tmp_path / "x"), trace=str(tmp_path / "y")))


def test_true_records_each_run_to_a_new_dated_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Two runs within one second.
    clock = SimpleNamespace(strftime=lambda _: "2026-05-04T12-30-00")
    monkeypatch.setattr("ensue.runtime.hub_memory.time", clock)

    async def main() -> Path | None:
        async with ensue.connect("memory://", record=True) as bus:
            await bus.publish("a", b"1")
            return bus.recording

    places = [asyncio.run(main()) for _ in range(2)]
    assert places == [Path("runs/2026-05-04T12-30-00"), Path("runs/2026-05-04T12-30-00-2")]
    for place in places:
        assert place is not None
        assert len(everything(tmp_path / place)["a"]) == 1


def test_false_records_nothing_and_other_values_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def main(record: object) -> None:
        async with ensue.connect("memory://", record=record) as bus:  # type: ignore[arg-type]
            assert bus.recording is None

    asyncio.run(main(False))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(BadInput, match="record must be a path or True, got 7"):
        asyncio.run(main(7))


def test_simulated_run_can_be_recorded(tmp_path: Path) -> None:
    scenario = reader.load(ROOT / "examples" / "scenarios" / "two-desks.toml")
    outcome = run.play(scenario, 7, keep_events=True)
    assert run.play(scenario, 7).events == []
    sink = LogSink(tmp_path / "log")
    for slot, each in outcome.events:
        sink.accept(each, slot)
    sink.close()
    published = {each.event for each in outcome.rows if each.action == "published"}
    found = [each for rows in everything(tmp_path / "log").values() for each in rows]
    assert {each["event"] for each in found} == published

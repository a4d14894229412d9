"""Retention: a topic begins where it has no gap, and a crash during a drop loses nothing."""

import asyncio
from pathlib import Path

import pytest
from tests.journal.model import copied
from tests.server.helpers import read, serving, within

import ensue
from ensue.core.event import Event, Stamp
from ensue.journal import Journal
from ensue.protocols.interface import Persist, Send
from ensue.protocols.topic_log.frames import (
    Attached,
    AttachRequest,
    Forward,
    Notify,
    Put,
    TopicLogConfig,
)
from ensue.protocols.topic_log.log import TopicLog
from ensue.server import station_builder

CONFIG = TopicLogConfig(gives_places=True, cached_max=1)


class Kept:
    """The log of a station on a journal, with one event per segment."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.open()

    def open(self) -> None:
        self.journal = Journal(self.directory, segment_bytes=1)
        records = self.journal.records
        self.log = TopicLog(name="ens", config=CONFIG, records=records, kept=self.journal)

    def put(self, slot: int) -> None:
        event = Event(
            topic="t", payload=b"x", publisher="p", publisher_seq=slot, stamp=Stamp({"t": slot})
        )
        self.log.receive(Put(event=event), source="p", now_ns=0)
        self.settle()

    def settle(self) -> list[Send]:
        effects = self.log.take_effects()
        self.journal.append([each for each in effects if isinstance(each, Persist)])
        self.journal.write()
        return [each for each in effects if isinstance(each, Send)]

    def drop(self, count: int) -> None:
        """Drop the oldest segments."""
        self.journal.sync()
        sizes = [each.size for each in self.journal._segments.all]
        old = self.journal.find_old(bytes_max=sum(sizes[count:]), age_s=None, now_s=0)
        assert old is not None
        for topic, first in old.firsts.items():
            self.log.trim(topic, first)
        self.settle()
        self.journal.drop(old)

    def restart(self) -> None:
        self.journal.close()
        self.open()

    def read(self) -> tuple[int, int]:
        """Return the first slot that a reader sees, and the number of its events."""
        self.log.receive(AttachRequest(topic="t", from_slot=1), source="s", now_ns=0)
        frames = [each.frame for each in self.settle()]
        (answer,) = [each for each in frames if isinstance(each, Attached)]
        assert answer.sent == answer.next
        return answer.first, sum(isinstance(each, Forward | Notify) for each in frames)


@pytest.mark.parametrize("restarted", [False, True])
def test_slots_after_a_late_one_are_reported_as_lost(tmp_path: Path, restarted: bool) -> None:
    kept = Kept(tmp_path / "j")
    for slot in (1, 2, 4, 5, 6, 3, 7, 8):
        kept.put(slot)
    kept.drop(5)
    if restarted:
        kept.restart()
    assert kept.log.bounds() == {"t": (7, 9)}
    assert kept.read() == (7, 2)
    kept.drop(1)  # The slot that was filled late.
    assert kept.log.bounds() == {"t": (7, 9)}
    kept.journal.close()


@pytest.mark.parametrize("restarted", [False, True])
def test_empty_slot_can_be_filled_after_all_before_it_is_dropped(
    tmp_path: Path, restarted: bool
) -> None:
    kept = Kept(tmp_path / "j")
    for slot in (1, 3, 4, 2, 6, 7):
        kept.put(slot)
    kept.drop(4)
    if restarted:
        kept.restart()
    assert kept.log.bounds() == {"t": (5, 8)}
    kept.put(5)
    assert kept.read() == (5, 3)
    kept.journal.close()


def test_remaining_empty_slot_is_known_after_a_restart(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "j")
    for slot in (1, 3, 5):
        kept.put(slot)
    kept.drop(2)
    kept.restart()
    assert kept.log.bounds() == {"t": (4, 6)}
    kept.put(4)
    assert kept.read() == (4, 2)
    kept.journal.close()


@pytest.mark.parametrize("sync_s", [0.0, 60.0])
def test_server_killed_during_a_drop_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync_s: float
) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", sync_s=sync_s) as server:
            async with ensue.connect(server.url) as bus, bus.subscribe("x") as events:
                for number in range(5):
                    await within(bus.publish("x", b"%d" % number))
                await read(events, 5)
            journal, driver = server.journal, server._driver
            assert journal is not None
            assert driver is not None
            assert server.station is not None
            assert server._commit is not None
            journal._create_segment()
            journal.sync()
            old = journal.find_old(bytes_max=0, age_s=None, now_s=0)
            assert old is not None
            assert old.firsts == {"x": 6}
            remove, durable = journal._files.remove, []

            def removing(number: int) -> None:
                remove(number)
                durable.append(journal._durable == journal.batch_count)
                copied(tmp_path / "d", tmp_path / "killed")

            monkeypatch.setattr(journal._files, "remove", removing)
            await within(station_builder.drop(journal, old, driver, server.station, server._commit))
            assert durable == [True]
        async with (
            serving(tmp_path / "killed") as server,
            ensue.connect(server.url) as bus,
            bus.subscribe("x", start="earliest") as events,
        ):
            await within(bus.publish("x", b"new"))
            event = await within(anext(events))
            assert (event.payload, event.event.slot, event.place) == (b"new", 6, 6)

    asyncio.run(main())

"""The behavior of every transport with stations: durability, restarts and lost connections."""

import asyncio
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path

import pytest
from tests.brokers.deadlines import until
from tests.transports.causal_suite import CausalSuite
from tests.transports.clocked_suite import RemoteClockedSuite
from tests.transports.deadline_suite import DeadlineSuite
from tests.transports.many_suite import ManySuite
from tests.transports.noncausal_suite import RemoteNoncausalSuite
from tests.transports.stations import StationThread
from tests.transports.suite import TransportSuite, take

import ensue
from ensue.core.errors import LogDamaged
from ensue.core.lineage import Lineage
from ensue.core.order import order_name
from ensue.runtime.hub_remote import RemoteHub

_names = count(1)


def logs_of(bus: ensue.Bus) -> Mapping[str, Lineage]:
    """Return the logs of stations that a bus knows."""
    hub = bus._hub
    assert isinstance(hub, RemoteHub)
    return hub.logs


def fresh(stem: str) -> str:
    """Return a name that no other test uses."""
    return f"{stem}-{next(_names)}"


class RemoteSuite(
    CausalSuite,
    DeadlineSuite,
    RemoteNoncausalSuite,
    RemoteClockedSuite,
    ManySuite,
    TransportSuite,
):
    """The behavior of transports with stations. Each class has one station."""

    station: StationThread

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _station(
        cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[None]:
        cls.station = cls.make_station(request, tmp_path_factory)
        cls.station.start()
        yield
        cls.station.end()

    @classmethod
    @abstractmethod
    def make_station(
        cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> StationThread:
        """Return the station of this class."""

    def address(self) -> str:
        """Return the URL for clients, with secrets that the station's own URL hides."""
        return self.station.url

    def url(self) -> str:
        return self.address()

    def test_durable_subscription_resumes_after_the_last_acknowledged_event(self) -> None:
        async def main() -> None:
            name, topic = fresh("durable"), fresh("t")
            async with ensue.connect(self.url()) as bus:
                async with bus.subscribe(
                    topic, name=name, durable=True, acknowledge="manual"
                ) as events:
                    for number in range(6):
                        await bus.publish(topic, str(number).encode())
                    got = await take(events, 4)
                    await got[0].ack()
                    await got[1].ack()
                    await got[3].ack()
                await bus.publish(topic, b"6")
                async with bus.subscribe(topic, name=name, durable=True) as events:
                    again = await take(events, 5)
            assert [event.payload for event in again] == [b"2", b"3", b"4", b"5", b"6"]
            assert [event.position for event in again] == [3, 4, 5, 6, 7]

        asyncio.run(main())

    def test_durable_subscription_refuses_to_reopen_without_its_topics(self) -> None:
        async def main() -> None:
            name, *topics = fresh("durable"), fresh("t"), fresh("t"), fresh("t")
            async with ensue.connect(self.url()) as bus:
                with pytest.raises(ensue.BadInput, match="is new: name at least one topic"):
                    await bus.subscribe(name=name, durable=True).__aenter__()
                async with bus.subscribe(*topics[:2], name=name, durable=True):
                    pass
                await bus.publish(topics[0], b"1")
                for others in (topics[:1], topics[2:]):
                    with pytest.raises(ensue.BadInput, match="it would lose its place"):
                        await bus.subscribe(*others, name=name, durable=True).__aenter__()
                async with bus.subscribe(*topics, name=name, durable=True) as events:
                    assert [event.payload for event in await take(events, 1)] == [b"1"]
                await bus.publish(topics[2], b"2")
                async with bus.subscribe(name=name, durable=True) as events:
                    assert [event.payload for event in await take(events, 1)] == [b"2"]
                    await events.unsubscribe(topics[0])
                async with bus.subscribe(*topics[1:], name=name, durable=True) as events:
                    assert sorted(events.topics) == sorted(topics[1:])

        asyncio.run(main())

    def test_later_user_of_a_durable_name_wins(self) -> None:
        async def main() -> None:
            name, topic = fresh("durable"), fresh("t")
            async with (
                ensue.connect(self.url()) as one,
                ensue.connect(self.url()) as other,
                one.subscribe(topic, name=name, durable=True, acknowledge="manual") as first,
            ):
                await one.publish(topic, b"a")
                (event,) = await take(first, 1)
                async with other.subscribe(topic, name=name, durable=True) as second:
                    assert (await take(second, 1))[0].payload == b"a"
                    with pytest.raises(ensue.SubscriptionLost, match="another process"):
                        await asyncio.wait_for(event.ack(), 30)

        asyncio.run(main())

    def test_subscription_can_start_with_the_earliest_event(self) -> None:
        async def main() -> None:
            one, two = fresh("t"), fresh("t")
            async with ensue.connect(self.url()) as bus:
                for number in range(40):
                    await bus.publish((one, two)[number % 2], str(number).encode())
                async with bus.subscribe(one, two, start="earliest") as events:
                    await bus.publish(one, b"40")
                    got = await take(events, 41)
                    assert [int(event.payload) for event in got] == list(range(41))
                    middle = got[20].place
                async with bus.subscribe(one, two, start=middle) as events:
                    got = await take(events, 21)
                    assert [int(event.payload) for event in got] == list(range(20, 41))

        asyncio.run(main())

    @pytest.mark.parametrize(
        "order",
        [ensue.Causal(), ensue.Causal(across_topics=False), ensue.Deadline(ms=5_000)],
        ids=order_name,
    )
    def test_closed_client_leaves_the_registry(
        self, order: ensue.Order, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The next client may have another deadline, and no client waits for the closed one."""

        async def main() -> None:
            for _ in range(3):
                async with ensue.connect(self.url(), order=order) as bus:
                    assert bus.name in self.station.enrolled()
                    topic = fresh("t")
                    async with bus.subscribe(topic, pending_max=1) as full:
                        for _ in range(3):
                            await bus.publish(topic, b"", receipt=False)
                        await until(lambda: full.waiting, "there is no room")
                        await bus.close()
                assert bus.name not in self.station.enrolled()

        asyncio.run(main())
        assert not [each for each in caplog.records if each.levelname == "ERROR"]

    def test_a_restarted_station_loses_nothing(self) -> None:
        async def main() -> None:
            topics = [fresh("t") for _ in range(3)]
            async with (
                ensue.connect(self.url()) as bus,
                ensue.connect(self.url()) as other,
                bus.subscribe(*topics) as events,
                other.subscribe(*topics) as same,
            ):

                async def publish() -> None:
                    for number in range(900):
                        await bus.publish(topics[number % 3], str(number).encode(), receipt=False)
                        if number % 50 == 0:
                            await bus.flush()
                    await bus.flush()

                publishing = asyncio.create_task(publish())
                early = await take(events, 100)
                await asyncio.to_thread(self.station.restart)
                rest = await take(events, 800)
                await publishing
                got = [int(event.payload) for event in (*early, *rest)]
                assert got == list(range(900))
                assert [int(event.payload) for event in await take(same, 900)] == got

        asyncio.run(main())

    def test_client_ends_if_a_station_returns_with_another_log(self, tmp_path: Path) -> None:
        data = self.station.data

        async def main() -> None:
            topic, name = fresh("t"), fresh("durable")
            bus = ensue.connect(self.url())
            await bus.__aenter__()
            idle = ensue.connect(self.url())
            await idle.__aenter__()
            async with (
                bus.subscribe(topic, name=name, durable=True) as durable,
                bus.subscribe(topic) as live,
            ):
                await bus.publish(topic, b"1")
                for events in (durable, live):
                    assert [event.payload for event in await take(events, 1)] == [b"1"]
                await until(lambda: len(logs_of(bus)) == len(logs_of(idle)) == 1, "they know it")
                await asyncio.to_thread(self.station.stop)
                self.station.data = tmp_path / "new"
                await asyncio.to_thread(self.station.start)
                for events in (durable, live):
                    with pytest.raises(ensue.SubscriptionLost, match="has another log") as lost:
                        await asyncio.wait_for(anext(events), 60)
                    # On a broker the state store may be the first to report it.
                    assert lost.value.reason in {"replaced", "forgotten"}
                for each in (bus, idle):
                    await until(lambda bus=each: bus._failure is not None, "it was told")  # type: ignore[misc]
                    with pytest.raises(ensue.LogLost, match="has another log"):
                        await asyncio.wait_for(each.publish(topic, b"2"), 60)
                    await asyncio.wait_for(each.close(), 60)
            async with ensue.connect(self.url()) as bus:
                assert (await asyncio.wait_for(bus.publish(topic, b"3"), 60)).slot == 1

        try:
            asyncio.run(main())
        finally:
            self.station.stop()
            self.station.data = data
            self.station.start()

    def test_station_with_a_damaged_log_notifies_its_clients(self) -> None:
        async def main() -> None:
            topic = fresh("t")
            bus = ensue.connect(self.url())
            await bus.__aenter__()
            async with bus.subscribe(topic) as events:
                await bus.publish(topic, b"1")
                assert [event.payload for event in await take(events, 1)] == [b"1"]
                await until(lambda: len(logs_of(bus)) == 1, "it knows the log")
                damage = LogDamaged("/x/1.log is damaged at byte 3: torn", path="/x/1.log")
                await asyncio.to_thread(self.station.find_damage, damage)
                with pytest.raises(ensue.SubscriptionLost, match=r"log: 1\.log is damaged") as lost:
                    await asyncio.wait_for(anext(events), 60)
                assert lost.value.reason == "damaged"
                with pytest.raises(ensue.LogLost, match=r"log: 1\.log is damaged at byte 3"):
                    await asyncio.wait_for(bus.publish(topic, b"2"), 60)
                await asyncio.wait_for(bus.close(), 60)

        try:
            asyncio.run(main())
        finally:
            self.station.restart()

    def test_merged_and_causal_order_continue_after_a_station_restart(self) -> None:
        """Causal order loses nothing; merged order loses events that were not sent within delta."""
        merged = ensue.Merged(epsilon=0.002, delta=1.0)

        async def main() -> None:
            causal_topic, merged_topic = fresh("t"), fresh("t")
            async with (
                ensue.connect(self.url(), order=ensue.Causal()) as one,
                ensue.connect(self.url(), order=ensue.Causal()) as other,
                ensue.connect(self.url(), order=merged) as stamping,
                other.subscribe(causal_topic) as events,
                stamping.subscribe(merged_topic) as sorted_events,
            ):
                for number in range(20):
                    await one.publish(causal_topic, b"%d" % number)
                await asyncio.to_thread(self.station.stop)
                for number in range(20, 40):
                    await one.publish(causal_topic, b"%d" % number, receipt=False)
                await asyncio.to_thread(self.station.start)
                async with asyncio.timeout(60):
                    await one.flush()
                got = [int(event.payload) for event in await take(events, 40)]
                assert got == list(range(40))
                # The restarted registry numbers new clients from its persisted lists.
                async with ensue.connect(self.url(), order=ensue.Causal()) as late:
                    await late.publish(causal_topic, b"40")
                assert [event.payload for event in await take(events, 1)] == [b"40"]
                async with asyncio.timeout(60):
                    await stamping.publish(merged_topic, b"again")
                assert [each.payload for each in await take(sorted_events, 1)] == [b"again"]

        asyncio.run(main())

    def test_slow_reader_delays_no_other_and_misses_nothing(self) -> None:
        async def main() -> None:
            topic = fresh("t")
            async with (
                ensue.connect(self.url()) as bus,
                ensue.connect(self.url()) as other,
                bus.subscribe(topic) as quick,
                other.subscribe(topic, pending_max=10) as slow,
            ):
                for number in range(2_000):
                    await bus.publish(topic, str(number).encode(), receipt=False)
                await bus.flush()
                got = [int(event.payload) for event in await take(quick, 2_000)]
                assert got == list(range(2_000))
                assert slow.pending <= 10 + 4_096, "what was under way when it paused may come"
                late = [int(event.payload) for event in await take(slow, 2_000)]
                assert late == got

        asyncio.run(main())

    def test_forgotten_subscription_starts_again(self) -> None:
        async def main() -> None:
            name, topic = fresh("durable"), fresh("t")
            async with ensue.connect(self.url()) as bus:
                async with bus.subscribe(topic, name=name, durable=True) as events:
                    await bus.publish(topic, b"a")
                    await take(events, 1)
                    async with asyncio.timeout(30):
                        await events.forget()
                await bus.publish(topic, b"b")
                async with bus.subscribe(topic, name=name, durable=True) as events:
                    await bus.publish(topic, b"c")
                    (event,) = await take(events, 1)
                    assert (event.position, event.payload) == (1, b"c")

        asyncio.run(main())

    def test_largest_payload_is_carried_and_a_larger_one_refused(self) -> None:
        async def main() -> None:
            topic = fresh("t")
            async with ensue.connect(self.url()) as bus, bus.subscribe(topic) as events:
                assert bus._hub is not None
                most = bus._hub.payload_bytes_max
                with pytest.raises(ensue.BadInput, match=f"at most {most} bytes here"):
                    await bus.publish(topic, bytes(most + 1))
                with pytest.raises(ensue.BadInput, match="with key and headers"):
                    await bus.publish(topic, bytes(most), headers={"h": "v"})
                await bus.publish(topic, bytes(most), receipt=False)
                await bus.publish(topic, b"after", receipt=False)
                large, small = await take(events, 2)
                assert len(large.payload) == most
                assert small.payload == b"after"

        asyncio.run(main())

    def test_large_events_can_be_read_from_the_beginning(self) -> None:
        async def main() -> None:
            topic = fresh("t")
            async with ensue.connect(self.url()) as bus:
                assert bus._hub is not None
                most = bus._hub.payload_bytes_max
                sizes = [*[100_000] * 30, min(most, 1_000_000), 1, 100_000]
                for size in sizes:
                    await bus.publish(topic, bytes(size), receipt=False)
                await bus.flush()
                async with bus.subscribe(topic, start="earliest") as events:
                    got = await take(events, len(sizes))
                    assert [len(event.payload) for event in got] == sizes

        asyncio.run(main())

    def test_large_headers_and_keys_are_published(self) -> None:
        async def main() -> None:
            topic = fresh("t")
            async with ensue.connect(self.url()) as bus, bus.subscribe(topic) as events:
                for number in range(200):
                    headers = {"h": "x" * 10_000, "n": str(number)}
                    await bus.publish(topic, b"", key=bytes(1_000), headers=headers, receipt=False)
                async with asyncio.timeout(30):
                    await bus.flush()
                got = await take(events, 200)
                assert [int(event.headers["n"]) for event in got] == list(range(200))

        asyncio.run(main())

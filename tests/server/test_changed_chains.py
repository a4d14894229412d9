"""A server with events starts only with the chain that it counted them in."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.server.helpers import serving, within

import ensue
from ensue.core.errors import ConfigurationError
from ensue.journal import Journal
from ensue.protocols.interface import Persist
from ensue.protocols.total.records import INT, PLACEMENT
from ensue.server import Server
from ensue.server.station_builder import claim
from ensue.transports.tcp.messages import Member

ADDRESS, ELSEWHERE = "127.0.0.1:1", "127.0.0.1:2"


def chain(*members: tuple[str, tuple[str, ...]], address: str = ADDRESS) -> tuple[Member, ...]:
    return tuple(Member(name, address, topics) for name, topics in members)


def publish(data: Path, *topics: str, **options: Any) -> None:
    """Publish events to a server."""

    async def main() -> None:
        async with serving(data, **options) as server, ensue.connect(server.url) as bus:
            for topic in topics:
                await within(bus.publish(topic))

    asyncio.run(main())


def start(data: Path, **options: Any) -> Server:
    """Start a server and stop it."""

    async def main() -> Server:
        async with serving(data, **options) as server:
            return server

    return asyncio.run(main())


def refusal(data: Path, **options: Any) -> str:
    """Return why a server does not start."""
    with pytest.raises(ConfigurationError) as refused:
        start(data, **options)
    return str(refused.value)


def test_single_server_with_events_can_not_join_a_chain(tmp_path: Path) -> None:
    publish(tmp_path, "x", name="one")
    said = refusal(tmp_path, name="one", chain=chain(("one", ()), ("two", ())))
    assert f"{tmp_path} was written with another chain" in said
    assert "the chain was one, and is to be one, two" in said
    assert "Start all servers with the chain as it was" in said
    start(tmp_path, name="one")  # It was not changed by that.


def test_topic_with_events_can_not_move(tmp_path: Path) -> None:
    placed: dict[str, Any] = {"name": "one", "closed": True}
    publish(tmp_path, "x", chain=chain(("one", ("x", "y")), ("two", ("z",))), **placed)
    moved = chain(("one", ("x",)), ("two", ("z", "y")))
    assert "'y' was on one, and is to be on two" in refusal(tmp_path, chain=moved, **placed)
    lost = chain(("one", ("y",)), ("two", ("z",)))
    assert "'x' was on one, and is to be on none" in refusal(tmp_path, chain=lost, **placed)


def test_addresses_ranks_and_unused_topics_may_change(tmp_path: Path) -> None:
    placed: dict[str, Any] = {"name": "one", "closed": True}
    publish(tmp_path, "x", chain=chain(("one", ("x", "y")), ("two", ("z",))), **placed)
    changed = chain(("one", ("new", "x")), ("two", ("z",)), address=ELSEWHERE)
    for _ in range(2):
        start(tmp_path, chain=changed, **placed)
    moved = chain(("one", ("x",)), ("two", ("new", "z")))
    # From now on the new chain applies.
    assert "'new' was on one" in refusal(tmp_path, chain=moved, **placed)


def test_unused_server_may_join_another_chain(tmp_path: Path) -> None:
    start(tmp_path, name="one")
    start(tmp_path, name="one", chain=chain(("one", ()), ("two", ())))


def test_error_names_only_the_first_moved_topics(tmp_path: Path) -> None:
    topics = tuple(f"t{number}" for number in range(9))
    publish(tmp_path, "t0", name="one", chain=chain(("one", topics), ("two", ())))
    said = refusal(tmp_path, name="one", chain=chain(("one", ()), ("two", topics)))
    assert "'t2' was on one, and is to be on two; and 6 more. Events" in said
    assert "'t3'" not in said


def test_directory_without_a_placement_record_gets_one(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append([Persist("server", b"one"), Persist("counter/x", INT.encode(3))])
        journal.sync()
    two = chain(("one", ("x",)), ("two", ()))
    server = start(tmp_path, name="one", chain=two)
    assert server.station is not None
    assert server.station.node.count("x") == 3
    with Journal(tmp_path) as journal:
        known = PLACEMENT.decode(journal.records["placement"])
        assert (known.nodes, known.topics) == (("one", "two"), {"one": ("x",)})
        before = journal.batch_count
        claim(journal, "one", server.placement, groups=1)
        assert journal.batch_count == before
    assert "the chain was one, two" in refusal(tmp_path, name="one")

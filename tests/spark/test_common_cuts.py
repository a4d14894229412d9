"""The first common cut of a log of several topics."""

from collections.abc import Iterator, Mapping, Sequence
from random import Random

import pytest
from pyspark.sql import SparkSession
from tests.spark.ordered_logs import Event, Streamed, arriving, frame_of, log_of, pieces

from ensue.core.errors import BadInput
from ensue.spark import common_cut, gaps, order
from ensue.spark.common_cuts import find_cut

TOPICS = ("b", "c")


def joined_late(count: int, joined: int, left: int | None = None, *, seed: int = 0) -> list[Event]:
    """Return a log whose topics are subscribed together between two events."""
    log = log_of(count, seed=seed, topics=TOPICS)
    for index, one in enumerate(log):
        one["value"] = b"."
        if index < joined or (left is not None and index >= left):
            one["stamp"] = {one["topic"]: one["offset"] + 1}
    return log


def cut_of(log: Sequence[Event], firsts: Mapping[str, int] | None = None) -> dict[str, int] | None:
    def read(topic: str) -> Iterator[tuple[int, dict[str, int] | None]]:
        mine = (one for one in log if one["topic"] == topic)
        yield from ((one["offset"], one["stamp"]) for one in mine)

    return find_cut(firsts or dict.fromkeys(TOPICS, 0), read)


def counts(log: Sequence[Event]) -> dict[str, int]:
    return {topic: sum(one["topic"] == topic for one in log) for topic in TOPICS}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("joined", [0, 1, 7, 30])
def test_cut_is_where_topics_were_subscribed_together(seed: int, joined: int) -> None:
    log = joined_late(60, joined, seed=seed)
    # Events of a single topic, and the first one of another, count all earlier ones anyway.
    while joined and log[joined - 1]["stamp"] == dict_without_zeros(counts(log[:joined])):
        joined -= 1
    assert cut_of(log) == counts(log[:joined])


def dict_without_zeros(found: Mapping[str, int]) -> dict[str, int]:
    return {topic: count for topic, count in found.items() if count}


def test_topics_never_subscribed_together_have_no_cut() -> None:
    assert cut_of(joined_late(40, 40)) is None
    assert cut_of(joined_late(40, 40), {"b": 0}) == {"b": 0}


def test_trimmed_log_begins_where_all_counted_events_exist() -> None:
    log = log_of(60, topics=TOPICS)
    kept = [one for one in log if one["offset"] >= (10 if one["topic"] == "b" else 3)]
    found = cut_of(kept, {"b": 10, "c": 3})
    assert found is not None
    index = next(at for at, one in enumerate(log) if one["offset"] == 10 and one["topic"] == "b")
    # The first retained event of b, or one of c right before it.
    assert found["b"] == 10
    assert found["c"] == max(3, counts(log[:index])["c"])


def test_events_that_wait_for_a_missing_one_begin_before_it() -> None:
    log = joined_late(30, 10)
    lost = next(one for one in log[12:] if one["topic"] == "b")
    short = [one for one in log if one["topic"] == "c" or one["offset"] < lost["offset"]]
    assert cut_of(short) == counts(log[:10])


def test_order_must_hold_for_a_while_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    log = joined_late(60, 10, left=50)
    assert cut_of(log) is None
    monkeypatch.setattr("ensue.spark.common_cuts.SETTLED", 20)
    assert cut_of(log) == counts(log[:10])


def test_event_without_a_stamp_gives_no_cut() -> None:
    log = joined_late(20, 5)
    log[3]["stamp"] = None
    assert cut_of(log) is None


def test_batch_begins_at_the_cut_and_keeps_earlier_events(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    log = joined_late(60, 25)
    cut = counts(log[:25])
    frame = frame_of(spark, arriving(log, seed=1, reach=60))
    for topics in (None, TOPICS):
        caplog.clear()
        found = frame.transform(order, topics)
        rows = found.collect()
        before = [row for row in rows if row["position"] is None]
        after = [row for row in rows if row["position"] is not None]
        assert {row["event"] for row in before} == {one["event"] for one in log[:25]}
        assert {row["verdict"] for row in before} == {"before_cut"}
        assert [(row["position"], row["event"], row["verdict"]) for row in after] == [
            (index, one["event"], "") for index, one in enumerate(log[25:], 1)
        ]
        assert gaps(found).count() == 0
        (warning,) = caplog.messages
        reported = f"b {cut['b']}, c {cut['c']}: 25 events before it have no common order"
        assert f"begins at the first common cut, {reported}" in warning
    assert common_cut(frame) == common_cut(frame, ["c", "b"]) == cut
    assert order(frame, cut).count() == 35
    assert order(frame, cut, before_cut=True).where("verdict = 'before_cut'").count() == 25


@pytest.mark.verify
def test_stream_begins_at_the_given_cut(spark: SparkSession, streamed: Streamed) -> None:
    log = joined_late(60, 25)
    Random(3).shuffle(coming := arriving(log, seed=2))
    streamed.arrive(*pieces(coming, 20))
    found = streamed.run(common_cut(frame_of(spark, log)), before_cut=True)
    wanted = order(frame_of(spark, log)).collect()
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))


def test_log_without_a_cut_is_rejected(spark: SparkSession, streamed: Streamed) -> None:
    with pytest.raises(BadInput, match="topics b, c have no common order in this log"):
        common_cut(frame_of(spark, joined_late(20, 20)))
    with pytest.raises(BadInput, match="common_cut needs a batch"):
        common_cut(streamed.frame())
    with pytest.raises(BadInput, match=r"give a list of topics, \['b'\]"):
        common_cut(frame_of(spark, log_of(3)), "b")


@pytest.fixture
def streamed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Streamed:
    return Streamed(spark, tmp_path_factory.mktemp("streamed"))

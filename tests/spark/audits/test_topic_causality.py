"""The audit of causal order within topics agrees with the checker word for word."""

from functools import cache
from pathlib import Path
from random import Random

import msgspec
import pytest
from pyspark.sql import SparkSession
from tests.checkers.helpers import Script

from ensue.checkers import Verdict, check
from ensue.core import trace
from ensue.core.trace import Row
from ensue.simulation.run import play
from ensue.simulation.swarms.causal import draw
from ensue.spark import audit
from ensue.spark.audits import Sizes

ORDER = "causal-topic"
MANY = 1_000_000
SEEDS = (12, 13, 19, 25, 35, 42, 43, 50, 51, 54)
"""Order is kept within topics, of which there are several; some nodes restart."""
CUT_UP = Sizes(whole_rows=0, tile_rows=50)


@cache
def runs() -> list[Row]:
    return [
        msgspec.structs.replace(row, run=f"seed-{seed}")
        for seed in SEEDS
        for row in play(draw(seed), seed).rows
    ]


def inverted(rows: list[Row]) -> list[Row]:
    """Let subscribers change places of two deliveries of one topic, here and there."""
    random = Random(11)
    reported = list(rows)
    places: dict[tuple[str, str, str | None, str | None], list[int]] = {}
    for place, row in enumerate(rows):
        if row.action == "delivered":
            key = (row.run, row.node, row.subscription, row.topic)
            places.setdefault(key, []).append(place)
    for of_topic in places.values():
        if len(of_topic) > 1 and random.random() < 0.4:
            one, other = random.sample(of_topic, 2)
            reported[one], reported[other] = (
                msgspec.structs.replace(
                    rows[this], event=rows[that].event, publisher=rows[that].publisher,
                    publisher_seq=rows[that].publisher_seq,
                )
                for this, that in ((one, other), (other, one))
            )  # fmt: skip
    return reported


@pytest.mark.verify
def test_audit_of_good_runs_agrees_with_checker(spark: SparkSession, tmp_path: Path) -> None:
    trace.write(runs(), tmp_path / "runs")
    expected = check(runs(), ORDER, lossy=True)
    assert expected.verdict is Verdict.VALID
    for sizes in (Sizes(), CUT_UP):
        report = audit(tmp_path / "runs", ORDER, lossy=True, sizes=sizes).report()
        assert report.to_dict() == expected.to_dict()


def test_audit_of_inversions_agrees_with_checker(spark: SparkSession, tmp_path: Path) -> None:
    rows = inverted(runs())
    trace.write(rows, tmp_path / "runs")
    expected = check(rows, ORDER, causal=True, violations_max=MANY)
    assert expected[ORDER].violation_count > 50
    found = audit(tmp_path / "runs", ORDER, causal=True, violations_max=MANY)
    report = found.report(violations_max=MANY)
    assert report[ORDER] == expected[ORDER]
    assert sorted(report.sentences()) == sorted(expected.sentences())
    assert [one.checker for one in report.findings] == [one.checker for one in expected.findings]
    few = check(rows, ORDER, causal=True, violations_max=30)
    assert found.report(violations_max=30)[ORDER] == few[ORDER]


@pytest.mark.verify
def test_audit_in_tiles_agrees_on_topics(spark: SparkSession, tmp_path: Path) -> None:
    rows = inverted(runs())
    trace.write(rows, tmp_path / "runs")
    expected = check(rows, ORDER, violations_max=MANY)
    found = audit(tmp_path / "runs", ORDER, violations_max=2, sizes=CUT_UP)
    report = found.report(violations_max=MANY)
    assert report[ORDER].anomaly_counts == expected[ORDER].anomaly_counts
    reported = {one.because for one in report[ORDER].violations}
    assert reported < {one.because for one in expected[ORDER].violations}, "two of each topic"


def late(run: str) -> Script:
    """Let s1 be handed an effect before its cause, both of topic x, after something of topic y."""
    script = Script(run=run).subscribe("s1", "x", "y").publish("p1", "a").publish("p1", "n", "y")
    return script.deliver("p2", "a").publish("p2", "b").deliver("s1", "n", "b", "a")


def circle(script: Script, topic: str) -> Script:
    """Let two nodes each publish what the other was handed before."""
    one, other = f"{topic}1", f"{topic}2"
    script.publish("p1", one, topic).publish("p2", other, topic)
    steps = {"p1": other, "p2": one}
    for node, event in steps.items():
        script.deliver(node, event)
        published, delivered = (
            next(
                place
                for place, row in enumerate(script.rows)
                if (row.node, row.action, row.topic) == (node, action, topic)
            )
            for action in ("published", "delivered")
        )
        rows = script.rows
        rows[published], rows[delivered] = (
            msgspec.structs.replace(rows[published], step=rows[delivered].step),
            msgspec.structs.replace(rows[delivered], step=rows[published].step),
        )
    return script


@pytest.mark.verify
def test_facts_from_other_topics_count(spark: SparkSession, tmp_path: Path) -> None:
    # Of two subscribers at a node, one has nothing to do with topic x, and never subscribed.
    scripts = [late("uninvited").deliver("s1", "n", subscription="other")]
    # The one that came to the node second is the first to be handed something of topic y.
    both = Script(run="both").subscribe("s1", "y", subscription="one")
    both.subscribe("s1", "y", subscription="two").publish("p1", "a", "y").publish("p1", "b", "y")
    both.deliver("s1", "b", "a", subscription="two")
    scripts.append(both.deliver("s1", "b", "a", subscription="one"))
    again = late("again").crash("p1").restart("p1")
    label = {"event": "a", "topic": "x", "publisher": "p1", "publisher_seq": 1}
    scripts.append(again.row("p1", "published", **label))
    scripts.append(circle(circle(late("circles"), "u"), "v"))
    rows = [row for script in scripts for row in script.rows]
    expected = check(rows, ORDER)
    finding = expected[ORDER]
    assert [one.because.split(" (")[0] for one in finding.violations] == [
        "s1 delivered b",
        "s1/one delivered b",
        "s1/two delivered b",
        "s1 delivered b",
        "s1/main delivered b",
    ]
    assert len(finding.reasons) == 1, "two topics, one sentence"

    trace.write(rows, tmp_path / "runs")
    report = audit(tmp_path / "runs", ORDER).report()
    assert report[ORDER] == finding
    assert sorted(report.sentences()) == sorted(expected.sentences())


@pytest.mark.verify
def test_unreadable_runs_have_no_violations(spark: SparkSession, tmp_path: Path) -> None:
    scripts = {name: late(name) for name in ("step", "label", "two topics")}
    label = {"event": "a", "topic": "y", "publisher": "p3", "publisher_seq": 1}
    scripts["two topics"].row("p3", "published", **label)
    scripts["label"].row("s1", "delivered", event="n", publisher="p1", publisher_seq=1)
    by_step = scripts["step"].rows
    place = next(place for place, row in enumerate(by_step) if row.event == "b")
    by_step[place] = msgspec.structs.replace(by_step[place], step=1)
    rows = [row for script in scripts.values() for row in script.rows]
    expected = check(rows, ORDER)
    assert expected.verdict is Verdict.UNKNOWN
    assert len(expected.reasons) == len(scripts)

    trace.write(rows, tmp_path / "runs")
    assert audit(tmp_path / "runs", ORDER).report().to_dict() == expected.to_dict()

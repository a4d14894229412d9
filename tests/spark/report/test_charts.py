"""The pictures of a report: figures as people write them, and markup that any browser reads."""

import itertools
from collections.abc import Sequence
from xml.etree import ElementTree as ET

import pytest
from tests.checkers.helpers import Script

from ensue.checkers import check
from ensue.core.trace import Row
from ensue.spark.report import builder, charts, spacetime, svg, windows
from ensue.spark.report.charts import Bin, Series
from ensue.spark.report.spacetime import Delivery, Diagram, Happening, Publication
from ensue.spark.report.windows import Span, View

HOSTILE = """<script>alert("&'")</script>"""


def shape(name: str, markup: str) -> list[ET.Element]:
    return [one for one in ET.fromstring(markup).iter() if one.tag == name]


def words(markup: str) -> list[str]:
    return [one.text or "" for one in shape("text", markup)]


@pytest.mark.parametrize(
    ("ms", "reported"),
    [
        (0, "0 ms"),
        (0.000_002, "2 ns"),
        (0.25, "250 µs"),
        (1, "1 ms"),
        (41.475989, "41.5 ms"),
        (999.6, "1,000 ms"),
        (1_234, "1.23 s"),
        (90_000, "90 s"),
        (120_000, "2 min"),
        (7_200_000, "2 h"),
        (-3, "-3 ms"),
    ],
)
def test_durations_have_a_suitable_unit(ms: float, reported: str) -> None:
    assert svg.duration_text(ms) == reported


@pytest.mark.parametrize(
    ("value", "reported"),
    [(0, "0"), (0.25, "0.25"), (1_500, "1,500"), (250_000, "250 k"), (2_500_000, "2.5 M")],
)
def test_numbers_on_axes_are_short(value: float, reported: str) -> None:
    assert svg.count_text(value) == reported


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 60, [0, 20, 40, 60]),
        (578, 622, [580, 590, 600, 610, 620]),
    ],
)
def test_ticks_are_round_and_within_the_axis(
    low: float, high: float, ticks: Sequence[float]
) -> None:
    assert svg.ticks_linear(low, high, 5) == pytest.approx(ticks)


@pytest.mark.parametrize(
    ("low", "high"), [(0.001, 1_000), (31, 62), (1, 1.1), (2e-6, 5e-6), (90, 110)]
)
def test_logarithmic_axes_have_a_few_ticks_within_them(low: float, high: float) -> None:
    ticks = svg.ticks_log(low, high)
    assert 2 <= len(ticks) <= 9
    assert all(low * 0.999 <= tick <= high * 1.001 for tick in ticks)
    assert ticks == sorted(set(ticks))


def test_long_names_lose_their_middle() -> None:
    assert svg.shortened("short", 20) == "short"
    reported = svg.shortened("a-very-long-name-of-a-node-17", 20)
    assert len(reported) == 20
    assert reported.startswith("a-very")
    assert reported.endswith("17")


def test_all_text_is_escaped() -> None:
    series = [Series(name=HOSTILE, color=0, bins=[Bin(1, 2, 0.5)], marks={"p50": 1.5})]
    for markup in (
        svg.text(HOSTILE, 0, 0),
        svg.element("rect", title=HOSTILE),
        charts.legend([*series, *series]),
        charts.spread(series, title=HOSTILE),
        charts.lines(series, title=HOSTILE, unit=HOSTILE, format_value=str),
        charts.columns(series, title=HOSTILE, below=HOSTILE, unit=HOSTILE),
        charts.empty(HOSTILE),
    ):
        assert "<script" not in markup
        ET.fromstring(markup)


def test_merged_bins_of_a_distribution_add_up() -> None:
    ratio = 10 ** (1 / 100)
    bins = [Bin(ratio**number, ratio ** (number + 1), 1 / 400) for number in range(400)]
    merged = charts._merged(Series(name="x", color=0, bins=bins), 9)
    assert len(merged) <= charts.BINS_MAX
    assert sum(each.weight for each in merged) == pytest.approx(1)
    assert all(each.high == pytest.approx(after.low) for each, after in itertools.pairwise(merged))


def test_line_of_a_chart_has_gaps_without_data() -> None:
    bins = [Bin(0, 1, 5), Bin(1, 2, 6), Bin(4, 5, 7)]
    markup = charts.lines(
        [Series(name="x", color=0, bins=bins)], title="t", unit="u", format_value=svg.count_text
    )
    assert len(shape("polyline", markup)) == 2


def test_labels_of_equal_marks_are_on_different_lines() -> None:
    series = [
        Series(name=name, color=0, bins=[Bin(10, 11, 1), Bin(90, 99, 1)], marks={"p99": 60})
        for name in ("one", "other")
    ]
    markup = charts.spread(series, title="t")
    heights = [one.get("y") for one in shape("text", markup) if one.text == "p99"]
    assert len(set(heights)) == 2


def test_a_chart_of_a_single_figure_can_be_drawn() -> None:
    one = [Series(name="x", color=0, bins=[Bin(5, 5.1, 0.0)])]
    for markup in (
        charts.spread(one, title="t"),
        charts.lines(one, title="t", unit="u", format_value=str),
    ):
        assert "nan" not in markup
        ET.fromstring(markup)


def diagram(**changes: object) -> Diagram:
    """p and q publish a and b, which s and t deliver in opposite orders."""
    values: dict[str, object] = {
        "begin_ms": 0,
        "end_ms": 100,
        "publications": (
            Publication(event="a", topic="x", node="p", at_ms=10),
            Publication(event="b", topic="y", node="q", at_ms=12),
            Publication(event="c", topic="y", node="q", at_ms=20),
        ),
        "deliveries": (
            Delivery(event="a", topic="x", node="s", at_ms=50, position=4, marked=True),
            Delivery(event="b", topic="y", node="s", at_ms=50.1, position=5, marked=True),
            Delivery(event="b", topic="y", node="t", at_ms=60, position=7, marked=True),
            Delivery(event="a", topic="x", node="t", at_ms=61, position=9, marked=True),
            Delivery(event="c", topic="y", node="t", at_ms=200, position=10),
        ),
        "events": ("a", "b"),
        **changes,
    }
    return Diagram(**values)  # type: ignore[arg-type]


def test_every_node_has_a_line_and_every_delivery_an_arrow() -> None:
    markup = spacetime.draw(diagram(), title="t", mark="m")
    assert [w for w in words(markup) if w in "pqst"] == ["p", "q", "s", "t"]
    arrows = [one for one in shape("line", markup) if "arrow" in (one.get("class") or "")]
    assert sorted(one.get("class", "")[-3:] for one in arrows) == [
        " e0",
        " e0",
        " e1",
        " e1",
        "dim",
    ]


def test_deliveries_that_disagree_are_lettered_above_and_below_their_line() -> None:
    markup = spacetime.draw(diagram(), title="t", mark="m")
    reported = {one.text: float(one.get("y", "0")) for one in shape("text", markup)}
    nodes = {name: reported[name] for name in "st"}
    assert reported["its 4th"] < nodes["s"] < reported["its 5th"]
    assert reported["its 7th"] < nodes["t"] < reported["its 9th"]
    assert words(markup).count("A") == words(markup).count("B") == 3


def test_diagram_is_clipped_to_its_window() -> None:
    markup = spacetime.draw(diagram(end_ms=40.0), title="t", mark="m")
    (clip,) = shape("clipPath", markup)
    (group,) = shape("g", markup)
    assert group.get("clip-path") == f"url(#{clip.get('id')})"


def test_missing_event_is_shown_at_the_node_it_was_owed() -> None:
    markup = spacetime.draw(
        diagram(deliveries=(), events=("a",), absent=("s",)), title="t", mark="m"
    )
    assert "A never delivered" in words(markup)
    assert "s" in words(markup)


def test_crashes_within_the_window_are_shown() -> None:
    happened = (
        Happening(node="s", at_ms=30, name="crashed"),
        Happening(node="s", at_ms=300, name="restarted"),
    )
    reported = words(spacetime.draw(diagram(happenings=happened), title="t", mark="m"))
    assert "crashed" in reported
    assert "restarted" not in reported


def test_without_highlighted_events_colors_are_those_of_topics() -> None:
    shown = diagram(events=())
    assert shown.color("a", "x") == "c0"
    assert shown.color("b", "y") == "c1"
    assert ">x<" in spacetime.key(shown)
    many = tuple(Publication(event=f"{n}", topic=f"t{n}", node="p", at_ms=n) for n in range(20))
    assert diagram(events=(), publications=many).color("3", "t3") == "dim"


def seen(rows: Sequence[Row], view: View) -> Diagram:
    """The diagram of a whole run."""
    plain = [
        {
            **{name: getattr(row, name) for name in ("node", "action", "event", "topic")},
            **{name: getattr(row, name) for name in ("subscription", "position", "verdict")},
            "at_ms": row.at_ns / 1e6,
        }
        for row in rows
    ]
    span = Span(begin_ms=0, end_ms=1)
    return windows._diagram(
        view,
        span,
        [row for row in plain if row["action"] in ("published", "discarded")],
        [row for row in plain if row["action"] == "delivered"],
        [row for row in plain if row["action"] == "crashed"],
    )


def test_a_node_with_several_subscriptions_has_a_line_for_each() -> None:
    script = Script()
    for name in ("billing", "stock"):
        script.subscribe("shop", "x", "y", subscription=name)
    script.subscribe("office", "x", "y")
    script.publish("shop", "a", "x").publish("shop", "b", "y")
    script.deliver("shop", "a", "b", subscription="billing")
    script.deliver("shop", "b", "a", subscription="stock").deliver("office", "a", "b")
    script.row("shop", "crashed")
    violation = check(script.rows, "total")["total"].violations[0]
    found = seen(script.rows, View(run="r", violation=violation))
    assert {one.node for one in found.publications} == {"shop"}
    by_line: dict[str, list[str]] = {}
    for one in found.deliveries:
        by_line.setdefault(one.node, []).append(one.event)
    assert by_line == {
        "shop: billing": ["a", "b"],
        "shop: stock": ["b", "a"],
        "office": ["a", "b"],
    }
    assert [one.node for one in found.happenings] == ["shop: billing", "shop: stock"]
    drawn = words(spacetime.draw(found, title="t", mark="m"))
    assert [name for name in drawn if "shop" in name or name == "office"] == [
        "shop",
        *sorted({one.node for one in found.deliveries if one.marked}),
        *sorted({one.node for one in found.deliveries if not one.marked}),
    ]


def test_title_names_nodes_or_subscriptions_that_disagree() -> None:
    for subscriptions, reported in (
        ((("s1", "main"), ("s2", "main")), "two nodes disagree on the order of A and B"),
        ((("s", "one"), ("s", "two")), "two subscriptions of s disagree on the order of A and B"),
    ):
        script = Script()
        for node, name in subscriptions:
            script.subscribe(node, "x", "y", subscription=name)
        script.publish("p", "a", "x").publish("p", "b", "y")
        (one, its), (other, others) = subscriptions
        script.deliver(one, "a", "b", subscription=its)
        script.deliver(other, "b", "a", subscription=others)
        (violation,) = check(script.rows, "total")["total"].violations
        assert builder._title(violation) == reported


def test_event_missing_at_one_of_several_subscriptions_is_missing_on_its_line() -> None:
    script = (
        Script().subscribe("s", "x", subscription="one").subscribe("s", "x", subscription="two")
    )
    script.publish("p", "a").publish("p", "b")
    script.deliver("s", "a", "b", subscription="one").deliver("s", "b", subscription="two")
    (violation,) = check(script.rows, "none")["complete"].violations
    found = seen(script.rows, View(run="r", violation=violation))
    assert found.absent == ("s: two",)

"""The figures of a report as cards: a heading, an explanation, a chart.

Every run has the same color throughout the page. A card without data gives the reason.
"""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from ensue.spark.report import charts, svg
from ensue.spark.report.charts import Bin, Series
from ensue.spark.report.figures import TOPICS_MAX, Figures

__all__ = ["card", "cards"]

ENTRIES_APART_MAX = 24
"""Most columns of stamp entries; beyond that, adjacent numbers share one."""

ROWS_BESIDE_CHART = 11
"""A table with more rows than this takes the height of two charts."""

Row = Mapping[str, Any]


def cards(figures: Figures) -> str:
    """Return the charts of a report, two side by side if there is room."""
    pairs = (
        _latency(figures),
        _topics(figures),
        _throughput(figures),
        _hold_back(figures),
        _held_time(figures),
        _stamp_sizes(figures),
        _stamps_over_time(figures),
        _messages(figures),
    )
    return svg.element("div", *pairs, class_="cards")


def card(title: str, why: str, *content: str, shape: str = "") -> str:
    """Return a card; `title` and `why` are plain text, `content` is markup.

    `shape` may be `tall`, as high as two cards, or `across`, as wide as two.
    """
    return svg.element(
        "section",
        svg.element("h2", escape(title)),
        svg.element("p", escape(why), class_="why") if why else "",
        *content,
        class_=f"card {shape}".strip(),
    )


def _scroll(content: str) -> str:
    return svg.element("div", content, class_="scroll")


def _drawn(series: Sequence[Series], picture: Callable[[], str], otherwise: str) -> str:
    if not any(one.bins for one in series):
        return charts.empty(otherwise)
    return charts.legend([one for one in series if one.bins]) + _scroll(picture())


def _latency(figures: Figures) -> str:
    series, early = [], 0
    for color, run in enumerate(figures.runs):
        rows = figures.of("latency_histogram", run)
        total = sum(row["count"] for row in rows)
        early += sum(row["count"] for row in rows if row["low_ms"] is None)
        weights: dict[tuple[float, float], float] = {}
        for row in rows:
            if row["low_ms"] is not None:
                place = (row["low_ms"], row["high_ms"])
                weights[place] = weights.get(place, 0.0) + row["count"] / total
        overall = figures.one("latency", run)
        marks = {"p50": overall["p50_ms"], "p99": overall["p99_ms"]} if overall else {}
        series.append(
            Series(
                name=run,
                color=color,
                bins=[Bin(*place, weight) for place, weight in sorted(weights.items())],
                marks={name: value for name, value in marks.items() if value > 0},
            )
        )
    note = ""
    if early:
        sentence = f"{early:,} deliveries came before their publication by their nodes' clocks."
        note = svg.element("p", escape(sentence), class_="because")
    return card(
        "Latency",
        "How long deliveries took, on a logarithmic axis: half are faster than p50, "
        "one in a hundred is slower than p99. The fastest 0.5 % are omitted.",
        _drawn(
            series,
            lambda: charts.spread(series, title="Distribution of latency"),
            "No delivery in this trace has its publication in it too.",
        ),
        note,
    )


def _topics(figures: Figures) -> str:
    rows = [row for row in figures.tables["latency"] if row["topic"] is not None]
    title = "Latency by topic"
    why = "The strong bar ends at the median, the pale one at the 99th percentile."
    if not rows:
        return card(title, why, charts.empty("Nothing was delivered."))
    longest = max(1e-9, *(row["p99_ms"] for row in rows))
    colors = {run: color for color, run in enumerate(figures.runs)}
    several = len(figures.runs) > 1
    rows.sort(key=lambda row: (row["topic"], colors[row["run"]]))
    if not several:
        rows.sort(key=lambda row: -row["count"])
    body = [_topic(row, colors[row["run"]], longest, several=several) for row in rows]
    heads = ["topic", *(["run"] if several else []), "deliveries", "p50", "p99"]
    head = "".join(
        svg.element("th", escape(name), class_="name" if name in ("topic", "run") else None)
        for name in heads
    )
    table = svg.element(
        "table",
        svg.element("thead", svg.element("tr", head, "<th></th>")),
        svg.element("tbody", *body),
    )
    more = any(row["topics"] > TOPICS_MAX for row in rows)
    note = f"The {TOPICS_MAX} busiest topics of each run are shown." if more else ""
    below = svg.element("p", note, class_="because") if note else ""
    return card(
        title, why, _scroll(table), below, shape="tall" if len(rows) > ROWS_BESIDE_CHART else ""
    )


def _topic(row: Row, color: int, longest: float, *, several: bool) -> str:
    cells = [svg.element("td", escape(row["topic"]), class_="name", title=row["topic"])]
    if several:
        cells.append(svg.element("td", escape(row["run"]), class_="name", title=row["run"]))
    cells += [
        svg.element("td", f"{row['count']:,}"),
        svg.element("td", svg.duration_text(row["p50_ms"])),
        svg.element("td", svg.duration_text(row["p99_ms"])),
    ]
    widths = [100 * max(row[name], 0.0) / longest for name in ("p99_ms", "p50_ms")]
    fills = (svg.element("i", class_=f"b{color}", style=f"width:{w:.1f}%") for w in widths)
    bar = svg.element("span", *fills, class_="bar")
    return svg.element("tr", *cells, svg.element("td", bar, class_="bars"))


def _over_time(
    figures: Figures,
    table: str,
    value: Callable[[Row], float | None],
    *,
    dashed: bool = False,
    name: str = "{}",
    filled: bool = False,
) -> list[Series]:
    """Return one series per run; if `filled`, buckets without a row are zero."""
    found = []
    for color, run in enumerate(figures.runs):
        rows: dict[float, float] = {}
        width = 0.0
        for row in figures.of(table, run):
            width = row["width_ms"]
            place, figure = row["bucket_ms"], value(row)
            if figure is not None:
                rows[place] = max(rows.get(place, 0.0), figure)
        if rows and filled:
            places = (number * width for number in range(round(max(rows) / width) + 1))
            rows = {place: rows.get(place, 0.0) for place in places}
        bins = [Bin(place, place + width, weight) for place, weight in sorted(rows.items())]
        found.append(Series(name=name.format(run), color=color, bins=bins, dashed=dashed))
    return found


def _rate(column: str) -> Callable[[Row], float]:
    return lambda row: float(row[column] / row["width_ms"] * 1_000)


def _throughput(figures: Figures) -> str:
    alone = len(figures.runs) < 2
    delivered = _over_time(
        figures,
        "throughput",
        _rate("delivered"),
        filled=True,
        name="delivered" if alone else "{}, delivered",
    )
    published = _over_time(
        figures,
        "throughput",
        _rate("published"),
        filled=True,
        dashed=True,
        name="published" if alone else "{}, published",
    )
    series = [one for pair in zip(delivered, published, strict=True) for one in pair]
    return card(
        "Throughput",
        "Events published, and events delivered, once for each subscriber.",
        _drawn(
            series,
            lambda: charts.lines(
                series, title="Throughput over time", unit="per second", format_value=svg.count_text
            ),
            "Nothing was published or delivered.",
        ),
    )


_NOT_RECEIVED = (
    "The trace has no `received` rows, so it does not show how long events waited. "
    "Simulate with --frames to see it."
)


def _hold_back(figures: Figures) -> str:
    series = _over_time(
        figures, "hold_back_over_time", lambda row: row["held_count"] / row["count"]
    )
    return card(
        "Held back, over time",
        "The share of deliveries that had to wait, because an event that came later goes first.",
        _drawn(
            series,
            lambda: charts.lines(
                series,
                title="Share of deliveries held back over time",
                unit="share of deliveries",
                format_value=lambda value: f"{value:.0%}",
            ),
            _NOT_RECEIVED,
        ),
    )


def _held_time(figures: Figures) -> str:
    median = _over_time(figures, "hold_back_over_time", lambda row: row["p50_ms"])
    tail = _over_time(figures, "hold_back_over_time", lambda row: row["p99_ms"], dashed=True)
    series = [
        Series(name=f"{one.name}, {percentile}", color=one.color, bins=one.bins, dashed=one.dashed)
        for pair in zip(median, tail, strict=True)
        for one, percentile in zip(pair, ("p50", "p99"), strict=True)
    ]
    otherwise = _NOT_RECEIVED
    if figures.tables["hold_back"]:
        otherwise = "Nothing was held back: every event was delivered as it came."
    return card(
        "Time held back",
        "How long those deliveries waited at their node, from reception on.",
        _drawn(
            series,
            lambda: charts.lines(
                series,
                title="Time held back over time",
                unit="time held back",
                format_value=svg.duration_text,
            ),
            otherwise,
        ),
    )


_NO_STAMPS = "No event was sent with a stamp: there is no order to pay for."


def _stamp_sizes(figures: Figures) -> str:
    largest = max((row["entries"] for row in figures.tables["stamp_histogram"]), default=0)
    width = 1 + largest // ENTRIES_APART_MAX
    series = []
    for color, run in enumerate(figures.runs):
        rows = figures.of("stamp_histogram", run)
        total = sum(row["count"] for row in rows)
        weights: dict[int, float] = {}
        for row in rows:
            place = row["entries"] // width * width
            weights[place] = weights.get(place, 0.0) + row["count"] / total
        bins = [Bin(place, place + width - 1, weight) for place, weight in sorted(weights.items())]
        series.append(Series(name=run, color=color, bins=bins))
    return card(
        "Stamp size",
        "Entries in the stamp of an event, as its publisher first sent it: one for each topic that "
        "it is ordered against and that changed.",
        _drawn(
            series,
            lambda: charts.columns(
                series, title="Entries of stamps", below="entries", unit="share of events"
            ),
            _NO_STAMPS,
        ),
    )


def _stamps_over_time(figures: Figures) -> str:
    series = _over_time(figures, "stamps_over_time", lambda row: row["mean_entries"])
    return card(
        "Stamp size, over time",
        "Mean number of entries of the events published in each span of time.",
        _drawn(
            series,
            lambda: charts.lines(
                series,
                title="Stamp size over time",
                unit="entries, mean",
                format_value=svg.count_text,
            ),
            _NO_STAMPS,
        ),
    )


def _messages(figures: Figures) -> str:
    rows = figures.tables["messages"]
    title = "Messages for each delivery"
    whole = all(row["frames"] for row in rows)
    none = not any(row["frames"] for row in rows)
    why = (
        "Every frame between nodes is counted, also those that carry no event."
        if whole
        else "Only what publishers hand to the notification service is counted: "
        "the trace holds no frames between nodes."
        if none
        else "Runs with frames count every frame between nodes; the others only what publishers "
        "hand to the notification service."
    )
    rows = [row for row in rows if row["sent_per_delivery"] is not None and row["sent"]]
    if not rows:
        return card(
            title, "", charts.empty("Nothing was sent, or nothing delivered."), shape="across"
        )
    colors = {run: color for color, run in enumerate(figures.runs)}
    most = max(row["sent_per_delivery"] for row in rows)
    body = []
    for row in rows:
        parts = [row["sent_per_delivery"], row["sent_with_event"] / row["deliveries"]]
        fills = (
            svg.element("i", class_=f"b{colors[row['run']]}", style=f"width:{100 * p / most:.1f}%")
            for p in parts
        )
        cells = (
            svg.element("td", escape(row["run"]), class_="name", title=row["run"]),
            svg.element("td", f"{row['sent_per_delivery']:.2f}"),
            svg.element("td", f"{parts[1]:.2f}"),
            svg.element("td", f"{row['bytes_per_delivery'] or 0:,.0f}"),
            svg.element("td", svg.element("span", *fills, class_="bar"), class_="bars"),
        )
        body.append(svg.element("tr", *cells))
    head = svg.element(
        "tr",
        '<th class="name">run</th><th>messages</th><th>with an event</th><th>bytes</th><th></th>',
    )
    table = svg.element("table", svg.element("thead", head), svg.element("tbody", *body))
    why += " The strong bar is of those with an event."
    return card(title, why, _scroll(table), shape="across")

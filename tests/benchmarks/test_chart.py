"""The chart of the comparison with peers: its bars, and its colors."""

from xml.etree import ElementTree as ET

import pytest
from benchmarks.peers.chart import DARK, LIGHT, draw
from tests.benchmarks.runs import MACHINE, figures, run_of


def test_the_chart_has_a_bar_of_the_right_length_for_each_figure() -> None:
    run = run_of(
        {
            "ensue": [figures(50_000, cpu_us=20.0, p50_ms=0.5)],
            "nats": [figures(100_000, cpu_us=40.0, p50_ms=2.0)],
            "redis-one": [figures(25_000, cpu_us=10.0, p50_ms=1.0)],
        }
    )
    root = ET.fromstring(draw(run))
    space = "{http://www.w3.org/2000/svg}"
    widths = {
        hint.text: float(bar.attrib["width"])
        for bar in root.iter(f"{space}rect")
        if (hint := bar.find(f"{space}title")) is not None
    }
    assert len(widths) == 9
    rates = [
        widths[f"{name} events/s"]
        for name in (
            "Ensue, synced each second: 50,000",
            "NATS: 100,000",
            "Redis, one stream: 25,000",
        )
    ]
    assert rates[0] / rates[1] == pytest.approx(0.5, abs=0.01)
    assert rates[2] / rates[1] == pytest.approx(0.25, abs=0.01)
    latency = [
        widths[f"{name} p50 ms at 1,000/s"]
        for name in ("Ensue, synced each second: 0.50", "NATS: 2.00")
    ]
    assert latency[0] / latency[1] == pytest.approx(0.25, abs=0.01)
    texts = [each.text for each in root.iter(f"{space}text")]
    assert f"measured {MACHINE.day}" in texts
    assert "memory only: the limit for Python" not in texts
    assert max(float(each.attrib["x"]) for each in root.iter(f"{space}text")) < 900


def test_the_chart_is_legible_in_light_and_dark() -> None:
    def luminance(color: str) -> float:
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (
            part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for theme in (LIGHT, DARK):
        back = luminance(theme["back"])
        for name, least in (("ink", 7.0), ("soft", 4.5), *((f"g{n}", 3.0) for n in range(4))):
            one, two = sorted((luminance(theme[name]), back))
            # The contrast that WCAG wants of text and of graphics.
            assert (two + 0.05) / (one + 0.05) >= least, (name, theme[name])


def test_a_chart_of_a_quick_run_says_so() -> None:
    assert "quick: rough" in draw(run_of({"ensue": [figures(1)]}, quick=True))

"""`ensue check`."""

from pathlib import Path

import msgspec
import pytest
from tests.checkers.helpers import Script
from tests.cli.helpers import Shell

from ensue.core import trace
from ensue.core.trace import Row


def good() -> list[Row]:
    script = Script().subscribe("s1", "x").subscribe("s2", "x").publish("p1", "a")
    return script.publish("p2", "b").deliver("s1", "a", "b").deliver("s2", "a", "b").rows


def disagreeing() -> list[Row]:
    script = Script().subscribe("s1", "x").subscribe("s2", "x").publish("p1", "a")
    return script.publish("p2", "b").deliver("s1", "a", "b").deliver("s2", "b", "a").rows


def test_valid_trace_exits_with_0(shell: Shell, tmp_path: Path) -> None:
    trace.write(good(), tmp_path / "t")
    ended = shell("check", tmp_path / "t", "--order", "total")
    assert ended.code == 0
    assert "valid: checked fifo, total, causal, positions, complete on 4 deliveries" in ended.stdout


def test_order_is_the_one_that_the_trace_names(shell: Shell, tmp_path: Path) -> None:
    rows = [msgspec.structs.replace(row, order="total-noncausal") for row in good()]
    trace.write(rows, tmp_path / "t")
    ended = shell("check", tmp_path / "t")
    assert ended.code == 0
    assert "valid: checked fifo, total, positions, complete on 4 deliveries" in ended.stdout
    rows[0] = msgspec.structs.replace(rows[0], order="total")
    trace.write(rows, tmp_path / "both")
    for command in ("check", "audit"):
        ended = shell(command, tmp_path / "both")
        assert ended.code == 2
        assert "several orders (total, total-noncausal)" in " ".join(ended.stderr.split())


def test_violation_exits_with_1_and_prints_the_witness(shell: Shell, tmp_path: Path) -> None:
    trace.write(disagreeing(), tmp_path / "t")
    ended = shell("check", tmp_path / "t", "--order", "total")
    assert ended.code == 1
    assert "1 disagreement " in ended.stdout
    assert "s1 delivered a (its 1st) before b (its 2nd), but s2 delivered b" in ended.stdout
    assert shell("check", tmp_path / "t", "--order", "fifo").code == 0
    assert shell("check", tmp_path / "t", "--order", "fifo", "--causal").code == 0


def test_redelivery_after_an_acknowledgement_is_found(shell: Shell, tmp_path: Path) -> None:
    """A durable subscription of two processes, one after the other."""
    script = Script().publish("p1", "a").publish("p1", "b")
    billing = {"subscription": "billing"}
    script.subscribe("s1", "x", **billing)
    for position, event in enumerate("ab", 1):
        script.deliver("s1", event, position=position, **billing)
    script.row("s1", "acknowledged", position=2, **billing).crash("s1")
    trace.write(script.rows, tmp_path / "good")
    assert shell("check", tmp_path / "good", "--order", "total").code == 0
    script.subscribe("s2", "x", **billing).deliver("s2", "b", position=2, **billing)
    trace.write(script.rows, tmp_path / "bad")
    ended = shell("check", tmp_path / "bad", "--order", "total")
    assert ended.code == 1
    assert "1 acknowledged event that came again" in ended.stdout
    assert (
        "s2 delivered b to billing at position 2 again (first at s1), though s1 had acknowledged "
        "everything up to position 2"
    ) in " ".join(ended.stdout.split())


def test_merged_order_and_delivery_times_are_checked(shell: Shell, tmp_path: Path) -> None:
    trace.write(good(), tmp_path / "t")
    ended = shell("check", tmp_path / "t", "--order", "merged", "--within", "1us")
    assert ended.code == 0
    assert (
        "valid: checked fifo, global, causal, positions, timely, complete on 4 deliveries"
        in ended.stdout
    )
    ended = shell("check", tmp_path / "t", "--order", "merged", "--within", "1ns")
    assert ended.code == 1
    assert "the limit is 1e-06 ms" in ended.stdout
    assert shell("check", tmp_path / "t", "--order", "merged", "--within", "soon").code == 2


def test_deadlines_are_checked(shell: Shell, tmp_path: Path) -> None:
    rows = [
        msgspec.structs.replace(row, deadline_ns=row.at_ns + (row.node != "s2")) for row in good()
    ]
    trace.write(rows, tmp_path / "on time")
    ended = shell("check", tmp_path / "on time", "--order", "deadline")
    assert ended.code == 0
    assert (
        "valid: checked fifo, causal, deadline, positions, complete on 4 deliveries" in ended.stdout
    )
    assert "4 of 4 events that arrived were delivered in order and on time" in ended.stdout
    late = [msgspec.structs.replace(row, deadline_ns=row.at_ns - 1) for row in rows]
    trace.write(late, tmp_path / "late")
    ended = shell("check", tmp_path / "late", "--order", "deadline")
    assert ended.code == 1
    assert "after its deadline" in ended.stdout


def test_lossy_accepts_lost_events(shell: Shell, tmp_path: Path) -> None:
    rows = [row for row in good() if not (row.node == "s2" and row.event == "b")]
    trace.write(rows, tmp_path / "t")
    assert shell("check", tmp_path / "t", "--order", "total").code == 1
    ended = shell("check", tmp_path / "t", "--order", "total", "--lossy")
    assert ended.code == 0
    assert "1 of 4 owed deliveries are missing" in ended.stdout


def test_settle_decides_which_events_an_ended_subscription_must_get(
    shell: Shell, tmp_path: Path
) -> None:
    script = Script().subscribe("s1", "x").publish("p1", "a").publish("p2", "b")
    rows = script.deliver("s1", "b").leave("s1", "x").rows
    trace.write(rows, tmp_path / "t")
    assert shell("check", tmp_path / "t", "--order", "none").code == 0
    assert shell("check", tmp_path / "t", "--order", "none", "--settle", "1ns").code == 1
    assert shell("check", tmp_path / "t", "--order", "none", "--settle", "1s").code == 0


def test_clock_error_widens_the_edges_of_real_traces(shell: Shell, tmp_path: Path) -> None:
    script = Script(simulated=False).subscribe("s1", "x").publish("p1", "a").publish("p1", "b")
    rows = script.deliver("s1", "b").rows
    trace.write(rows, tmp_path / "t")
    words = ("check", tmp_path / "t", "--order", "none")
    assert shell(*words).code == 1
    assert shell(*words, "--clock-error", "1s").code == 0


def test_trace_without_deliveries_is_unknown(shell: Shell, tmp_path: Path) -> None:
    trace.write(Script().publish("p1", "a").rows, tmp_path / "t")
    ended = shell("check", tmp_path / "t", "--order", "total")
    assert ended.code == 2
    assert "unknown: run r has no deliveries" in ended.stdout
    assert "nothing wrong" not in ended.stdout
    assert ended.stdout.count("nothing to judge") == 5


def crowd(count: int) -> list[Row]:
    """Return a trace whose subscribers all disagree with each other."""
    script = Script()
    for number in range(count):
        script.subscribe(f"s{number}", "x")
    events = [f"e{number}" for number in range(count)]
    for event in events:
        script.publish(f"p-{event}", event)
    for number in range(count):
        script.deliver(f"s{number}", *events[number:], *events[:number])
    return script.rows


def test_count_of_an_incomplete_search_says_or_more(shell: Shell, tmp_path: Path) -> None:
    trace.write(crowd(8), tmp_path / "t")
    ended = shell("check", tmp_path / "t", "--order", "total")
    assert ended.code == 1
    assert "20 or more disagreements" in ended.stdout
    assert "28 disagreements" in shell("check", tmp_path / "t", "--order", "total", "--all").stdout


def test_three_witnesses_are_printed_unless_all_are_requested(shell: Shell, tmp_path: Path) -> None:
    trace.write(crowd(8), tmp_path / "t")
    words = ("check", tmp_path / "t", "--order", "total")
    few = shell(*words).stdout.splitlines()
    assert sum(line.startswith("total: s") for line in few) == 3
    assert "total: and 17 more" in few
    assert few[-1] == "--all explains every violation"
    every = shell(*words, "--all").stdout.splitlines()
    assert sum(line.startswith("total: s") for line in every) == 28
    assert "--all explains every violation" not in every
    assert len(shell(*words, "--json").json()["findings"][1]["violations"]) == 20


def test_json_is_the_report(shell: Shell, tmp_path: Path) -> None:
    trace.write(disagreeing(), tmp_path / "t")
    ended = shell("check", tmp_path / "t", "--order", "total", "--json")
    assert ended.code == 1
    message = ended.json()
    assert message["verdict"] == "invalid"
    assert message["findings"][1]["violations"][0]["first_event"] == "a"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--order", "total", "--settle", "5"], "--settle: expected a duration like"),
        (["--order", "total", "--clock-error", "-1s"], "--clock-error: expected a duration"),
    ],
)
def test_invalid_durations_name_their_option(
    shell: Shell, tmp_path: Path, words: list[str], message: str
) -> None:
    trace.write(good(), tmp_path / "t")
    ended = shell("check", tmp_path / "t", *words)
    assert ended.code == 2
    assert message in ended.stderr


def test_missing_trace_is_bad_input(shell: Shell, tmp_path: Path) -> None:
    ended = shell("check", tmp_path / "nowhere", "--order", "total")
    assert ended.code == 2
    assert ended.stderr.startswith(f"ensue: {tmp_path / 'nowhere'} does not exist;")
    (tmp_path / "empty").mkdir()
    ended = shell("check", tmp_path / "empty", "--order", "total")
    assert ended.stderr == (
        f"ensue: {tmp_path / 'empty'} holds no Parquet file; a trace is a directory of Parquet "
        "files\n"
    )


@pytest.mark.parametrize("words", [("check", "x", "--order", "totl"), ("swarm", "totl")])
def test_invalid_choice_lists_the_allowed_ones(shell: Shell, words: tuple[str, ...]) -> None:
    result = shell(*words)
    assert result.code == 2
    assert ": 'totl' is not one of 'total'," in result.stderr


@pytest.mark.parametrize("order", ["causal", "causal-topic", "merged", "deadline", "transactions"])
def test_only_total_order_is_judged_without_causality(
    shell: Shell, tmp_path: Path, order: str
) -> None:
    trace.write(good(), tmp_path / "t")
    ended = shell("check", tmp_path / "t", "--order", order, "--no-causal")
    assert ended.code == 2
    assert f"--no-causal is for --order total only, not for --order {order}" in ended.stderr

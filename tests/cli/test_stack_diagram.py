"""The diagram of a seed: lives share a line, faults are marked, missing deliveries are named."""

from typing import Any

from ensue.cli.stack_diagram import FAULTS, LANES_MAX, diagram_of
from ensue.core.trace import Row
from ensue.testing.swarm import StackRun, draw


def row(node: str, action: str, at_s: float, event: str | None = None) -> Row:
    return Row(
        run="ensue",
        node=node,
        step=1,
        at_ns=0,
        true_ns=int(at_s * 1e9),
        action=action,
        event=event,
        topic="a",
    )


def run_of(rows: list[Row], **changes: Any) -> StackRun:
    values: dict[str, Any] = {"problems": [], "faults": [], "seconds": 60.0, "digest": ""}
    return StackRun(drawn=draw(0, "total"), rows=rows, **(values | changes))


def test_lives_of_one_client_share_a_line_and_clients_beside_each_other_do_not() -> None:
    rows = [
        row("reader~1", "delivered", 1, "p/1"),
        row("reader~1", "crashed", 2),
        row("reader~2", "delivered", 3, "p/1"),
        row("reader~3", "delivered", 2.5, "p/1"),
        row("reader~3", "delivered", 4, "p/2"),
    ]
    found = diagram_of(run_of(rows))
    assert [one.node for one in found.deliveries] == [
        *("reader 1, 2 lives", "reader~2", "reader 1, 2 lives", "reader 1, 2 lives")
    ]
    assert [one.node for one in found.happenings] == ["reader 1, 2 lives"]


def test_faults_are_marked_at_their_server_or_on_a_line_of_their_own() -> None:
    faults = ["1.000 s: kill server-1", "2.000 s: cut reader-0, server-1", "3.500 s: slow disks"]
    found = diagram_of(run_of([row("p", "published", 1, "p/1")], faults=faults))
    assert [(one.node, one.at_ms, one.name) for one in found.happenings] == [
        ("server-1", 1_000.0, "kill"),
        (FAULTS, 2_000.0, "cut reader-0, server-1"),
        (FAULTS, 3_500.0, "slow disks"),
    ]


def test_a_reader_without_its_event_is_named_and_arrows_never_run_back() -> None:
    rows = [
        row("r~1", "delivered", 1, "p~1/a/1"),
        row("p~1", "published", 2, "p~1/a/1"),
        row("r~2", "subscribed", 0),
        row("q~1", "published", 50, "q~1/a/1"),
    ]
    problem = "complete: r~2 never delivered p~1/a/1, which p~1 published"
    found = diagram_of(run_of(rows, problems=[problem]))
    assert found.events == ("p~1/a/1",)
    assert found.absent == ("r~2",)
    assert [(one.node, one.at_ms) for one in found.publications] == [("p~1", 1_000.0)]


def test_lines_are_bounded() -> None:
    rows = [row(f"r~{number}", "delivered", 1, "p/1") for number in range(LANES_MAX + 5)]
    found = diagram_of(run_of(rows))
    assert len({one.node for one in found.deliveries}) == LANES_MAX
    assert found.left_out == 5

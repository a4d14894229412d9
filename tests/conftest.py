"""Selection and order of tests: `verify` on request, the longest first.

Properties have no deadline: a busy machine is no failure.
"""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

HERE = Path(__file__).parent
LONGEST_FIRST = ("spark", "processes", "brokers")
KEPT_FOR_VERIFY = pytest.StashKey[int]()
"""Number of tests that this run leaves to `--verify`."""


def pytest_xdist_auto_num_workers() -> int:
    """Three at once on each core: many tests wait for a broker, a process or a timeout."""
    return min(3 * (os.cpu_count() or 2), 12)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--verify", action="store_true", help="also run tests marked verify")


def _place(item: pytest.Item) -> tuple[int, bool]:
    folder = item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else ""
    place = LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)
    return place, not item.path.stem.endswith("_killed")


def _is_kept_for_verify(item: pytest.Item, config: pytest.Config) -> bool:
    chosen = config.getoption("--verify") or "verify" in config.getoption("markexpr")
    return not chosen and item.get_closest_marker("verify") is not None


# First, because pytest-xdist reads the groups in a hook of the same name.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept = [item for item in items if _is_kept_for_verify(item, config)]
    if kept:
        config.stash[KEPT_FOR_VERIFY] = len(kept)
        config.hook.pytest_deselected(items=kept)
    items[:] = sorted((item for item in items if item not in set(kept)), key=_place)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fail if tests of a group would run in several processes: each starts what they share."""
    if hasattr(session.config, "workerinput"):
        for item in session.items:
            if item.get_closest_marker("xdist_group") is not None and "@" not in item.nodeid:
                raise pytest.UsageError(f"pytest-xdist does not see the group of {item.nodeid}")


# -- Each process of pytest-xdist deselects tests; the reporting one sums them up. ----------------


def pytest_sessionfinish(session: pytest.Session) -> None:
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["kept_for_verify"] = session.config.stash.get(KEPT_FOR_VERIFY, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    config: pytest.Config = node.config
    count = getattr(node, "workeroutput", {}).get("kept_for_verify", 0)
    if count and KEPT_FOR_VERIFY not in config.stash:
        config.stash[KEPT_FOR_VERIFY] = count
        config.hook.pytest_deselected(items=[SimpleNamespace() for _ in range(count)])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    count = config.stash.get(KEPT_FOR_VERIFY, 0)
    if count:
        terminalreporter.line(f"{count} tests marked verify were deselected: --verify runs them")

"""Log lines of a server: one line each, whatever text they contain."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from ensue.server.log_format import start_logging


@pytest.fixture
def _restored() -> Iterator[None]:
    """Restore the logging configuration."""
    loggers = [logging.getLogger(name) for name in ("ensue", "asyncio")]
    before = [(each.handlers, each.propagate, each.level) for each in loggers]
    yield
    for each, (handlers, propagate, level) in zip(loggers, before, strict=True):
        each.handlers, each.propagate = handlers, propagate
        each.setLevel(level)


@pytest.mark.usefixtures("_restored")
def test_text_is_keys_and_values_and_stays_on_its_line() -> None:
    stream = io.StringIO()
    start_logging("text", "info", stream=stream)
    log = logging.getLogger("ensue")
    log.info("plain", extra={"fault": "protocol"})
    log.warning("%s says %s", "somebody", 'a "quoted"\ntime=1 level=info message=forged')
    log.debug("not from here on")
    first, second = stream.getvalue().splitlines()
    assert " level=info message=plain fault=protocol" in first
    assert second.count("\\n") == 1
    assert ' level=warning message="somebody says ' in second


@pytest.mark.usefixtures("_restored")
def test_json_is_one_object_per_line_with_the_error() -> None:
    stream = io.StringIO()
    start_logging("json", "warning", stream=stream)
    log = logging.getLogger("ensue")
    log.info("not from here on")
    try:
        int("broken")
    except ValueError:
        log.exception("it failed\nhere", extra={"topic": "x"})
    (line,) = stream.getvalue().splitlines()
    logged = json.loads(line)
    assert logged["message"] == "it failed\nhere"
    assert logged["level"] == "error"
    assert logged["topic"] == "x"
    assert logged["time"].endswith("Z")
    assert "ValueError: invalid literal" in logged["error"]

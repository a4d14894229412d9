"""Log formats of a server: one line per record, as `key=value` or JSON."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

__all__ = ["LogFormat", "start_logging"]

LogFormat = Literal["text", "json"]

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes that every record has; all others were passed as `extra`."""


def start_logging(kind: LogFormat, level: str, *, stream: TextIO | None = None) -> None:
    """Write Ensue's log records of at least a level to `stream`, by default stderr."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Json() if kind == "json" else _Text())
    for name in ("ensue", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
    logging.getLogger("ensue").setLevel(level.upper())
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    at = datetime.fromtimestamp(record.created, UTC)
    facts: dict[str, Any] = {
        "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "message": record.getMessage(),
    }
    facts.update({key: value for key, value in vars(record).items() if key not in _OWN})
    if record.exc_info:
        facts["error"] = logging.Formatter().formatException(record.exc_info)
    return facts


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_facts(record), ensure_ascii=False, default=str)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        # Text from peers may contain anything: quoted as JSON it stays on its line.
        return " ".join(
            f"{key}={value if _is_plain(value) else json.dumps(str(value), ensure_ascii=False)}"
            for key, value in _facts(record).items()
        )


def _is_plain(value: object) -> bool:
    text = str(value)
    return bool(text) and text.isprintable() and not any(each in text for each in ' "=')

"""Start of a pipeline's stages: one after another, with retries.

A query needs Python processes, which on a busy machine may take longer to start than Spark waits:
ten seconds for those that a driver starts, sixty for those that are forked. PySpark 4.3 has no
setting for either (`PythonWorkerFactory.createSimpleWorker` has the number in its code). So stages
do not start all at once, and a stage whose process did not start in time is retried with
exponential backoff. Progress of a stage resets its count of attempts.
"""

import re
from collections import Counter

from ensue.core.errors import EnsueError

__all__ = ["ATTEMPTS_MAX", "MachineTooBusy", "Starts", "worker_missing"]

ATTEMPTS_MAX = 8
"""Failed starts of a stage in a row before the pipeline gives up."""
PAUSE_S = 2.0
"""Pause after the first failed start; it doubles with each further one."""
PAUSE_MAX_S = 60.0
SETTLE_MAX_S = 30.0
"""Longest wait of a stage for the previous one to start."""

_MISSING = re.compile(r"Python worker (?:failed )?to connect back")


def worker_missing(error: str) -> bool:
    """Return whether a query failed only because a Python process was slow to start."""
    return _MISSING.search(error) is not None


class MachineTooBusy(EnsueError, RuntimeError):
    """Spark's Python processes do not start in time; the text says what to do."""

    retriable = True

    def __init__(self, stage: str, attempts: int) -> None:
        super().__init__(
            f"{stage}: Spark's Python process did not start in time, {attempts} times in a row: "
            "this machine is too busy. Start again when less is running, or with fewer cores, "
            "as by --master 'local[1]'; the pipeline resumes"
        )
        self.stage = stage
        self.attempts = attempts


class Starts:
    """Failed starts of each stage, and the time of its next one."""

    def __init__(self) -> None:
        self._failures: Counter[str] = Counter()
        self._not_before: dict[str, float] = {}
        self._last: tuple[str, float] | None = None
        """The stage that was started last, and when."""

    def may_start(self, stage: str, coming_up: set[str], now_s: float) -> bool:
        """Return whether a stage may start, given those still starting."""
        if now_s < self._not_before.get(stage, 0.0):
            return False
        last = self._last
        return last is None or last[0] not in coming_up or now_s - last[1] >= SETTLE_MAX_S

    def started(self, stage: str, now_s: float) -> None:
        """Record the start of a stage."""
        self._last = (stage, now_s)

    def worked(self, stage: str) -> None:
        """Reset the failures of a stage that made progress."""
        self._failures.pop(stage, None)

    def failed(self, stage: str, now_s: float) -> float:
        """Record a failed start; return the pause, or raise at the limit."""
        self._failures[stage] += 1
        if self._failures[stage] >= ATTEMPTS_MAX:
            raise MachineTooBusy(stage, ATTEMPTS_MAX)
        pause_s = min(PAUSE_MAX_S, PAUSE_S * 2.0 ** (self._failures[stage] - 1))
        self._not_before[stage] = now_s + pause_s
        return pause_s

"""When a stage of a pipeline may start: one by one, and again after a pause.

A query needs Python processes, which on a busy machine may take longer to come up than Spark waits:
ten seconds for those that a driver starts, sixty for those that are forked. PySpark 4.3 has no
setting for either (`PythonWorkerFactory.createSimpleWorker` has the number in its code). So stages
don't start all at once, when they would be slow together, and one whose process did not come up
starts again after a pause that doubles. A stage that has done something since counts from the
beginning.
"""

import re
from collections import Counter

from ensue.core.errors import EnsueError

__all__ = ["ATTEMPTS_MAX", "MachineTooBusy", "Starts", "worker_missing"]

ATTEMPTS_MAX = 8
"""So often in a row a stage is started whose Python process does not come up."""
PAUSE_S = 2.0
"""How long it waits after the first time; twice as long after each further one."""
PAUSE_MAX_S = 60.0
SETTLE_MAX_S = 30.0
"""So long the next stage waits for the one before it to come up."""

_MISSING = re.compile(r"Python worker (?:failed )?to connect back")


def worker_missing(error: str) -> bool:
    """Return whether a query failed only because a Python process was slow to start."""
    return _MISSING.search(error) is not None


class MachineTooBusy(EnsueError, RuntimeError):
    """Spark's Python processes don't come up in time; the text says what to do."""

    retriable = True

    def __init__(self, stage: str, attempts: int) -> None:
        super().__init__(
            f"{stage}: Spark's Python process did not come up in time, {attempts} times in a row: "
            "this machine is too busy. Start it again when less is running, or with fewer cores, "
            "as by --master 'local[1]'; it goes on where it was"
        )
        self.stage = stage
        self.attempts = attempts


class Starts:
    """Failed starts of each stage, and when it may start again."""

    def __init__(self) -> None:
        self._vain: Counter[str] = Counter()
        self._not_before: dict[str, float] = {}
        self._last: tuple[str, float] | None = None
        """What was started last, and when."""

    def may_start(self, stage: str, coming_up: set[str], now_s: float) -> bool:
        """Return whether a stage may start, given those that are still coming up."""
        if now_s < self._not_before.get(stage, 0.0):
            return False
        last = self._last
        return last is None or last[0] not in coming_up or now_s - last[1] >= SETTLE_MAX_S

    def started(self, stage: str, now_s: float) -> None:
        """Remember what was started last."""
        self._last = (stage, now_s)

    def worked(self, stage: str) -> None:
        """Forget the failures of a stage that has done something."""
        self._vain.pop(stage, None)

    def in_vain(self, stage: str, now_s: float) -> float:
        """Return how long a stage waits after a failed start; raise at the limit."""
        self._vain[stage] += 1
        if self._vain[stage] >= ATTEMPTS_MAX:
            raise MachineTooBusy(stage, ATTEMPTS_MAX)
        pause_s = min(PAUSE_MAX_S, PAUSE_S * 2.0 ** (self._vain[stage] - 1))
        self._not_before[stage] = now_s + pause_s
        return pause_s

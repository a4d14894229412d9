"""A log throttle: one line of a kind per period, with the number of lines left out."""

import logging
from collections import OrderedDict
from collections.abc import Callable

from ensue.core import platform

__all__ = ["Throttle"]

PERIOD_S = 60.0
KEYS_MAX = 1_000


class Throttle:
    """A logger of at most one line of a kind in `period_s`."""

    def __init__(
        self,
        logger: logging.Logger,
        *,
        period_s: float = PERIOD_S,
        keys_max: int = KEYS_MAX,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._logger = logger
        self._period_s = period_s
        self._keys_max = keys_max
        self._clock = clock or platform.current().monotonic_s
        self._logged: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """By kind: when it was last logged, and how many lines were left out since."""

    def log(self, key: str, level: int, line: str, *, fault: str = "") -> None:
        """Log a line, unless one of its kind was logged within the period."""
        now_s = self._clock()
        at_s, left_out = self._logged.get(key, (-self._period_s, 0))
        if now_s - at_s < self._period_s:
            self._logged[key] = (at_s, left_out + 1)
            return
        self._logged[key] = (now_s, 0)
        self._logged.move_to_end(key)
        if len(self._logged) > self._keys_max:
            self._logged.popitem(last=False)
        again = f" (and {left_out:,} more like it in {now_s - at_s:.0f} s)" if left_out else ""
        extra = {"fault": fault} if fault else None
        self._logger.log(level, "%s%s", line, again, extra=extra)

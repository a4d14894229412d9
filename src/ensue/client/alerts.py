"""What people are told when clocks or delays come close to what an order allows, or exceed it: a line in the log."""

import logging

from ensue.protocols.core import Alert

__all__ = ["log_alert"]

_log = logging.getLogger("ensue")


def log_alert(who: str, alert: Alert) -> None:
    """Say what was measured, by whom."""
    if alert.assumption == "terms":
        _log.warning(
            "merged_terms_differ by=%s publisher=%s theirs=(%s) ours=(%s)",
            who,
            alert.peer,
            alert.theirs,
            alert.ours,
        )
        return
    _log.warning(
        "%s: %s of %s is %g ms, %s of %g ms",
        who,
        "the clock's lead" if alert.assumption == "clock" else "the delay",
        alert.peer,
        alert.measured_ns / 1_000_000,
        "beyond the bound" if alert.broken else "close to the bound",
        alert.bound_ns / 1_000_000,
    )

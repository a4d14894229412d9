"""Log lines for clocks and delays near or beyond the bounds of an order."""

import logging
from collections.abc import Callable, Sequence

from ensue.protocols.interface import Alert, Deliver, Outcome
from ensue.runtime.hub_memory import Hub

__all__ = ["log_alert", "observed"]

_log = logging.getLogger("ensue")


def log_alert(who: str, alert: Alert) -> None:
    """Log a measurement of a node or subscription (`who`)."""
    if alert.assumption == "terms":
        _log.warning(
            "merged terms differ by=%s publisher=%s theirs=(%s) ours=(%s)",
            who,
            alert.peer,
            alert.theirs,
            alert.ours,
        )
        return
    _log.warning(
        "%s %s bound by=%s peer=%s measured_ms=%g bound_ms=%g",
        "clock lead" if alert.assumption == "clock" else "delay",
        "beyond" if alert.broken else "near",
        who,
        alert.peer,
        alert.measured_ns / 1_000_000,
        alert.bound_ns / 1_000_000,
    )


def observed(
    hub: Hub, client: str, subscription: str, on_outcomes: Callable[[Sequence[Outcome]], None]
) -> Callable[[Sequence[Outcome]], None]:
    """Return a callback for the outcomes of a subscription whose order depends on clocks.

    The bus of the client observes the stamps of events that are delivered before their turn, so
    that its answers get later stamps. Alerts are logged.
    """

    def observe(outcome: Outcome) -> None:
        if isinstance(outcome, Deliver) and outcome.verdict:
            learn = hub.observers.get(client)
            if learn is not None and outcome.event.stamp is not None:
                learn(outcome.event.stamp.entries)
        elif isinstance(outcome, Alert):
            log_alert(f"subscription {subscription!r}", outcome)

    def observe_all(outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            observe(outcome)
        on_outcomes(outcomes)

    return observe_all

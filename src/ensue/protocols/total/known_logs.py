"""The logs that a durable subscription has read, to notice a replaced one.

A node may restart with another log than before, or with an older state of it
(`ensue.core.lineage`). The subscription keeps the lineage of each node's log with its records, and
how far it had read. A log that contradicts these ends the subscription, or
makes it start again if it accepts a loss.
"""

from collections.abc import Callable

from ensue.core.lineage import Lineage, contradiction
from ensue.protocols.interface import Persist
from ensue.protocols.total.records import LOG, KnownLog
from ensue.protocols.total.subscription_state import SubscriptionState

__all__ = ["QUESTIONS_MAX", "UNASKED", "KnownLogs"]

UNASKED = 0
"""No question about logs has this number."""
QUESTIONS_MAX = 4
"""Requests for identities that are remembered; answers to later ones contain no less."""


class KnownLogs:
    """The log of each node; `last_place` returns how far a node's log was delivered."""

    def __init__(
        self, state: SubscriptionState, last_place: Callable[[str], int], *, accept_loss: bool
    ) -> None:
        self._nodes = state.placement.nodes
        self._last_place = last_place
        self._effects = state.effects
        self.accept_loss = accept_loss
        self._by_node: dict[str, KnownLog] = {}
        self.asked: dict[int, dict[str, int]] = {}
        """Question to node to how far its log was delivered when the question was asked."""

    def ask(self, question: int) -> None:
        """Note how far each log is delivered while nodes are asked which logs they have."""
        self.asked[question] = {node: self._last_place(node) for node in self._nodes}
        while len(self.asked) > QUESTIONS_MAX:
            del self.asked[next(iter(self.asked))]

    def learn(
        self, node: str, lineage: Lineage, *, question: int | None, reads: bool
    ) -> tuple[str, bool]:
        """Compare a node's log with the known one, and remember it unless that is refused.

        `question` is the one that this answers: what was delivered before it is of this
        incarnation, or of an earlier one. None: a new connection says so, and all that was
        delivered came over earlier ones. `reads` says whether the subscription has topics there.

        Returns why the log can't be the known one (empty: it can), and whether it continues it.
        """
        known = self._by_node.get(node)
        place = 0 if question is None else self.asked.get(question, {}).get(node, 0)
        if known is not None and known.log == lineage.last:
            if place > known.place:
                self._remember(node, KnownLog(known.log, place))
            return "", True
        reason, continues = "", True
        if known is not None and reads:
            reached = self._last_place(node) if question is None else known.place
            reason = contradiction(known.log, lineage, place=reached)
            continues = not reason or lineage.continues(known.log, place=reached)
        if not reason or self.accept_loss:
            self._remember(node, KnownLog(lineage.last, place))
        return reason, continues

    def restore(self, node: str, value: bytes) -> None:
        """Restore a record of an earlier incarnation."""
        self._by_node[node] = LOG.decode(value)

    def _remember(self, node: str, known: KnownLog) -> None:
        self._by_node[node] = known
        self._effects.append(Persist(f"log/{node}", LOG.encode(known)))

"""Regular events while instances are dispatched (Figure 6(g)): how much a transaction disturbs those who have no part in it.

E publishes events to both agents in turn, at an even rate, and dispatches four instances at once after every `between` of them. Measured are the events that agents are given in
each 100 ms, and how long each was on its way, apart for the time when a transaction is under way. The paper does not say how fast it publishes; here it is
`RATE` a second, at which the busiest broker is occupied for a third of the time.
"""

from statistics import fmean

import msgspec

from ensue.protocols.content.client import Notified
from ensue.protocols.interface import Node
from ensue.protocols.transactions.client import TransactionClient
from ensue.simulation.deployments.transaction_clients import Act, RegularSpec
from experiments.transactions.model import MS, SECOND, Dispatching, Setting

__all__ = ["Disturbance", "disturb"]

RATE = 1_000
AT_ONCE = 4
WINDOW_NS = 100 * MS


class Disturbance(msgspec.Struct, frozen=True, kw_only=True):
    """What regular events met."""

    per_second: float
    """Given to agents while no transaction was under way."""
    per_second_during: float
    """The same while one was."""
    per_second_least: float
    """In the worst 100 ms while no transaction was under way: what chance alone does."""
    per_second_least_during: float
    """In the worst 100 ms while one was."""
    delay_ms: float
    delay_ms_during: float
    delay_ms_most: float
    delay_ms_most_during: float
    lost: int


class _Stream(Dispatching):
    """Dispatches in rounds, with events in between."""

    def __init__(self, setting: Setting, seed: int, between: int) -> None:
        super().__init__(setting, seed)
        self.between = between
        self.sent = 0
        self.delays: dict[bool, list[float]] = {False: [], True: []}
        self._windows: dict[int, int] = {}
        """By window: how many events were given in it."""
        self._first = self._last = 0
        """The windows of the first event and the last."""
        self._busy: set[int] = set()
        """Windows in which a transaction was under way."""
        self.on_delivery = self._delivered

    def prepare(self) -> None:
        acts = [("E0", Act(action="adv", where="load exists", label="load"))]
        acts += [
            (f"{each}0", Act(action="sub", where=f"load = '{each}'", label=f"load{each}"))
            for each in ("A", "B")
        ]
        for client, act in acts:
            self.application.regular(RegularSpec(client=client, at_ns=0, act=act))
        self.world.run(until_ns=self.world.now_ns + SECOND)

    def play(self) -> Disturbance:
        """Publish and dispatch."""
        self.prepare()
        rounds = self.setting.transactions // AT_ONCE
        events, start_ns = (rounds + 1) * self.between, self.world.now_ns
        self.released[0] = 0
        self._first = self._last = self._window()
        for number in range(events):
            self.world.schedule(start_ns + number * SECOND // RATE, self._publish, (number,))
        self.world.run(condition=lambda: self.sent == events and not self.under_way)
        self.world.run(until_ns=self.world.now_ns + 10 * SECOND)
        whole = range(self._first + 1, self._last)
        rates = {at: self._windows.get(at, 0) * SECOND / WINDOW_NS for at in whole}
        during = [rate for at, rate in rates.items() if at in self._busy]
        quiet = [rate for at, rate in rates.items() if at not in self._busy]
        given = sum(map(len, self.delays.values()))
        return Disturbance(
            per_second=fmean(quiet),
            per_second_during=fmean(during),
            per_second_least=min(quiet),
            per_second_least_during=min(during),
            delay_ms=fmean(self.delays[False]),
            delay_ms_during=fmean(self.delays[True]),
            delay_ms_most=max(self.delays[False]),
            delay_ms_most_during=max(self.delays[True]),
            lost=events - given,
        )

    def _window(self) -> int:
        at = self.world.now_ns // WINDOW_NS
        if self.under_way:
            self._busy.add(at)
        return at

    def _publish(self, number: int) -> None:
        self._last = self._window()

        def publish(node: Node, now_ns: int) -> None:
            assert isinstance(node, TransactionClient)
            node.publish({"load": "AB"[number % 2]}, now_ns=now_ns)

        self.world.call("E0", publish)
        self.sent += 1
        if self.sent % self.between == 0 and self.released[0] < self.setting.transactions:
            self.released[0] += AT_ONCE
            for _ in range(AT_ONCE):
                self.begin(0)

    def _delivered(self, client: str, notified: Notified) -> None:
        del client
        publication = notified.publication
        if "load" in publication.attributes:
            at = self._window()
            self._windows[at] = self._windows.get(at, 0) + 1
            took_ns = self.world.now_ns - publication.published_at_ns
            self.delays[self.under_way > 0].append(took_ns / MS)


def disturb(scheme: str, *, wait_ns: int, rounds: int, between: int, seed: int) -> Disturbance:
    """Measure one scheme on three brokers."""
    setting = Setting(
        scheme=scheme, concurrent=AT_ONCE, transactions=rounds * AT_ONCE, wait_ns=wait_ns
    )
    return _Stream(setting, seed, between).play()

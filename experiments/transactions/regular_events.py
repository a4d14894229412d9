"""Regular events while instances are dispatched (Figure 6(g)).

E publishes events to both agents in turn at a constant rate, and dispatches four instances at once
after every `between` events. Measured are the deliveries in each window of 100 ms and the delay of
each event, separately while a transaction is in progress. The paper does not give its rate; here it
is `RATE` a second, which occupies the busiest broker for a third of the time.
"""

from collections.abc import Sequence
from itertools import groupby
from statistics import fmean

import msgspec

from ensue.protocols.content.client import Notified
from ensue.protocols.interface import Node
from ensue.protocols.transactions.client import TransactionClient
from ensue.simulation.deployments.transaction_clients import Act, RegularSpec
from experiments.transactions.model import MS, SECOND, Dispatching, Setting

__all__ = ["Disturbance", "disturb", "drop_of"]

RATE = 1_000
AT_ONCE = 4
WINDOW_NS = 100 * MS


class Disturbance(msgspec.Struct, frozen=True, kw_only=True):
    """Rates and delays of regular events, without and during transactions."""

    per_second: float
    """Rate of deliveries to agents while no transaction was in progress."""
    per_second_during: float
    """The same during transactions."""
    per_second_least: float
    """Rate in the worst 100 ms while no transaction was in progress: the effect of chance alone."""
    per_second_least_during: float
    """The same during transactions."""
    delay_ms: float
    delay_ms_during: float
    delay_ms_most: float
    delay_ms_most_during: float
    drop: float
    """By how much the worst window of a round of dispatching is below that of as long a stretch
    without: the mean share over the rounds. Without an effect its expectation is 0."""
    lost: int


class _Stream(Dispatching):
    """Regular events at a constant rate, with rounds of dispatching in between."""

    def __init__(self, setting: Setting, seed: int, between: int) -> None:
        super().__init__(setting, seed)
        self.between = between
        self.sent = 0
        self.delays: dict[bool, list[float]] = {False: [], True: []}
        self._windows: dict[int, int] = {}
        """By window: the number of deliveries."""
        self._first = self._last = 0
        """The windows of the first and the last event."""
        self._busy: set[int] = set()
        """Windows during which a transaction was in progress."""
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

    def measure(self) -> Disturbance:
        """Publish, dispatch and measure."""
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
        delivered = sum(map(len, self.delays.values()))
        return Disturbance(
            per_second=fmean(quiet),
            per_second_during=fmean(during),
            per_second_least=min(quiet),
            per_second_least_during=min(during),
            delay_ms=fmean(self.delays[False]),
            delay_ms_during=fmean(self.delays[True]),
            delay_ms_most=max(self.delays[False]),
            delay_ms_most_during=max(self.delays[True]),
            drop=drop_of([(rate, at in self._busy) for at, rate in rates.items()]),
            lost=events - delivered,
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


def drop_of(rates: Sequence[tuple[float, bool]]) -> float:
    """Return the mean drop of the worst window, from rates by window and whether it was busy.

    The worst of many windows is lower than the worst of few, by chance alone. So a busy stretch is
    compared with quiet ones of its length.
    """
    stretches = [
        (busy, [rate for rate, _ in stretch])
        for busy, stretch in groupby(rates, lambda each: each[1])
    ]
    drops = []
    for length, least in [(len(each), min(each)) for busy, each in stretches if busy]:
        quiet = [
            min(each[start : start + length])
            for busy, each in stretches
            if not busy
            for start in range(0, len(each) - length + 1, length)
        ]
        drops.append(1 - least / fmean(quiet))
    return fmean(drops)


def disturb(scheme: str, *, wait_ns: int, rounds: int, between: int, seed: int) -> Disturbance:
    """Measure one scheme on three brokers."""
    setting = Setting(
        scheme=scheme, concurrent=AT_ONCE, transactions=rounds * AT_ONCE, wait_ns=wait_ns
    )
    return _Stream(setting, seed, between).measure()

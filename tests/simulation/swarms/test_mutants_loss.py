"""Every planted bug in the loss recovery of an order contradicts the claim that it names.

A lost message is made up for in the end, by a poll or by the next event, so a run with such a bug
is valid: it takes too long, or sends too much. So the claims are figures of the experiment `loss`,
at one event a second and publisher. Bugs in links are in `tests.protocols.shared`.

`python -m tests.simulation.swarms.test_mutants_loss [NAME …]` searches the seeds of the bugs.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any

import msgspec
import pytest
from experiments.guarantees.cases import figures_of
from experiments.guarantees.loss import LOADS, RELIABLE, TIMES, scenario_of
from tests.simulation.swarms.planted import Mutant, planted

from ensue.protocols.causal.trees import Trees
from ensue.protocols.merged.publisher import MergedPublisher, Unanswered
from ensue.protocols.shared.round_trips import RoundTrips
from ensue.protocols.topic_log.frames import LogEnd
from ensue.protocols.topic_log.tail_probes import TailProbes
from ensue.protocols.total.gap_requests import GapRequests, OpenRequests
from ensue.protocols.total.pending_requests import Run
from ensue.simulation.run import play

SEEDS_MAX = 10
FRUGAL = 1.1
"""How much more a broken protocol may send, in times what the real one sends."""
MERGED_LOST_PERCENT = 3
Claim = Callable[[int], str]

real_take_due = TailProbes.take_due
real_answered, real_run = OpenRequests.answered, Run.__init__


def _figures(variant: str, seed: int, *, lost: bool) -> Mapping[str, float]:
    outcome = play(scenario_of(variant, "quiet", seed, lost=lost), seed, peer_frames=True)
    return figures_of(outcome.rows, LOADS["quiet"])


@cache
def _real(variant: str, seed: int, *, lost: bool) -> Mapping[str, float]:
    """The figures without a bug: computed before one is planted."""
    return _figures(variant, seed, lost=lost)


# -- Claims ----------------------------------------------------------------------------------------


def loss_costs_a_few_round_trips(variant: str, seed: int) -> str:
    """99 % of deliveries at 2 % loss take at most 5 times as long as without loss."""
    most = TIMES * _real(variant, seed, lost=False)["99 %, ms"]
    took = _figures(variant, seed, lost=True)["99 %, ms"]
    return "" if took <= most else f"99 % took {took:.1f} ms, more than {most:.1f}"


def loss_recovery_sends_little(variant: str, seed: int) -> str:
    """It sends no more than it has to."""
    name = "messages a delivery"
    most = FRUGAL * _real(variant, seed, lost=True)[name]
    sent = _figures(variant, seed, lost=True)[name]
    return "" if sent <= most else f"{sent:.2f} messages a delivery, more than {most:.2f}"


def copies_arrive_within_delta(variant: str, seed: int) -> str:
    """What its publisher sends again is delivered in its place."""
    lost = _figures(variant, seed, lost=True)["not delivered, %"]
    return "" if lost <= MERGED_LOST_PERCENT else f"{lost:.2f} % not delivered"


# -- Planted bugs ----------------------------------------------------------------------------------


def probe_never(self: TailProbes, now_ns: int) -> list[tuple[str, int]]:
    """The log never sends the end of a silent topic."""
    real_take_due(self, now_ns)
    return []


def probe_for_ever(self: TailProbes, now_ns: int) -> list[tuple[str, int]]:
    """The log never stops sending the end of a silent topic."""
    taken = real_take_due(self, now_ns)
    wait_ns, silent = self._rounds[-1]
    for topic, silent_ns in taken:
        if silent_ns >= wait_ns:
            silent[topic] = now_ns
    return taken


def ignore_the_end(self: GapRequests, frame: LogEnd, source: str, now_ns: int) -> None:
    """A subscriber does nothing when it learns how far the log is."""


def request_at_every_end(self: GapRequests, frame: LogEnd, source: str, now_ns: int) -> None:
    """A subscriber requests new events whenever it learns how far the log is."""
    if frame.topic in self._queue.clock:
        self.ask(frame.topic, now_ns)


def open_for_ever(self: OpenRequests, frame: Any) -> bool:
    """An answered request stays open, so that the next loss waits for its time-out."""
    request = self._open.get(frame.topic)
    answers = real_answered(self, frame)
    if answers and request is not None:
        self._open[frame.topic] = (*request[:2], request[2] + 2_000_000_000)
    return answers


def never_overdue(self: Run, *args: Any, **options: Any) -> None:
    """A publisher waits for the answer to a request for a second, whatever it has measured."""
    real_run(self, *args, **options)
    self.due_ns = self.sent_ns + 1_000_000_000


def fixed_round_trips(self: Trees, child: int) -> RoundTrips:
    """A node waits for the answers of children as long as over a connection."""
    return RoundTrips(initial_ns=self._config.retry_ns, least_ns=0, most_ns=self._config.retry_ns)


class WaitsForThePoll(Unanswered):
    """A merged publisher sends an event again after its poll interval."""

    def __init__(self, event: Any, now_ns: int, wait_ns: int) -> None:
        super().__init__(event, now_ns, max(wait_ns, 2_000_000_000))


class LossMutant(msgspec.Struct, frozen=True):
    """A planted bug, and the claim that it contradicts."""

    mutant: Mutant
    claim: Claim
    variant: str

    @property
    def name(self) -> str:
        """What the bug is."""
        return self.mutant.name

    @property
    def hint(self) -> int:
        """The seed that showed it last."""
        return self.mutant.hint


def bug(
    name: str, hint: int, claim: Callable[[str, int], str], variant: str, *patches: Any
) -> LossMutant:
    return LossMutant(Mutant(name, hint, patches=patches), partial(claim, variant), variant)


QUICK, FRUGALLY = loss_costs_a_few_round_trips, loss_recovery_sends_little
MUTANTS = (
    bug("log never probes", 0, QUICK, "total", (TailProbes, "take_due", probe_never)),
    bug("log probes for ever", 0, FRUGALLY, "total", (TailProbes, "take_due", probe_for_ever)),
    bug(
        "ignores the end of a log", 0, QUICK, "total, multicast",
        (GapRequests, "on_log_end", ignore_the_end),
    ),
    bug(
        "requests what it has", 0, FRUGALLY, "total, servers",
        (GapRequests, "on_log_end", request_at_every_end),
    ),
    bug(
        "requests stay open", 0, QUICK, "total, multicast",
        (OpenRequests, "answered", open_for_ever),
    ),
    bug("publisher waits too long", 0, QUICK, "total", (Run, "__init__", never_overdue)),
    bug(
        "causal node measures nothing", 0, QUICK, "causal",
        (Trees, "_round_trips_to", fixed_round_trips),
    ),
    bug(
        "merged publisher waits for its poll", 0, copies_arrive_within_delta, "merged, 40 ms",
        (sys.modules[MergedPublisher.__module__], "Unanswered", WaitsForThePoll),
    ),
)  # fmt: skip


def first_seed(each: LossMutant, seeds: Iterable[int]) -> int | None:
    """Return the first seed with which the claim of a bug is contradicted."""
    for seed in seeds:
        for lost in (False, True):
            _real(each.variant, seed, lost=lost)
        with planted(each.mutant):
            if each.claim(seed):
                return seed
    return None


@pytest.mark.parametrize("variant", RELIABLE)
def test_loss_costs_a_few_round_trips_at_low_rates(variant: str) -> None:
    assert loss_costs_a_few_round_trips(variant, 1) == ""


def test_copies_of_merged_events_arrive_within_delta() -> None:
    assert copies_arrive_within_delta("merged, 40 ms", 1) == ""


@pytest.mark.parametrize("each", MUTANTS, ids=lambda each: each.name)
def test_planted_bug_contradicts_its_claim(each: LossMutant) -> None:
    assert first_seed(each, (each.hint, *range(SEEDS_MAX))) is not None


def main(names: list[str]) -> None:
    """Print the first seed that shows each bug, or each of the named ones."""
    for each in MUTANTS:
        if not names or each.name in names:
            print(f"{each.name}: {first_seed(each, range(SEEDS_MAX))}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])

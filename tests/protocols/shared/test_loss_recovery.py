"""The claims of loss recovery on links hold, and each planted bug contradicts the claim it names.

`python -m tests.protocols.shared.test_loss_recovery [NAME …]` searches the seeds of the bugs.
"""

import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from unittest import mock

import pytest
from tests.protocols.shared import lossy_links
from tests.protocols.shared.lossy_links import CLAIMS

from ensue.protocols.interface import Send
from ensue.protocols.shared import link as links
from ensue.protocols.shared.link import Linked
from ensue.protocols.shared.link_ends import Outgoing
from ensue.protocols.shared.round_trips import GRANULARITY_NS, RoundTrips

SEEDS_MAX = 40
Claim = Callable[[int], str]

real_acknowledged, real_note, real_timer = (
    Linked._acknowledged,
    Linked._note_arrival,
    Linked.handle_timer,
)
real_retransmit, real_init, real_sample = Linked._retransmit, Outgoing.__init__, RoundTrips.sample


def wait_as_long_again(self: RoundTrips, wait_ns: int) -> int:
    """A repetition waits no longer than the one before."""
    return wait_ns


def wait_twice_as_long_for_this_alone(self: RoundTrips, wait_ns: int) -> int:
    """The next request does not wait longer after a repetition, without a new sample."""
    return min(2 * wait_ns, self._most_ns)


def sample_without_end_of_backoff(self: RoundTrips, round_trip_ns: int) -> None:
    """A sample does not end the backoff."""
    backoff_ns = self._backoff_ns
    real_sample(self, round_trip_ns)
    self._backoff_ns = backoff_ns


def sample_nothing(self: RoundTrips, round_trip_ns: int) -> None:
    """Round trips are not measured."""


def timeout_without_variation(self: RoundTrips) -> int:
    """The time-out does not allow for the variation of round trips."""
    timeout_ns = self._smoothed_ns + GRANULARITY_NS if self._smoothed_ns else self._initial_ns
    return min(max(timeout_ns, self._least_ns, self._backoff_ns), self._most_ns)


def note_copies_too(
    self: Linked[Any], link: Outgoing, number: int, now_ns: int, shortest_ns: int | None
) -> int | None:
    """The round trip is measured from a retransmission, too (Karn)."""
    if number in link.sent:
        link.sent[number] = (link.sent[number][0], True)
    return real_note(self, link, number, now_ns, shortest_ns)


def ignore_gaps(
    self: Linked[Any], peer: str, number: int, early: tuple[int, ...], now_ns: int
) -> None:
    """The report of a gap counts as an acknowledgement alone."""
    real_acknowledged(self, peer, number, (), now_ns)


def acknowledge_and_rest(
    self: Linked[Any], peer: str, number: int, early: tuple[int, ...], now_ns: int
) -> None:
    """After an acknowledgement the timer is not set for the frames behind it."""
    real_acknowledged(self, peer, number, early, now_ns)
    self._out[peer].due_ns = None


def never_probe(self: Linked[Any], *, now_ns: int) -> None:
    """When nothing is heard, nothing is sent."""
    for link in self._out.values():
        if link.due_ns is not None and link.due_ns <= now_ns and not link.arrived:
            link.due_ns = now_ns + links.PROBES * 60_000_000_000
    real_timer(self, now_ns=now_ns)


def retransmit_all(
    self: Linked[Any],
    peer: str,
    link: Outgoing,
    burst: int,
    now_ns: int,
    *,
    before_ns: int | None = None,
) -> None:
    """Frames that have arrived, or are on their way, are retransmitted with lost ones."""
    real_retransmit(self, peer, link, burst, now_ns)


def probe_with_all(
    self: Linked[Any],
    peer: str,
    link: Outgoing,
    burst: int,
    now_ns: int,
    *,
    before_ns: int | None = None,
) -> None:
    """A silent peer is probed with all that it has not acknowledged."""
    if burst == links.PROBES:
        burst = self._config.burst
    real_retransmit(self, peer, link, burst, now_ns, before_ns=before_ns)


def retransmit_overtaken_and_acknowledged(
    self: Linked[Any], peer: str, link: Outgoing, now_ns: int
) -> bool:
    """What a gap report says has arrived is retransmitted, too."""
    if not link.arrived:
        return False
    last = max(link.arrived)
    for number, frame in link.unacknowledged.items():
        if number <= last:
            self._effects.append(Send(peer, frame))
    link.due_ns = now_ns + link.wait_ns
    return True


_SHARED: list[RoundTrips] = []


def share_round_trips(self: Outgoing, round_trips: RoundTrips) -> None:
    """All peers of a node share one estimate."""
    real_init(self, round_trips)
    if not _SHARED:
        _SHARED.append(self.round_trips)
    self.round_trips = _SHARED[0]


class Mutant(NamedTuple):
    """A planted bug, the claim that it contradicts, and the seed that showed it last."""

    name: str
    claim: Claim
    hint: int
    target: object
    attribute: str
    value: object


MUTANTS = (
    Mutant(
        "no backoff", lossy_links.silent_peer_gets_little, 0,
        RoundTrips, "after", wait_as_long_again,
    ),
    Mutant(
        "backoff of one request alone", lossy_links.nothing_is_repeated_in_vain_for_long, 0,
        RoundTrips, "after", wait_twice_as_long_for_this_alone,
    ),
    Mutant(
        "backoff for ever", lossy_links.waits_shrink_when_the_loss_is_over, 0,
        RoundTrips, "sample", sample_without_end_of_backoff,
    ),
    Mutant(
        "measures nothing", lossy_links.tail_loss_costs_a_few_round_trips, 0,
        RoundTrips, "sample", sample_nothing,
    ),
    Mutant(
        "ignores the variation", lossy_links.nothing_is_repeated_in_vain_for_long, 0,
        RoundTrips, "timeout_ns", property(timeout_without_variation),
    ),
    Mutant(
        "measures copies", lossy_links.nothing_is_repeated_in_vain_for_long, 0,
        Linked, "_note_arrival", note_copies_too,
    ),
    Mutant(
        "ignores gap reports", lossy_links.loss_among_others_is_found_by_them, 0,
        Linked, "_acknowledged", ignore_gaps,
    ),
    Mutant(
        "rests after an acknowledgement", lossy_links.every_frame_arrives, 0,
        Linked, "_acknowledged", acknowledge_and_rest,
    ),
    Mutant(
        "never probes", lossy_links.tail_loss_costs_a_few_round_trips, 0,
        Linked, "handle_timer", never_probe,
    ),
    Mutant(
        "probes with everything", lossy_links.silent_peer_gets_little, 0,
        Linked, "_retransmit", probe_with_all,
    ),
    Mutant(
        "retransmits what is on its way", lossy_links.lost_frames_are_repeated_alone, 0,
        Linked, "_retransmit", retransmit_all,
    ),
    Mutant(
        "retransmits what has arrived", lossy_links.lost_frames_are_repeated_alone, 0,
        Linked, "_retransmit_overtaken", retransmit_overtaken_and_acknowledged,
    ),
    Mutant(
        "peers share an estimate", lossy_links.peers_do_not_share_their_round_trips, 0,
        Outgoing, "__init__", share_round_trips,
    ),
)  # fmt: skip


def first_seed(mutant: Mutant, seeds: Iterable[int]) -> int | None:
    """Return the first seed with which the claim of a mutant is contradicted."""
    with mock.patch.object(mutant.target, mutant.attribute, mutant.value):
        for seed in seeds:
            _SHARED.clear()
            if mutant.claim(seed):
                return seed
    return None


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
def test_claim_of_loss_recovery_holds(claim: Claim) -> None:
    assert [found for seed in range(6) if (found := claim(seed))] == []


@pytest.mark.verify
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
def test_claim_of_loss_recovery_holds_for_many_seeds(claim: Claim) -> None:
    assert [found for seed in range(SEEDS_MAX) if (found := claim(seed))] == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_bug_contradicts_its_claim(mutant: Mutant) -> None:
    assert first_seed(mutant, (mutant.hint, *range(SEEDS_MAX))) is not None


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
def test_each_claim_is_contradicted_by_a_planted_bug(claim: Claim) -> None:
    assert any(mutant.claim is claim for mutant in MUTANTS)


def main(names: list[str]) -> None:
    """Print the first seed that shows each mutant, or each of the named ones."""
    for mutant in MUTANTS:
        if not names or mutant.name in names:
            print(f"{mutant.name}: {first_seed(mutant, range(SEEDS_MAX))}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])

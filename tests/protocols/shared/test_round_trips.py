"""Round trips: time-outs as in RFC 6298 and RFC 9002."""

import pytest

from ensue.protocols.shared.round_trips import FIRST_GUESS, RoundTrips

MS = 1_000_000


def measured(*samples_ms: float, least_ms: int = 1, most_ms: int = 1000) -> RoundTrips:
    round_trips = RoundTrips(initial_ns=500 * MS, least_ns=least_ms * MS, most_ns=most_ms * MS)
    for sample_ms in samples_ms:
        round_trips.sample(int(sample_ms * MS))
    return round_trips


def test_first_sample_allows_for_twice_its_length_in_variation() -> None:
    assert measured(6).timeout_ns == 18 * MS


def test_steady_round_trips_shorten_the_timeout_to_their_length_and_a_timer_tick() -> None:
    assert measured(*[6] * 50).timeout_ns == pytest.approx(7 * MS, rel=0.01)


def test_varied_round_trips_keep_the_timeout_above_the_longest() -> None:
    assert measured(*[2, 10] * 50).timeout_ns > 10 * MS


def test_timeout_stays_within_its_bounds() -> None:
    assert measured(*[6] * 50, least_ms=10).timeout_ns == 10 * MS
    assert measured(5000, most_ms=800).timeout_ns == 800 * MS
    assert measured(least_ms=10).timeout_ns == FIRST_GUESS * 10 * MS
    assert measured(least_ms=400).timeout_ns == 500 * MS


def test_timeout_stays_doubled_until_there_is_a_sample() -> None:
    round_trips = measured(*[6] * 50, least_ms=10)
    wait_ns = round_trips.after(round_trips.after(round_trips.timeout_ns))
    assert wait_ns == round_trips.timeout_ns == 40 * MS
    round_trips.sample(6 * MS)
    assert round_trips.timeout_ns == 10 * MS


def test_new_connection_starts_with_the_measured_timeout() -> None:
    round_trips = measured(*[6] * 50, least_ms=10)
    round_trips.after(round_trips.timeout_ns)
    round_trips.reset()
    assert round_trips.timeout_ns == 10 * MS


def test_fixed_timeout_ignores_samples_and_repetitions() -> None:
    round_trips = measured(6, 6, least_ms=0)
    assert round_trips.after(500 * MS) == 1000 * MS
    assert round_trips.timeout_ns == 500 * MS


def test_clock_that_was_set_back_measures_nothing() -> None:
    assert measured(6, -4).timeout_ns == measured(6).timeout_ns

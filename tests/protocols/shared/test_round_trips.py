"""Round trips: time-outs as in RFC 6298 and RFC 9002."""

import pytest

from ensue.protocols.shared.round_trips import FIRST_GUESS, GRANULARITY_NS, RoundTrips

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


def test_timeout_follows_the_weights_of_the_rfc() -> None:
    """Smoothed: 7/8 of the old and 1/8 of the new; deviation: 3/4 and 1/4, from the old mean."""
    assert measured(100, 200).timeout_ns == int((112.5 + 4 * 62.5) * MS)


def test_longest_wait_is_no_shorter_than_the_first() -> None:
    round_trips = measured(least_ms=400, most_ms=100)
    assert round_trips.timeout_ns == 500 * MS
    assert round_trips.after(round_trips.timeout_ns) == 500 * MS


def test_wait_doubles_up_to_the_longest() -> None:
    round_trips = measured(6, most_ms=800)
    assert round_trips.after(300 * MS) == round_trips.timeout_ns == 600 * MS
    assert round_trips.after(600 * MS) == round_trips.timeout_ns == 800 * MS


def test_request_that_waited_less_does_not_end_the_backoff_of_another() -> None:
    round_trips = measured(*[6] * 50)
    round_trips.after(40 * MS)
    round_trips.after(10 * MS)
    assert round_trips.timeout_ns == 80 * MS


def test_overtaken_frame_may_take_an_eighth_longer_than_round_trips() -> None:
    assert measured(*[80] * 100).overtaken_ns == pytest.approx(90 * MS, rel=0.001)
    # The latest one, too: the path may have become longer.
    assert measured(*[80] * 100, 120).overtaken_ns == pytest.approx(135 * MS, rel=0.001)


def test_overtaken_frame_may_take_as_long_as_round_trips_vary() -> None:
    assert measured(*[10, 2] * 50).overtaken_ns > 10 * MS


def test_overtaken_frame_may_take_a_timer_tick_at_least() -> None:
    assert measured(*[0.1] * 100).overtaken_ns == GRANULARITY_NS


def test_overtaken_frame_may_take_the_first_timeout_before_a_sample() -> None:
    assert measured(least_ms=10).overtaken_ns == measured(least_ms=10).timeout_ns

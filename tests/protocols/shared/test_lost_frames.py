"""Where messages get lost: which frames a link retransmits, when, and what it measures."""

from tests.protocols.shared.test_link import End, ends, lossy

from ensue.protocols.interface import Frame
from ensue.protocols.shared.link import EARLY_REPORTED_MAX, LinkAck, LinkGap

MS = 1_000_000


def gaps(frames: list[Frame]) -> list[LinkGap]:
    return [each for each in frames if isinstance(each, LinkGap)]


def wait_ms(left: End, now_ms: int) -> float:
    due_ns = left.link.next_timer_ns()
    assert due_ns is not None
    return due_ns / MS - now_ms


def test_probe_is_no_larger_than_the_burst() -> None:
    left, _ = lossy(burst=1)
    frames = left.say(100, 101, 102, now_ns=1000 * MS)
    assert left.timer(1010 * MS) == frames[:1]


def test_new_connection_gets_everything_and_the_measured_wait() -> None:
    left, _ = lossy()
    frames = left.say(*range(100, 105), now_ns=1000 * MS)
    for now_ms in (1010, 1020, 1040, 1080):
        left.timer(now_ms * MS)
    left.link.repeat(now_ns=1100 * MS)
    assert left.drain() == frames
    assert wait_ms(left, 1100) == 10


def test_report_names_the_latest_early_frames_rising() -> None:
    left, right = lossy()
    _, *early = left.say(*range(100, 102 + EARLY_REPORTED_MAX), now_ns=1000 * MS)
    last = gaps(right.handle(*early[1::2], *early[0::2]))[-1]
    assert len(early) > len(last.early) == EARLY_REPORTED_MAX
    assert list(last.early) == sorted(last.early)
    assert last.early[-1] == left.link._out["right"].next - 1


def test_report_of_frames_that_were_never_sent_is_ignored() -> None:
    left, _ = lossy()
    left.say(100, now_ns=1000 * MS)
    link = left.link._out["right"]
    left.handle(LinkGap(number=link.next - 2, early=(link.next + 7, 5000)), now_ns=1006 * MS)
    assert link.arrived == set()


def test_old_acknowledgement_does_not_put_the_timeout_off() -> None:
    left, _ = lossy()
    left.say(100, now_ns=1000 * MS)
    left.handle(LinkAck(number=1), now_ns=1005 * MS)
    assert wait_ms(left, 1000) == 10


def test_round_trip_of_an_early_frame_is_measured_when_it_is_reported() -> None:
    left, right = lossy()
    lost, *others = left.say(*range(100, 104), now_ns=1000 * MS)
    assert left.handle(*right.handle(*others), now_ns=1006 * MS) == [lost]
    left.handle(*right.handle(lost), now_ns=1500 * MS)
    left.say(104, now_ns=2000 * MS)
    assert wait_ms(left, 2000) == 10


def test_acknowledgement_of_several_frames_measures_the_last_one() -> None:
    left, right = lossy()
    (first,) = left.say(100, now_ns=1000 * MS)
    (last,) = left.say(101, now_ns=1100 * MS)
    *_, both = right.handle(first, last)
    left.handle(both, now_ns=1106 * MS)
    left.say(102, now_ns=2000 * MS)
    assert wait_ms(left, 2000) == 10


def test_timeout_allows_for_acknowledgements_that_are_held_back() -> None:
    left, right = ends(retry_ns=200 * MS, retry_ns_min=10 * MS, acknowledge_ns=20 * MS)
    for now_ms in range(0, 3000, 100):
        right.handle(*left.say(now_ms, now_ns=now_ms * MS), now_ns=(now_ms + 3) * MS)
        left.handle(*right.timer((now_ms + 23) * MS), now_ns=(now_ms + 26) * MS)
    left.say(100, now_ns=5000 * MS)
    timeout_ns = left.link._out["right"].round_trips.timeout_ns
    assert 26 * MS < timeout_ns < 30 * MS
    assert wait_ms(left, 5000) == timeout_ns / MS + 20


def test_one_report_leads_to_no_more_than_a_burst() -> None:
    left, right = lossy(burst=2)
    frames = left.say(*range(100, 110), now_ns=1000 * MS)
    report = gaps(right.handle(*frames[-3:]))[-1]
    assert left.handle(report, now_ns=1006 * MS) == frames[:2]


def test_frame_is_not_overtaken_by_those_sent_before_it_was_sent_again() -> None:
    left, right = lossy()
    lost, *others = left.say(*range(100, 105), now_ns=1000 * MS)
    *_, before, report = gaps(right.handle(*others))
    assert left.handle(before, now_ns=1006 * MS) == [lost]
    assert left.handle(report, now_ns=1007 * MS) == []
    assert wait_ms(left, 1006) == 10


def test_frame_that_was_sent_again_is_taken_for_lost_by_time_alone() -> None:
    """That it was sent again says nothing of how many later ones can overtake it."""
    left, right = lossy()
    lost, *others = left.say(*range(100, 104), now_ns=1000 * MS)
    assert left.handle(*right.handle(*others), now_ns=1006 * MS) == [lost]
    later = left.say(104, now_ns=1008 * MS)
    assert left.handle(*right.handle(*later), now_ns=1012 * MS) == []
    assert 0 < wait_ms(left, 1012) < 2
    assert left.timer(1014 * MS) == [lost]

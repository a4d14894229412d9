"""Numbered links: FIFO and exactly-once despite losses and restarts."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest

from ensue.core.errors import ConfigurationError, RemoteProtocolError
from ensue.core.wire import Codec
from ensue.protocols.interface import Effect, Frame, Persist, Send
from ensue.protocols.shared.link import (
    GROUP_MAX,
    LinkAck,
    LinkConfig,
    LinkData,
    Linked,
    LinkGap,
    LinkState,
    packed,
    unpacked,
)


class Note(Frame, frozen=True, tag=101):
    number: int


class Aside(Frame, frozen=True, tag=102):
    number: int


CODEC = Codec((Note, Aside, LinkData, LinkAck, LinkGap, LinkState))


class Diary:
    """A node that records and persists received frames, and sends what a test asks for."""

    def __init__(self, name: str, records: Mapping[str, bytes]) -> None:
        self.name = name
        self.heard = [
            int(key.removeprefix("heard/")) for key in records if key.startswith("heard/")
        ]
        self.effects: list[Effect] = []
        self.timer_ns: int | None = None
        self.timers = 0

    def say(self, peer: str, *frames: Frame) -> None:
        self.effects += [Send(peer, frame) for frame in frames]

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        assert isinstance(frame, Note | Aside)
        self.heard.append(frame.number)
        self.effects.append(Persist(f"heard/{frame.number}", b""))

    def handle_timer(self, *, now_ns: int) -> None:
        self.timers += 1

    def next_timer_ns(self) -> int | None:
        return self.timer_ns

    def take_effects(self) -> Sequence[Effect]:
        effects, self.effects = self.effects, []
        return effects


class End:
    """One end of a link, with its disk."""

    def __init__(self, name: str, peer: str, **config: Any) -> None:
        self.name = name
        self.peer = peer
        self.config = LinkConfig(**config)
        self.disk: dict[str, bytes] = {}
        self.restart()

    def restart(self, now_ns: int = 0, *, compares: bool = False) -> None:
        self.link = Linked(
            lambda own: Diary(self.name, own),
            peers=[self.peer],
            codec=CODEC,
            unnumbered=(Aside,),
            config=self.config,
            records=dict(self.disk),
            compares=compares,
            now_ns=now_ns,
        )

    @property
    def diary(self) -> Diary:
        assert isinstance(self.link.inner, Diary)
        return self.link.inner

    def drain(self) -> list[Frame]:
        """Persist, then return what is sent to the peer."""
        frames: list[Frame] = []
        for effect in self.link.take_effects():
            if isinstance(effect, Persist):
                if effect.value is None:
                    self.disk.pop(effect.key, None)
                else:
                    self.disk[effect.key] = effect.value
            elif isinstance(effect, Send):
                assert effect.peer == self.peer
                frames.append(effect.frame)
        return frames

    def say(self, *numbers: int, now_ns: int = 0) -> list[Frame]:
        self.diary.say(self.peer, *(Note(number=number) for number in numbers))
        self.link.receive(LinkAck(number=0), source=self.peer, now_ns=now_ns)  # Any step will do.
        return self.drain()

    def handle(self, *frames: Frame, now_ns: int = 0) -> list[Frame]:
        for frame in frames:
            self.link.receive(frame, source=self.peer, now_ns=now_ns)
        return self.drain()

    def timer(self, now_ns: int) -> list[Frame]:
        self.link.handle_timer(now_ns=now_ns)
        return self.drain()


def ends(**config: Any) -> tuple[End, End]:
    return End("left", "right", **config), End("right", "left", **config)


def numbers(frames: list[Frame]) -> list[int]:
    return [frame.number for frame in frames if isinstance(frame, LinkData | LinkAck)]


def test_frames_arrive_once_each_and_in_order() -> None:
    left, right = ends()
    one, two, three = left.say(10, 20, 30)
    assert right.handle(two, three, two) == []
    assert numbers(right.handle(one)) == [3]
    assert right.diary.heard == [10, 20, 30]
    assert numbers(right.handle(one, three)) == [3, 3]
    assert right.diary.heard == [10, 20, 30]


def test_frames_beyond_a_full_batch_are_dropped_and_retransmitted() -> None:
    left, right = ends(batch_bytes_max=len("heard/10heard/20"))
    one, two, three, four = left.say(10, 20, 30, 40)
    right.handle(two, three)
    # Two of the three frames fill the batch: the last one must be retransmitted.
    assert numbers(right.handle(one, four)) == [2]
    assert right.diary.heard == [10, 20]
    assert numbers(right.handle(three)) == [3]
    assert numbers(right.handle(four)) == [4]
    assert right.diary.heard == [10, 20, 30, 40]


def test_client_frames_are_dropped_while_the_batch_is_full() -> None:
    left, right = ends(batch_bytes_max=len("heard/10heard/20"))
    for frame in left.say(10, 20):
        right.link.receive(frame, source="left", now_ns=0)
    right.link.receive(Aside(number=30), source="client", now_ns=0)
    assert right.diary.heard == [10, 20]
    right.drain()
    right.link.receive(Aside(number=30), source="client", now_ns=0)
    assert right.diary.heard == [10, 20, 30]


def test_frame_is_retransmitted_until_acknowledged() -> None:
    left, right = ends(retry_ns=100)
    first = left.say(10)
    assert left.link.next_timer_ns() == 100
    assert left.timer(99) == []
    assert left.timer(100) == first
    assert left.timer(300) == first
    assert left.handle(*right.handle(*first)) == []
    assert left.link.next_timer_ns() is None


def test_waits_double_up_to_a_bound_and_start_small_after_progress() -> None:
    left, _ = ends(retry_ns=100, retry_ns_max=300)
    left.say(10, 20)
    dues = []
    for _ in range(4):
        due = left.link.next_timer_ns()
        assert due is not None
        dues.append(due)
        left.timer(due)
    assert dues == [100, 200, 400, 700]
    left.handle(LinkAck(number=1), now_ns=1000)
    assert left.link.next_timer_ns() == 1100


def test_lost_frames_are_retransmitted_in_bursts() -> None:
    left, right = ends(burst=2, retry_ns=100)
    frames = left.say(1, 2, 3, 4, 5)
    assert left.timer(100) == frames[:2]
    acknowledgements = right.handle(*frames[:2])
    assert left.handle(acknowledgements[-1]) == frames[2:4]
    assert left.handle(*right.handle(*frames[2:4])[-1:]) == frames[4:]


def test_duplicate_acknowledgement_changes_nothing() -> None:
    left, right = ends()
    (frame,) = left.say(10)
    (acknowledgement,) = right.handle(frame)
    left.handle(acknowledgement, acknowledgement, LinkAck(number=0))
    assert numbers(left.say(20)) == [2]


def test_early_frames_have_a_limit() -> None:
    left, right = ends(early_max=2)
    frames = left.say(1, 2, 3, 4, 5)
    right.handle(frames[1], frames[2], frames[3], frames[4])
    assert numbers(right.handle(frames[0])) == [3]
    right.handle(frames[3], frames[4])
    assert right.diary.heard == [1, 2, 3, 4, 5]


def test_client_frames_are_dropped_until_the_backlog_shrinks() -> None:
    left, right = ends(unacknowledged_max=2)
    frames = left.say(1, 2)
    left.link.receive(Note(number=77), source="client", now_ns=0)
    assert left.diary.heard == []
    left.handle(*right.say(5))
    assert left.diary.heard == [5]  # Linked peers are still served.
    left.handle(*right.handle(*frames))
    left.link.receive(Note(number=77), source="client", now_ns=0)
    assert left.diary.heard == [5, 77]


def test_unnumbered_frames_are_sent_unchanged() -> None:
    left, right = ends()
    left.diary.say("right", Aside(number=9))
    assert left.handle(LinkAck(number=0)) == [Aside(number=9)]
    right.handle(Aside(number=9))
    assert right.diary.heard == [9]


def test_frames_to_unlinked_peers_are_sent_unchanged() -> None:
    left, _ = ends()
    left.diary.say("client", Note(number=9))
    left.link.handle_timer(now_ns=0)
    assert list(left.link.take_effects()) == [Send("client", Note(number=9))]


def test_numbered_frame_from_an_unlinked_peer_is_not_unwrapped() -> None:
    _, right = ends()
    with pytest.raises(AssertionError):  # The node gets it unwrapped, and does not know it.
        right.link.receive(LinkData(number=1, payload=b""), source="stranger", now_ns=0)
    assert right.disk == {}


def test_undecodable_payload_counts_as_lost() -> None:
    left, right = ends()
    one, two = left.say(10, 20)
    assert numbers(right.handle(LinkData(number=1, payload=b"junk"))) == [0]
    assert right.diary.heard == []
    assert right.link.undecodable_count == 1
    assert numbers(right.handle(one, two)) == [1, 2]
    assert right.diary.heard == [10, 20]


def test_undecodable_early_payload_is_not_acknowledged() -> None:
    left, right = ends()
    one, two, three = left.say(10, 20, 30)
    right.handle(LinkData(number=2, payload=b"junk"), three)
    assert numbers(right.handle(one)) == [1]
    right.restart()
    assert right.diary.heard == [10]
    assert numbers(right.handle(two, three)) == [2, 3]
    assert right.diary.heard == [10, 20, 30]


def test_timer_of_the_wrapped_node_fires() -> None:
    left, _ = ends(retry_ns=100)
    left.diary.timer_ns = 50
    assert left.link.next_timer_ns() == 50
    left.timer(50)
    assert left.diary.timers == 1
    left.say(1)
    left.diary.timer_ns = 500
    assert left.link.next_timer_ns() == 100


def test_a_frame_is_acknowledged_together_with_its_effects() -> None:
    left, right = ends()
    (frame,) = left.say(10)
    right.link.receive(frame, source="left", now_ns=0)
    kinds = [
        effect.key if isinstance(effect, Persist) else type(effect)
        for effect in right.link.take_effects()
    ]
    assert {"heard/10", "link/in/left", Send} == set(kinds)


def test_restarted_sender_retransmits_unacknowledged_frames() -> None:
    left, right = ends()
    one, _two = left.say(10, 20)
    left.handle(*right.handle(one))
    left.restart(now_ns=1000)
    assert left.link.next_timer_ns() == 1000
    right.handle(*left.timer(1000))
    assert right.diary.heard == [10, 20]
    assert numbers(left.say(30)) == [3]


def test_restarted_receiver_remembers_received_numbers() -> None:
    left, right = ends()
    frames = left.say(10, 20)
    right.handle(*frames)
    right.restart()
    assert right.diary.heard == [10, 20]
    assert numbers(right.handle(*frames)) == [2, 2]
    assert right.diary.heard == [10, 20]


def test_an_acknowledged_frame_leaves_no_record() -> None:
    left, right = ends()
    left.handle(*right.handle(*left.say(10, 20)))
    assert set(left.disk) == {"link/next/right"}


def test_non_durable_link_persists_nothing() -> None:
    link = Linked(lambda own: Diary("left", own), peers=["right"], codec=CODEC, durable=False)
    assert isinstance(link.inner, Diary)
    link.inner.say("right", Note(number=1))
    link.handle_timer(now_ns=0)
    assert not [each for each in link.take_effects() if isinstance(each, Persist)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    "config", [{}, {"acknowledge_ns": 5, "group_bytes": 60}], ids=["single", "grouped"]
)
def test_frames_arrive_once_despite_losses_duplicates_and_restarts(
    config: dict[str, int], seed: int
) -> None:
    random = Random(seed)
    left, right = ends(retry_ns=10, retry_ns_max=40, burst=3, early_max=3, **config)
    to_left: list[Frame] = []
    to_right: list[Frame] = []
    now_ns, said = 0, 0
    while said < 40 or right.diary.heard != list(range(40)):
        now_ns += 1
        assert now_ns < 20_000
        if said < 40 and random.random() < 0.3:
            upto = min(40, said + (random.randint(1, 8) if config else 1))
            to_right += left.say(*range(said, upto), now_ns=now_ns)
            said = upto
        for end, inbox, outbox in ((left, to_left, to_right), (right, to_right, to_left)):
            if inbox and random.random() < 0.7:
                frame = inbox[random.randrange(len(inbox))]
                if random.random() < 0.8:
                    inbox.remove(frame)
                if random.random() < 0.8:
                    outbox.extend(end.handle(frame, now_ns=now_ns))
            due = end.link.next_timer_ns()
            if due is not None and due <= now_ns:
                outbox.extend(end.timer(now_ns))
            if random.random() < 0.02:
                end.restart(now_ns)
    assert right.diary.heard == list(range(40))


@pytest.mark.parametrize(
    "field", ["retry_ns", "retry_ns_max", "burst", "unacknowledged_max", "early_max"]
)
def test_a_limit_below_one_is_refused_by_name(field: str) -> None:
    with pytest.raises(ConfigurationError, match=f"LinkConfig.{field} must be at least 1"):
        LinkConfig(**{field: 0})


def test_acknowledgement_waits_for_a_frame_but_not_forever() -> None:
    left, right = ends(acknowledge_ns=100, retry_ns=1000)
    one, two, three = left.say(10, 20, 30)
    assert right.handle(one, two, now_ns=5) == []
    assert right.link.next_timer_ns() == 105
    assert right.timer(104) == []
    assert right.timer(105) == [LinkAck(number=2)]
    assert right.link.next_timer_ns() is None
    right.handle(three, now_ns=200)
    data, acknowledgement = right.say(40, now_ns=210)
    assert isinstance(data, LinkData)
    assert acknowledgement == LinkAck(number=3)
    assert right.link.next_timer_ns() == 1210, "waits only for sent frames"


def test_frames_that_arrive_together_are_acknowledged_together() -> None:
    left, right = ends(acknowledge_ns=100, retry_ns=1000, burst=8)
    frames = left.say(*range(1, 8))
    assert right.handle(*frames[:3]) == []
    assert right.handle(*frames[3:]) == [LinkAck(number=4)], "half a burst is acknowledged at once"


def test_duplicate_is_acknowledged_at_once() -> None:
    left, right = ends(acknowledge_ns=100, retry_ns=1000)
    (one,) = left.say(10)
    assert right.handle(one) == []
    assert right.handle(one) == [LinkAck(number=1)]
    assert right.diary.heard == [10]


def test_acknowledged_frames_are_removed_with_the_next_record() -> None:
    left, right = ends(acknowledge_ns=100, retry_ns=1000)
    right.handle(*left.say(10, 20))
    left.link.receive(LinkAck(number=2), source="right", now_ns=0)
    assert left.link.take_effects() == [], "causes no sync"
    assert left.link.next_timer_ns() is None
    assert {key for key in left.disk if key.startswith("link/out/")} == {
        "link/out/1/right",
        "link/out/2/right",
    }
    left.say(30)
    assert {key for key in left.disk if key.startswith("link/out/")} == {"link/out/3/right"}


def test_retransmission_of_acknowledged_frames_after_a_crash_changes_nothing() -> None:
    left, right = ends(acknowledge_ns=100, retry_ns=1000)
    right.handle(*left.say(10, 20), now_ns=0)
    left.handle(*right.timer(100))
    left.restart(now_ns=200)
    again = left.timer(200)
    assert numbers(again) == [1, 2]
    left.handle(*right.handle(*again, now_ns=200))
    assert right.diary.heard == [10, 20]
    assert left.link.next_timer_ns() is None
    (three,) = left.say(30)
    right.handle(three)
    assert right.diary.heard == [10, 20, 30]


def test_many_acknowledged_frames_are_removed_without_waiting() -> None:
    left, right = ends(acknowledge_ns=100, retry_ns=1000, unacknowledged_max=2)
    right.handle(*left.say(10, 20))
    left.handle(LinkAck(number=1))
    assert "link/out/1/right" in left.disk
    left.handle(LinkAck(number=2))
    assert not any(key.startswith("link/out/") for key in left.disk)


def test_forgotten_peer_is_acknowledged_first() -> None:
    left, right = ends(acknowledge_ns=100, retry_ns=1000)
    assert right.handle(*left.say(10)) == []
    right.link.unlink("left")
    assert right.drain() == [LinkAck(number=1)]
    assert right.link.next_timer_ns() is None


@pytest.mark.parametrize("acknowledge_ns", [-1, 100, 101])
def test_acknowledgement_is_sent_before_the_retransmission_is_due(acknowledge_ns: int) -> None:
    with pytest.raises(ConfigurationError, match=r"acknowledge_ns must be .* below retry_ns"):
        LinkConfig(acknowledge_ns=acknowledge_ns, retry_ns=100)


def test_frames_to_a_peer_in_one_batch_share_a_number() -> None:
    left, right = ends(group_bytes=1000)
    group = left.say(10, 20, 30)
    assert numbers(group) == [1]
    (single,) = left.say(40)
    assert isinstance(single, LinkData)
    assert single.payload == CODEC.encode(Note(number=40)), "a single frame is not wrapped"
    assert numbers(right.handle(single)) == []
    assert numbers(right.handle(*group)) == [2]
    assert right.diary.heard == [10, 20, 30, 40]
    left.restart()
    assert left.timer(0) == [*group, single], "a group is persisted as one"
    left.handle(LinkAck(number=2))
    assert left.link.next_timer_ns() is None


def test_group_is_retransmitted_until_acknowledged_and_received_once() -> None:
    left, right = ends(acknowledge_ns=50, retry_ns=100, group_bytes=1000)
    lost = left.say(10, 20)
    assert left.link.next_timer_ns() == 100
    assert left.timer(100) == lost
    assert right.handle(*lost, now_ns=110) == []
    assert right.timer(160) == [LinkAck(number=1)]
    assert left.timer(200) == lost, "the acknowledgement was lost"
    assert right.handle(*lost, now_ns=210) == [LinkAck(number=1)]
    assert right.diary.heard == [10, 20]
    left.handle(LinkAck(number=1))
    assert left.link.next_timer_ns() is None


def test_acknowledgement_travels_with_a_group() -> None:
    left, right = ends(acknowledge_ns=50, retry_ns=100, group_bytes=1000)
    assert right.handle(*left.say(10, 20)) == []
    group, acknowledgement = right.say(30, 40)
    assert isinstance(group, LinkData)
    assert acknowledgement == LinkAck(number=1)


def test_group_is_bounded_by_bytes_unless_it_is_one_frame() -> None:
    size = len(CODEC.encode(Note(number=10)))
    left, right = ends(group_bytes=2 * size)
    frames = left.say(10, 20, 30, 40, 50)
    assert [len(unpacked(frame.payload)) for frame in frames if isinstance(frame, LinkData)] == [
        2,
        2,
        1,
    ]
    right.handle(*frames)
    assert right.diary.heard == [10, 20, 30, 40, 50]
    small, _ = ends(group_bytes=2)
    assert len(small.say(10, 20)) == 2


def test_group_is_bounded_by_frames() -> None:
    left, right = ends(group_bytes=10**6)
    frames = left.say(*range(GROUP_MAX + 1))
    assert len(frames) == 2
    right.handle(*frames)
    assert right.diary.heard == list(range(GROUP_MAX + 1))


def test_unnumbered_frames_do_not_overtake_earlier_frames() -> None:
    left, _ = ends(group_bytes=1000)
    left.diary.say("right", Note(number=10), Aside(number=20), Note(number=30))
    first, aside, last = left.handle(LinkAck(number=0))
    assert numbers([first, last]) == [1, 2]
    assert aside == Aside(number=20)


def test_group_with_an_undecodable_frame_counts_as_lost() -> None:
    left, right = ends(group_bytes=1000)
    note = CODEC.encode(Note(number=10))
    assert right.handle(LinkData(number=1, payload=packed([note, b"\x02junk"]))) == [
        LinkAck(number=0)
    ]
    assert right.link.undecodable_count == 1
    assert right.diary.heard == []
    right.handle(*left.say(10, 20))
    assert right.diary.heard == [10, 20]


@pytest.mark.parametrize(
    "payload",
    [
        b"\x00",
        b"\x00junk",
        b"\x00\x90",
        b"\x00\x91\xc4\x01x",
        b"\x00\x91\x05",
        packed([b"x"] * (GROUP_MAX + 1)),
    ],
)
def test_malformed_group_is_refused(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=r"numbered frames can't|frames under one number"):
        unpacked(payload, "somebody")


def test_forgotten_peer_gets_no_pending_frames() -> None:
    left, _ = ends(group_bytes=1000)
    left.diary.say("right", Note(number=10))
    left.link.receive(LinkAck(number=0), source="right", now_ns=0)
    left.link.unlink("right")
    assert left.drain() == []


# -- Where messages get lost -----------------------------------------------------------------------

MS = 1_000_000


def lossy(**config: Any) -> tuple[End, End]:
    """Return two ends whose round trips took 6 ms so far."""
    left, right = ends(retry_ns=200 * MS, retry_ns_min=10 * MS, **config)
    for number in range(50):
        frames = left.say(number, now_ns=6 * MS * number)
        left.handle(*right.handle(*frames), now_ns=6 * MS * (number + 1))
    return left, right


def test_timeout_follows_the_round_trips() -> None:
    left, _ = lossy()
    (frame,) = left.say(100, now_ns=1000 * MS)
    assert left.link.next_timer_ns() == 1010 * MS
    assert left.timer(1010 * MS) == [frame]
    assert left.link.next_timer_ns() == 1020 * MS
    assert left.timer(1020 * MS) == [frame]
    assert left.link.next_timer_ns() == 1040 * MS


def test_frame_that_three_later_ones_overtook_is_retransmitted_at_once() -> None:
    left, right = lossy()
    lost, *others = left.say(100, 101, 102, 103, now_ns=1000 * MS)
    reports = right.handle(*others, now_ns=1003 * MS)
    assert [len(each.early) for each in reports if isinstance(each, LinkGap)] == [1, 2, 3]
    assert left.handle(*reports, now_ns=1006 * MS) == [lost]
    assert left.handle(reports[-1], now_ns=1006 * MS) == []
    right.handle(lost, now_ns=1009 * MS)
    assert right.diary.heard[-4:] == [100, 101, 102, 103]


def test_frame_that_one_later_one_overtook_is_retransmitted_after_a_round_trip() -> None:
    left, right = lossy()
    lost, other = left.say(100, 101, now_ns=1000 * MS)
    assert left.handle(*right.handle(other, now_ns=1003 * MS), now_ns=1006 * MS) == []
    due_ns = left.link.next_timer_ns()
    assert due_ns is not None
    assert 1006 * MS < due_ns < 1010 * MS
    assert left.timer(due_ns) == [lost]


def test_frames_that_overtake_each_other_are_not_taken_for_lost() -> None:
    left, right = lossy()
    for now_ms in (1000, 1020):
        late, *others = left.say(now_ms, *range(3), now_ns=now_ms * MS)
        again = left.handle(*right.handle(*others, now_ns=now_ms * MS), now_ns=(now_ms + 5) * MS)
        assert again == ([late] if now_ms == 1000 else [])
        left.handle(*right.handle(late, now_ns=now_ms * MS), now_ns=(now_ms + 6) * MS)
        # The link learns from a frame that arrives late, but was sent once.
        early = left.say(1, 2, now_ns=(now_ms + 7) * MS)
        left.handle(*right.handle(early[1], now_ns=0), now_ns=(now_ms + 12) * MS)
        left.handle(*right.handle(early[0], now_ns=0), now_ns=(now_ms + 13) * MS)


def test_silent_peer_is_probed_and_gets_the_rest_once_it_answers() -> None:
    left, right = lossy()
    frames = left.say(*range(100, 110), now_ns=1000 * MS)
    assert left.timer(1010 * MS) == frames[:2]
    assert left.handle(*right.handle(*frames[:2]), now_ns=1016 * MS) == frames[2:]


def test_frame_on_its_way_is_not_retransmitted_with_lost_ones() -> None:
    left, right = lossy()
    frames = left.say(*range(100, 104), now_ns=1000 * MS)
    left.timer(1010 * MS)
    left.say(104, now_ns=1015 * MS)
    assert left.handle(*right.handle(*frames[:2]), now_ns=1016 * MS) == frames[2:]


def test_peer_that_lost_early_frames_gets_them_again() -> None:
    left, right = lossy()
    first, second, third = left.say(100, 101, 102, now_ns=1000 * MS)
    left.handle(*right.handle(second, third, now_ns=1003 * MS), now_ns=1006 * MS)
    right.restart()
    acknowledgement = right.handle(first)
    assert left.handle(*acknowledgement, now_ns=1030 * MS) == [second, third]


def test_answer_to_a_repeated_frame_is_no_sample() -> None:
    left, right = lossy()
    (frame,) = left.say(100, now_ns=1000 * MS)
    left.timer(1010 * MS)
    left.handle(*right.handle(frame), now_ns=1011 * MS)
    left.say(101, now_ns=2000 * MS)
    assert left.link.next_timer_ns() == 2020 * MS


@pytest.mark.parametrize("retry_ns_min", [-1, 101])
def test_shortest_wait_is_refused_beyond_the_first(retry_ns_min: int) -> None:
    with pytest.raises(ConfigurationError, match="retry_ns_min must be between 0 and retry_ns"):
        LinkConfig(retry_ns=100, retry_ns_min=retry_ns_min)


def compared(left: End, right: End) -> None:
    """Let two ends exchange their state, and what follows from it."""
    for _ in range(3):
        to_right, to_left = left.timer(now_ns=1), right.timer(now_ns=1)
        while to_right or to_left:
            to_right, to_left = left.handle(*to_left), right.handle(*to_right)


def test_ends_that_compare_keep_what_was_under_way() -> None:
    left, right = ends()
    one, two, three = left.say(1, 2, 3)
    right.handle(one, two)  # The acknowledgements are lost.
    right.say(7)
    left.restart(compares=True)
    right.restart(compares=True)
    assert left.handle(two, three) == []  # Nothing before the numbers are known.
    compared(left, right)
    assert (sorted(right.diary.heard), left.diary.heard) == ([1, 2, 3], [7])
    assert left.link.under_way_count == right.link.under_way_count == 0
    right.handle(*left.say(4))
    assert right.diary.heard[-1] == 4


def test_frames_of_an_end_that_compares_wait_for_the_numbers() -> None:
    left, right = ends()
    right.handle(*left.say(1))
    left.restart(compares=True)
    left.diary.say("right", Note(number=2), Aside(number=3))
    assert [type(each) for each in left.timer(now_ns=0)] == [LinkState, Aside]
    assert left.timer(now_ns=1) == []
    assert left.link.next_timer_ns() == left.config.retry_ns
    assert numbers(left.handle(*right.handle(*left.timer(now_ns=left.config.retry_ns)))) == [2]


@pytest.mark.parametrize("rolled_back", ["left", "right"])
@pytest.mark.parametrize("empty", [True, False])
def test_end_that_is_behind_goes_on_with_the_numbers_of_the_other(
    rolled_back: str, empty: bool
) -> None:
    left, right = ends()
    right.handle(*left.say(1))
    older = {"left": dict(left.disk), "right": dict(right.disk)}
    for number in (2, 3, 4):
        left.handle(*right.handle(*left.say(number)))
    left.say(5)  # Lost.
    behind = left if rolled_back == "left" else right
    behind.disk = {} if empty else older[rolled_back]
    left.restart(compares=True)
    right.restart(compares=True)
    compared(left, right)
    assert left.link.under_way_count == 0
    left.handle(*right.handle(*left.say(6)))
    assert right.diary.heard[-1] == 6
    assert left.link.under_way_count == 0


def test_end_that_lost_nothing_answers_one_that_compares() -> None:
    left, right = ends()
    left.handle(*right.handle(*left.say(1, 2)))
    right.disk = {}
    right.restart(compares=True)
    compared(left, right)
    left.handle(*right.handle(*left.say(3)))
    assert right.diary.heard == [3]


@pytest.mark.parametrize("compares", [False, True])
@pytest.mark.parametrize("group_bytes", [1, 1000])
def test_frames_that_wait_for_the_numbers_survive_a_crash(compares: bool, group_bytes: int) -> None:
    left, right = ends(group_bytes=group_bytes)
    right.handle(*left.say(*range(1, 3)))
    left.restart(compares=True)
    left.say(*range(3, 8))
    left.say(*range(8, 15))
    left.restart(compares=compares)
    left.say(15)
    compared(left, right)
    right.handle(*left.timer(left.config.retry_ns_max))
    assert right.diary.heard == list(range(1, 16))
    assert not any(key.startswith("link/wait/") for key in left.disk)


def test_frames_that_wait_for_the_numbers_go_before_later_ones() -> None:
    left, right = ends()
    left.restart(compares=True)
    left.say(1)
    left.link.receive(LinkState(first=1, next=1, expected=1), source="right", now_ns=0)
    right.handle(*left.say(2))
    assert right.diary.heard == [1, 2]


def test_frames_that_wait_for_the_numbers_are_forgotten_with_their_peer() -> None:
    left, _ = ends()
    left.restart(compares=True)
    left.say(1, 2)
    left.link.unlink("right")
    left.drain()
    assert left.disk == {}


def test_end_whose_frames_wait_for_the_numbers_takes_no_more_than_it_can_hold() -> None:
    linked = Linked(
        lambda own: Diary("here", own),
        peers=["near", "far"],
        codec=CODEC,
        config=LinkConfig(unacknowledged_max=4),
        compares=True,
    )
    diary = linked.inner
    linked.receive(LinkState(first=1, next=1, expected=1), source="near", now_ns=0)
    for number in range(1, 10):
        linked.receive(
            LinkData(number=number, payload=CODEC.encode(Note(number=number))),
            source="near",
            now_ns=0,
        )
        linked.receive(Note(number=100 + number), source="client", now_ns=0)
        diary.say("far", Note(number=number))
        linked.take_effects()
    assert diary.heard == [1, 101, 2, 102, 3, 103, 4, 104]
    linked.receive(LinkState(first=1, next=1, expected=1), source="far", now_ns=0)
    assert linked.under_way_count == 9
    linked.receive(LinkAck(number=9), source="far", now_ns=0)
    linked.receive(
        LinkData(number=5, payload=CODEC.encode(Note(number=5))), source="near", now_ns=0
    )
    assert diary.heard[-1] == 5


def test_peers_are_not_heard_while_the_node_can_hear_none() -> None:
    left, right = ends()
    can: list[bool] = []
    left.link.hears = lambda node: bool(can)
    (frame,) = right.say(1)
    left.say(2)
    assert left.handle(frame) == []
    left.handle(LinkAck(number=1))
    assert (left.diary.heard, left.link.under_way_count) == ([], 0)
    can.append(True)
    assert left.timer(1) == [LinkState(first=2, next=2, expected=1)]
    right.handle(LinkState(first=2, next=2, expected=1), now_ns=1)
    assert right.timer(1) == [frame]  # Without a wait.
    left.handle(frame)
    assert left.diary.heard == [1]
    assert left.timer(2) == []

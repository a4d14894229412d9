"""Numbered links over channels that lose and delay, and what loss recovery claims of them.

A bench has one sender with links to some peers, each over its own channel, and nothing else: what
goes wrong here is loss recovery. Everything random comes from one seed. A claim plays a bench and
returns what contradicts it, or an empty string.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

from tests.protocols.shared.test_link import CODEC, Diary, Note

from ensue.protocols.interface import Frame, Send
from ensue.protocols.shared.link import LinkConfig, LinkData, Linked

__all__ = ["CLAIMS", "Bench", "Channel"]

MS = 1_000_000
SECOND = 1_000 * MS
CONFIG = LinkConfig(retry_ns_min=10 * MS)
STUCK_NS = 60 * SECOND


class Channel(NamedTuple):
    """How messages travel between the sender and a peer, both ways."""

    least_ns: int
    most_ns: int
    loss: float = 0.0


NEAR = Channel(1 * MS, 5 * MS)
FAR = Channel(140 * MS, 160 * MS)
VARIED = Channel(20 * MS, 150 * MS)
DEAD = Channel(MS, MS, loss=1.0)


class Bench:
    """A sender and its peers; frames are spoken at given times."""

    def __init__(self, seed: int, **channels: Channel) -> None:
        self._random = Random(f"lossy-links/{seed}")
        self._channels = channels
        self._sender = Linked(
            lambda own: Diary("sender", own), peers=channels, codec=CODEC, config=CONFIG
        )
        self._peers = {
            name: Linked(
                lambda own, name=name: Diary(name, own),  # type: ignore[misc]
                peers=["sender"],
                codec=CODEC,
                config=CONFIG,
            )
            for name in channels
        }
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.now_ns = 0
        self.spoken: dict[int, int] = {}
        """By note: when it was spoken."""
        self.took: dict[str, list[int]] = {name: [] for name in channels}
        """By peer: how long its notes took."""
        self.sent: dict[str, list[int]] = {name: [] for name in channels}
        """By peer: when frames with a number were sent."""
        self.copies: dict[str, int] = dict.fromkeys(channels, 0)
        """By peer: how many frames arrived that had arrived before."""
        self._arrived: set[tuple[str, int]] = set()

    def say(self, peer: str, at_ns: int, count: int = 1) -> None:
        """Speak some notes at a time."""

        def speak() -> None:
            for _ in range(count):
                number = len(self.spoken)
                self.spoken[number] = self.now_ns
                diary = self._sender.inner
                diary.say(peer, Note(number=number))
            self._sender.advance(self.now_ns)
            self._drain("sender", self._sender)

        self._at(at_ns, speak)

    def run(self) -> "Bench":
        """Run until nothing is left to do, or the links are stuck."""
        ends = {"sender": self._sender, **self._peers}
        while self.now_ns < STUCK_NS:
            dues = [(due, name) for name, each in ends.items() if (due := each.next_timer_ns())]
            timer = min(dues, default=None)
            if self._queue and (timer is None or self._queue[0][0] <= timer[0]):
                self.now_ns, _, step = heappop(self._queue)
                step()
            elif timer is not None and timer[0] < STUCK_NS:
                self.now_ns = max(self.now_ns, timer[0])
                ends[timer[1]].handle_timer(now_ns=self.now_ns)
                self._drain(timer[1], ends[timer[1]])
            else:
                break
        return self

    def share(self, peer: str, share: float) -> float:
        """Return how many milliseconds a share of the notes took at most; those lost take ever."""
        took = sorted(self.took[peer])
        return took[int(share * (len(took) - 1))] / MS if took else float("inf")

    @property
    def missing(self) -> int:
        """How many notes never arrived."""
        return len(self.spoken) - sum(map(len, self.took.values()))

    def _at(self, at_ns: int, step: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._queue, (at_ns, self._count, step))

    def _drain(self, name: str, end: Linked[Diary]) -> None:
        for effect in end.take_effects():
            if not isinstance(effect, Send):
                continue
            peer = effect.peer if name == "sender" else name
            if isinstance(effect.frame, LinkData):
                self.sent[peer].append(self.now_ns)
            channel = self._channels[peer]
            delay_ns = self._random.randint(channel.least_ns, channel.most_ns)
            if self._random.random() >= channel.loss:
                self._at(self.now_ns + delay_ns, self._arrival(name, effect.peer, effect.frame))

    def _arrival(self, source: str, target: str, frame: Frame) -> Callable[[], None]:
        def arrive() -> None:
            end = self._sender if target == "sender" else self._peers[target]
            if isinstance(frame, LinkData):
                self.copies[target] += (target, frame.number) in self._arrived
                self._arrived.add((target, frame.number))
            heard = len(end.inner.heard)
            end.receive(frame, source=source, now_ns=self.now_ns)
            for number in end.inner.heard[heard:]:
                self.took[target].append(self.now_ns - self.spoken[number])
            self._drain(target, end)

        return arrive


def _stream(bench: Bench, peer: str, count: int, every_ns: int, burst: int = 1) -> None:
    for number in range(count):
        bench.say(peer, (number + 1) * every_ns, burst)


def _lossy(channel: Channel, loss: float = 0.02) -> Channel:
    return channel._replace(loss=loss)


# -- Claims ----------------------------------------------------------------------------------------


def every_frame_arrives(seed: int) -> str:
    """Whatever is lost, every frame arrives in the end."""
    bench = Bench(seed, peer=_lossy(NEAR, 0.3))
    _stream(bench, "peer", 60, 200 * MS, burst=3)
    bench.run()
    return f"{bench.missing} frames never arrived" if bench.missing else ""


def tail_loss_costs_a_few_round_trips(seed: int) -> str:
    """A frame that no later one follows arrives soon: 99 % within 5 times of those without loss."""
    bench = Bench(seed, peer=_lossy(NEAR))
    _stream(bench, "peer", 200, 200 * MS)
    took = bench.run().share("peer", 0.99)
    return "" if took <= 5 * 5 and not bench.missing else f"99 % took {took:.1f} ms"


def loss_among_others_is_found_by_them(seed: int) -> str:
    """A lost frame that later ones overtake is sent again before the time-out."""
    bench = Bench(seed, peer=_lossy(Channel(50 * MS, 51 * MS)))
    _stream(bench, "peer", 600, 10 * MS)
    took = bench.run().share("peer", 0.97)
    # A round trip and three frames after it was sent; the time-out ends a round trip later.
    return "" if took <= 200 else f"97 % took {took:.1f} ms"


def nothing_is_repeated_in_vain_for_long(seed: int) -> str:
    """On slow links that lose nothing, only the first frames are repeated."""
    for channel in (FAR, VARIED):
        bench = Bench(seed, peer=channel)
        _stream(bench, "peer", 100, 400 * MS)
        if (copies := bench.run().copies["peer"]) > 12:
            return f"{copies} of 100 frames arrived again, {channel}"
    return ""


def lost_frames_are_repeated_alone(seed: int) -> str:
    """Where bursts lose frames, the frames that have arrived are not sent again with them."""
    bench = Bench(seed, peer=_lossy(NEAR, 0.1))
    _stream(bench, "peer", 40, 300 * MS, burst=20)
    copies = bench.run().copies["peer"]
    return "" if copies <= 0.12 * 800 else f"{copies} of 800 frames arrived again"


def silent_peer_gets_little(seed: int) -> str:
    """A peer that never answers gets two frames at a time, ever less often."""
    bench = Bench(seed, peer=DEAD)
    bench.say("peer", MS, 64)
    again = len(bench.run().sent["peer"]) - 64
    # 50, 100, … 1,600 ms, then every 2 seconds.
    return "" if 30 <= again <= 72 else f"it got {again} frames again in a minute"


def peers_do_not_share_their_round_trips(seed: int) -> str:
    """A near peer is not slowed down by a far one, nor does the far one get copies."""
    bench = Bench(seed, near=_lossy(NEAR), far=FAR)
    for number in range(200):
        bench.say("near", (number + 1) * 200 * MS)
        bench.say("far", (number + 1) * 200 * MS)
    bench.run()
    near, copies = bench.share("near", 0.99), bench.copies["far"]
    return "" if near <= 25 and copies <= 6 else f"near took {near:.1f} ms, far got {copies} copies"


def waits_shrink_when_the_loss_is_over(seed: int) -> str:
    """After an outage the wait is that of round trips again, not that of the repetitions."""
    bench = Bench(seed, peer=_lossy(NEAR, 0.05))
    _stream(bench, "peer", 20, 100 * MS)
    channels, near = bench._channels, bench._channels["peer"]
    bench._at(3 * SECOND, lambda: channels.__setitem__("peer", DEAD))
    bench.say("peer", 3 * SECOND + MS)
    bench._at(8 * SECOND, lambda: channels.__setitem__("peer", near))
    for number in range(150):
        bench.say("peer", 12 * SECOND + number * 200 * MS)
    bench.run()
    took = sorted(bench.took["peer"][-150:])[int(0.98 * 149)] / MS
    return "" if took <= 25 else f"98 % took {took:.1f} ms afterwards"


CLAIMS: tuple[Callable[[int], str], ...] = (
    every_frame_arrives,
    tail_loss_costs_a_few_round_trips,
    loss_among_others_is_found_by_them,
    nothing_is_repeated_in_vain_for_long,
    lost_frames_are_repeated_alone,
    silent_peer_gets_little,
    peers_do_not_share_their_round_trips,
    waits_shrink_when_the_loss_is_over,
)

"""Planted bugs of rare calls on topics, for the swarm of the whole stack to find.

Of buses and subscriptions without order, durable subscriptions that are forgotten, manual
acknowledgements, handlers with small limits, `close` with a limit of its own, and `held_max`.
`mutants` merges them with all others, and runs them.
"""

from typing import Any

from ensue.client.backpressure import Backpressure
from ensue.client.bus import Bus
from ensue.client.handlers import Runner, _Taken
from ensue.client.handover import Handover
from ensue.client.policies import Progress
from ensue.client.subscription import Subscription
from ensue.orders.total import TotalOrder
from ensue.protocols.causal.trees import Relay, Trees
from ensue.protocols.interface import Frame, Persist, Send
from ensue.protocols.merged.merger import OVERFLOW, Held, Merger
from ensue.protocols.merged.subscriber import MergedSubscriber
from ensue.protocols.shared.state_store import Dismiss, Dismissed, StateStore
from ensue.protocols.total.hold_back import HoldBack
from ensue.protocols.total.progress import Progress as TotalProgress
from ensue.protocols.total.station import Station
from ensue.protocols.unordered.subscriber import UnorderedSubscriber, _Seen

__all__ = ["AGAIN", "TOPICS"]

real_notify, real_early = UnorderedSubscriber._notify, MergedSubscriber._deliver_out_of_order
real_begin, real_init, real_limit = Handover.begin, Runner.__init__, Runner._limit
real_leave, real_offer, real_receive = Bus._leave, Merger.offer, StateStore.receive
real_forget = Subscription.forget


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def see_nothing(_self: _Seen, _number: int) -> bool:
    """A subscriber without order takes repetitions for new events."""
    return True


def count_no_overflow(self: UnorderedSubscriber, event: Any) -> None:
    """Events without room are dropped and not counted."""
    real_notify(self, event)
    self.counts.overflow = 0


def deliver_untagged(self: MergedSubscriber, event: Any, _verdict: str) -> bool:
    """Early events look like ones in order."""
    return real_early(self, event, "")


def keep_records(self: StateStore, frame: Frame, *, source: str, now_ns: int) -> None:
    """A server confirms that it has forgotten a subscription, and has not."""
    if isinstance(frame, Dismiss):
        self._effects.append(Send(source, Dismissed(epoch=frame.epoch)))
    else:
        real_receive(self, frame, source=source, now_ns=now_ns)


async def forget_no_topics(self: Subscription) -> None:
    """A subscription is forgotten with its topics: servers go on to keep these."""
    asked, self._topic_changes.asked = self._topic_changes.asked, {}
    try:
        await real_forget(self)
    finally:
        self._topic_changes.asked = asked


def acknowledge_all_the_same(self: Handover, reader: Any, rows: Any) -> None:
    """Asking for the next event acknowledges the last one, also if that is manual."""
    real_begin(self, reader, rows)
    self.automatic = True


def count_unread(self: Handover) -> int:
    """Only unread events are pending."""
    return len(self._queue.unread)


def engage_in_words(self: Backpressure, _reader: Any) -> None:
    """A subscription without room goes on."""
    self.full = True


def read_far_ahead(self: Runner, *arguments: Any, **options: Any) -> None:
    """A run reads as far ahead as it likes."""
    real_init(self, *arguments, **options)
    self._pending_max = 1_000


def count_anew(self: Runner, *arguments: Any, **options: Any) -> None:
    """Each run has a progress of its own."""
    real_init(self, *arguments, **options)
    self._progress = Progress()


def acknowledge_without_room(self: Runner, taken: _Taken, *arguments: Any) -> None:
    """An event that could not be parked is acknowledged."""
    real_limit(self, taken, *arguments)
    taken.finished = True
    self._source.acknowledge(taken.event.position)


async def leave_in_usual_time(self: Bus, _timeout_s: float | None = None) -> Any:
    """Closing takes the time limit of the bus, not its own."""
    return await real_leave(self)


async def leave_without_doubt(self: Bus, timeout_s: float | None = None) -> None:
    """Closing reports no events without receipts."""
    await real_leave(self, timeout_s)


def drop_uncounted(self: Merger, held: Held, tick: int) -> str:
    """Events that find no room to be held back are not counted."""
    verdict = real_offer(self, held, tick)
    return "dropped" if verdict == OVERFLOW else verdict


def count_since_the_run_began(self: Runner) -> bool:
    """Events that an earlier run finished do not count as read ahead."""
    return len(self._window) >= self._pending_max


def want_who_is_gone(_self: Trees, relay: Relay) -> int:
    """An event without a receipt waits for subscribers that expired."""
    return relay.targets


def acknowledge_without_records(self: TotalProgress, position: int) -> None:
    """An acknowledgement is answered, and its records are not written."""
    before = len(self._effects)
    real_acknowledge(self, position)
    self._effects[before:] = [
        each for each in self._effects[before:] if not isinstance(each, Persist)
    ]


real_acknowledge = TotalProgress.acknowledge
AGAIN = "acknowledged events come again"

TOPICS = (
    (AGAIN, "total", ((TotalProgress, "acknowledge", acknowledge_without_records),), 6),
    ("events without order come again", "total", ((_Seen, "add", see_nothing),), 157),
    (
        "no room goes uncounted",
        "causal",
        ((UnorderedSubscriber, "_notify", count_no_overflow),),
        95,
    ),
    (
        "early events have no verdict",
        "merged",
        ((MergedSubscriber, "_deliver_out_of_order", deliver_untagged),),
        12,
    ),
    ("early events are not observed", "merged", ((Bus, "_learn", nothing),), 209),
    (
        "total order serves those without",
        "total",
        ((TotalOrder, "unordered_refusal", nothing),),
        25,
    ),
    ("forgotten subscriptions have records", "total", ((StateStore, "receive", keep_records),), 8),
    (
        "forgotten subscriptions have topics",
        "total",
        ((Subscription, "forget", forget_no_topics),),
        8,
    ),
    ("manual is automatic", "total", ((Handover, "begin", acknowledge_all_the_same),), 67),
    (
        "what is not acknowledged needs no room",
        "causal",
        ((Handover, "pending", property(count_unread)),),
        10,
    ),
    (
        "manual subscriptions go on without room",
        "total",
        ((Backpressure, "engage", engage_in_words),),
        67,
    ),
    ("runs read far ahead", "total", ((Runner, "__init__", read_far_ahead),), 67),
    ("runs count anew", "merged", ((Runner, "__init__", count_anew),), 87),
    (
        "what has no room counts as parked",
        "causal",
        ((Runner, "_limit", acknowledge_without_room),),
        14,
    ),
    ("closing takes its usual time", "total", ((Bus, "_leave", leave_in_usual_time),), 63),
    ("closing doubts nothing", "total", ((Bus, "_leave", leave_without_doubt),), 43),
    ("held_max is ignored", "total", ((HoldBack, "full", property(lambda _self: False)),), 43),
    ("held_max goes uncounted", "merged", ((Merger, "offer", drop_uncounted),), 8),
    (
        "finished events are not read ahead",
        "total",
        ((Runner, "_is_full", count_since_the_run_began),),
        307,
    ),
    ("receipts wait for the expired", "causal", ((Trees, "_still_wanted", want_who_is_gone),), 53),
    ("stations on brokers keep clients", "total", ((Station, "_sweep", nothing),), 3),
)
"""Name, order, what is replaced by what, and a seed that finds it and finds nothing without it."""

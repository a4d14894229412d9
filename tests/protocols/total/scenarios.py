"""The smallest situations in which the published rules of total notification order hang.

A scenario is plain data and names no message of any protocol, so that the published rules and the
corrected ones can be run through the very same situation. How to run one:

- `topics` stand in the paper's rank order, the highest first. Stamp requests climb from the lowest
  rank to the highest, so the stages are in the order of `chain`: one stage per topic, with its
  name.
- `subscriptions` are in place before the first action, with every counter at zero.
- `actions` happen in turn, without waiting for one another, except that `Settle` lets everything
  that is under way arrive first. What is under way at the end arrives too.
- `arrivals` say which of two requests a process handles first. A driver keeps the later one back
  as long as anything else can move. When nothing else can, the rules under test do not allow the
  overtaking, and the driver lets the oldest request go.

A process is a stage, a publisher or a subscriber. A request is called by the name of its event or
of its subscription, at every stage and in the reply; a notification is called like its event. The
dummy event that a published subscription sends to each of its topics is `<subscription>:<topic>`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "DUMMY_CANNOT_BE_APPLIED",
    "DUMMY_OVERTAKES_EVENT",
    "FOUR_EVENTS_CLOSE_A_CIRCLE",
    "PUBLISHER_DIES_HOLDING_A_STAMP",
    "REQUEST_IS_RETRANSMITTED",
    "SCENARIOS",
    "STALE_COUNTER_ABOVE_A_SUBSCRIPTION",
    "STAMP_NAMES_A_TOPIC_NOT_SUBSCRIBED",
    "THREE_EVENTS_CLOSE_A_CIRCLE",
    "TWO_SUBSCRIPTIONS_CROSS",
    "Action",
    "Before",
    "Crash",
    "Publish",
    "Repeat",
    "Scenario",
    "Settle",
    "Subscribe",
    "Unsubscribe",
]


@dataclass(frozen=True, slots=True)
class Publish:
    """A publisher asks for the stamp of an event."""

    event: str
    publisher: str
    topic: str


@dataclass(frozen=True, slots=True)
class Repeat:
    """The publisher of an event repeats its stamp request."""

    event: str


@dataclass(frozen=True, slots=True)
class Crash:
    """A publisher crashes. Frames it has sent stay in flight."""

    publisher: str


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A subscriber adds a topic."""

    name: str
    subscriber: str
    topic: str


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """A subscriber leaves a topic."""

    name: str
    subscriber: str
    topic: str


@dataclass(frozen=True, slots=True)
class Settle:
    """Everything under way arrives before the next action."""


Action = Publish | Repeat | Crash | Subscribe | Unsubscribe | Settle


@dataclass(frozen=True, slots=True)
class Before:
    """The process `at` handles `first` before `second`."""

    at: str
    first: str
    second: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One situation; the module docstring describes how to run it."""

    name: str
    erratum: int
    topics: tuple[str, ...]
    subscriptions: Mapping[str, tuple[str, ...]]
    actions: tuple[Action, ...]
    arrivals: tuple[Before, ...] = ()

    @property
    def chain(self) -> tuple[str, ...]:
        """The stages in the order in which requests visit them."""
        return self.topics[::-1]

    @property
    def publishes(self) -> tuple[Publish, ...]:
        """Every event of the scenario."""
        return tuple(action for action in self.actions if isinstance(action, Publish))


# Both subscriptions start at T3. The wide one visits T2 before T1, the narrow one only T1,
# and so T3 counts the wide one first, T1 the narrow one.
TWO_SUBSCRIPTIONS_CROSS = Scenario(
    name="two subscriptions cross",
    erratum=1,
    topics=("T1", "T2", "T3"),
    subscriptions={"reader": ("T1", "T3"), "narrow": ("T1",), "wide": ("T1", "T2")},
    actions=(
        Subscribe("wide-join", "wide", "T3"),
        Subscribe("narrow-join", "narrow", "T3"),
        Settle(),
        Publish("e", "publisher", "T1"),
    ),
    arrivals=(
        Before("T3", "wide-join", "narrow-join"),
        Before("T1", "narrow-join", "wide-join"),
        Before("reader", "narrow-join:T1", "wide-join:T1"),
        Before("reader", "wide-join:T1", "narrow-join:T3"),
        Before("reader", "narrow-join:T3", "wide-join:T3"),
    ),
)

# T2 belongs to the group of T4 and not to that of T3. Thus e4 climbs T4, T3, T2, T1 and e3, second
# at T3, climbs directly to T1 and is first there. The event on T1 falls between the two.
THREE_EVENTS_CLOSE_A_CIRCLE = Scenario(
    name="three events close a circle",
    erratum=1,
    topics=("T1", "T2", "T3", "T4"),
    subscriptions={
        "reader": ("T1", "T3", "T4"),
        "peer": ("T1", "T3", "T4"),
        "side": ("T2", "T4"),
        "other side": ("T2", "T4"),
    },
    actions=(
        Publish("e4", "publisher 4", "T4"),
        Publish("e3", "publisher 3", "T3"),
        Publish("e1", "publisher 1", "T1"),
    ),
    arrivals=(
        Before("T3", "e4", "e3"),
        Before("T1", "e3", "e1"),
        Before("T1", "e1", "e4"),
    ),
)

# Neighbours in the ring T1-T2-T3-T4-T1 are ordered together, topics across it are not. No two
# requests share more than one stage, so nothing overtakes anything on any pair of stages.
FOUR_EVENTS_CLOSE_A_CIRCLE = Scenario(
    name="four events close a circle",
    erratum=1,
    topics=("T1", "T2", "T3", "T4"),
    subscriptions={
        "reader": ("T1", "T2", "T3", "T4"),
        "pair 12": ("T1", "T2"),
        "pair 23": ("T2", "T3"),
        "pair 34": ("T3", "T4"),
        "pair 14": ("T1", "T4"),
    },
    actions=(
        Publish("e3", "publisher 3", "T3"),
        Publish("e4", "publisher 4", "T4"),
        Publish("e1", "publisher 1", "T1"),
        Publish("e2", "publisher 2", "T2"),
    ),
    arrivals=(
        Before("T3", "e3", "e4"),
        Before("T1", "e4", "e1"),
        Before("T1", "e1", "e2"),
        Before("T2", "e2", "e3"),
    ),
)

# The newcomer's subscription counts at T2 and goes nowhere else: T1 does not learn of it.
STALE_COUNTER_ABOVE_A_SUBSCRIPTION = Scenario(
    name="stale counter above a subscription",
    erratum=2,
    topics=("T1", "T2"),
    subscriptions={"reader": ("T1", "T2"), "peer": ("T1", "T2")},
    actions=(
        Subscribe("join", "newcomer", "T2"),
        Settle(),
        Publish("e", "publisher", "T1"),
    ),
)

# The dummy events carry no entry for T3, which the reader's rule for dummy events asks for; and two
# counters have moved, which the rule for events held back does not allow.
DUMMY_CANNOT_BE_APPLIED = Scenario(
    name="dummy cannot be applied",
    erratum=2,
    topics=("T1", "T2", "T3"),
    subscriptions={"reader": ("T1", "T2", "T3"), "newcomer": ("T1",)},
    actions=(
        Subscribe("join", "newcomer", "T2"),
        Settle(),
        Publish("e", "publisher", "T1"),
    ),
)

# The rule for a dummy event on T2 does not look at T2: the reader's clock jumps over the event.
DUMMY_OVERTAKES_EVENT = Scenario(
    name="dummy overtakes event",
    erratum=2,
    topics=("T1", "T2"),
    subscriptions={"reader": ("T1", "T2"), "peer": ("T1", "T2"), "newcomer": ("T1",)},
    actions=(
        Publish("e", "publisher", "T2"),
        Subscribe("join", "newcomer", "T2"),
    ),
    arrivals=(
        Before("T2", "e", "join"),
        Before("reader", "join:T2", "e"),
    ),
)

STAMP_NAMES_A_TOPIC_NOT_SUBSCRIBED = Scenario(
    name="stamp names a topic not subscribed",
    erratum=3,
    topics=("T1", "T2"),
    subscriptions={"reader": ("T1", "T2"), "peer": ("T1", "T2"), "partial": ("T1",)},
    actions=(Publish("e", "publisher", "T1"),),
)

REQUEST_IS_RETRANSMITTED = Scenario(
    name="request is retransmitted",
    erratum=5,
    topics=("T1",),
    subscriptions={"reader": ("T1",)},
    actions=(
        Publish("e1", "publisher", "T1"),
        Repeat("e1"),
        Settle(),
        Publish("e2", "publisher", "T1"),
    ),
)

PUBLISHER_DIES_HOLDING_A_STAMP = Scenario(
    name="publisher dies holding a stamp",
    erratum=5,
    topics=("T1",),
    subscriptions={"reader": ("T1",)},
    actions=(
        Publish("e1", "doomed", "T1"),
        Crash("doomed"),
        Publish("e2", "publisher", "T1"),
    ),
    arrivals=(Before("T1", "e1", "e2"),),
)

SCENARIOS = (
    TWO_SUBSCRIPTIONS_CROSS,
    THREE_EVENTS_CLOSE_A_CIRCLE,
    FOUR_EVENTS_CLOSE_A_CIRCLE,
    STALE_COUNTER_ABOVE_A_SUBSCRIPTION,
    DUMMY_CANNOT_BE_APPLIED,
    DUMMY_OVERTAKES_EVENT,
    STAMP_NAMES_A_TOPIC_NOT_SUBSCRIBED,
    REQUEST_IS_RETRANSMITTED,
    PUBLISHER_DIES_HOLDING_A_STAMP,
)

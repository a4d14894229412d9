"""Causal order with deadlines: deliver in order and on time, or report why not.

Guarantee
    A broker or subscriber delivers no event after one that causally follows it, no event twice,
    and no event after its deadline. An event that arrives in time is delivered in time, whatever
    happened to its predecessors. An event that cannot be delivered so is dropped with a verdict
    (`late`, `overtaken`, `overflow`), or delivered with that verdict (`deliver_late`).

Theory of operation
    There are two levels. *Brokers* know each other and send each event directly to all brokers of
    its group, with a deadline. `Causality` holds the delivery rule: a matrix of what was sent,
    and deadlines. `Codec` sends matrices as differences; `Repair` finds lost messages by gossip
    until their deadline; `Membership` tracks which broker is in which groups. *Subscribers* get
    events from brokers by gossip in rounds: `BrokerPush` assigns rounds, `GossipPush` spreads
    messages over `Views`, and `Rounds` holds the delivery rule. `Delivery` counts and reports all
    outcomes.

    Groups are topics. A broker that joins a group is in it once all other brokers have noted it,
    or after `join_ns`. A broker that is away learns of it later; what it publishes meanwhile does
    not reach the joiner.

    Pause. While the application has no room (`pause`), events wait for it. An event still waiting
    at its deadline is dropped as `overflow`. Order is kept, and other processes are not delayed.

    Restart. A broker persists what it has delivered and the largest stamps, rounds and deadlines
    it knows, but no matrix. So it publishes nothing until everything it may have known has
    expired everywhere: then no event of its own can overtake a cause. Events that waited for
    delivery when it crashed are lost, unless they are repaired in time.

    `RegisteredBroker` runs a `DeadlineBroker` whose peers are other processes, numbered by a
    registry (`ensue.protocols.membership`).

Assumptions
    Clocks differ by at most `skew_ns`. A broker keeps its records over a crash, or comes back
    under another name.

HAZARD: disk latency counts as delay. A delivery is reported when its records are safe, which may
be after the deadline.

HAZARD: a broker that lost its records and keeps its name reuses numbers and stamps, which others
take for duplicates.

HAZARD: a clock that is off by more than `skew_ns` makes punctual messages late at its process,
and may let a broker forget a cause that another process can still deliver: then an effect is
delivered before its cause.

Deviations from the paper (Kim, Ahn) are the corrections of the errata, listed in `causality`,
`rounds` and `repair`.
"""

"""Content-based publish/subscribe over a tree of brokers.

Guarantees. A publication is delivered once to every client with a subscription that matches it and
that reached the brokers between the two before the publication did. When a subscription or an
advertisement is answered (`Done`), it has reached every broker that it concerns: all matching
events published after that are delivered. A publisher's events are delivered in the order it
published them. When nothing is under way, the tables equal those after the same operations in
sequence.

Theory of operation. Brokers form a tree; frames between neighbors arrive once and in order
(`shared.link`). A client has one broker, its *home*. A client's operation is a *step* at its home,
which causes steps at neighbors; a step is answered when all steps that it caused have been answered
(`steps`). `tables` says which steps an operation causes. Publications outside of transactions are
passed on and not answered.

The first broker stamps a publication with the version of its tables, and all others route it by
that version (D8): the commit of a serializable transaction makes a new version at one broker after
the other, and a publication that meets it on the way would be routed partly by the old tables and
partly by the new (`versions`).

A client leaves by `Goodbye`, or when it is silent for `lease_ns`: its advertisements and
subscriptions are withdrawn (`leases`). A driver that owns connections reports lost ones; after
`grace_ns` the client counts as disconnected, and transactions do not wait for it. A neighbor that
has acknowledged nothing for `away_ns` is away, and clients do not wait for it. So a subscription
answered meanwhile holds for publications at brokers that can be reached.

All state survives a crash (`input_log`): a restarted broker resumes where it stopped. Brokers join
and leave at the leaves of the tree (`topology`).

Assumptions. Neighbors form a tree. A broker keeps its records.

HAZARD: a cycle of neighbors would forward advertisements forever; `topology.check_tree` refuses
one. HAZARD: a broker that lost its records must not restart under its name: its links stay stuck,
and its neighbors keep its former subscriptions.

Departures from the paper: errata D9 and D10; covering; answers to regular operations; clients that
leave or crash; brokers that restart, join and leave.

The nodes are in `transactions`; this package is the part of them without transactions.
"""

"""Total order by a chain of sequencers.

Guarantee: two events reach all their common subscribers in one order, whatever their topics.
With reliable topic logs no event is lost and none waits forever. With lossy ones, events out of
order are tagged.

How: each topic is hosted by one node of a chain (`placement`). A publisher (`publisher`) requests a
stamp from the topic's sequencer (`sequencer`), which counts the event, and sends the request up the
chain to the last node that hosts a topic ordered together with it (`groups`). The stamp says how
many events of each of these topics come up to this event. The publisher puts the stamped event into
its slot of the topic's log (`ensue.protocols.topic_log`); if it does not in time, the slot is
voided (`leases`). A subscriber (`subscriber`) holds an event back until everything that its stamp
counts was delivered (`hold_back`). A subscription changes at a cut of the counters, which travels
the chain as a stamp does (`subscription_changes`). A topic moves to another node while the chain
holds its requests (`topic_moves`). A `station` joins a sequencer, its topics' logs
and a store for clients' records in one server, so that an event that needs one node is published in
one step.

Assumptions: links between neighbors are FIFO and exactly-once, across restarts; records survive;
client names are unique; a topic log keeps the first event put into a slot. What breaks when one
fails is a HAZARD of the module that depends on it: `sequencer`, `publisher`, `backfill`, `station`,
and `ensue.protocols.topic_log.log`.

Deviations from the paper (Baldoni, Bonomi, Platania, Querzoni, *Efficient Notification Ordering for
Geo-Distributed Pub/Sub Systems*): requests skip no stage, subscriptions are not counted, clocks are
compared for a subscriber's own topics only, topics are grouped by one common subscription, repeated
requests keep their numbers, and stamps have leases. `docs/explanation/protocols/total.md` says why.
"""

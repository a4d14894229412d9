"""No order: events are delivered as they arrive, once each.

This is what a plain broker gives, and what the other protocols are measured against. A publisher
repeats an event until the topic log has it; a subscriber drops repetitions, by the publisher's
event numbers. Nothing is persisted: all state lives and dies with its process.

Limit: `SEEN_MAX` numbers a publisher and topic beyond the first one missing. An event that arrives
later than that is taken for a repetition and dropped.

HAZARD: while its application has no room, a subscriber drops events, and counts them (`overflow`):
they are not sent again.
"""

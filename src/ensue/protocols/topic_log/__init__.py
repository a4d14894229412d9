"""Topic logs: the numbered events of each topic, fanned out to subscribers.

The paper calls them the event notification service (ENS). `log` keeps an event per slot, sends it
to its listeners and retransmits missed ones: total order is built on it. `fanout` sends events
without a log, for orders that need none. `log_identity` distinguishes logs of the same name.
"""

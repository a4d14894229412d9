"""The event notification service (ENS): a log per topic, fanned out.

`log` keeps an event per slot, sends it to its listeners and sends missed ones again: total order is
built on it. `fanout` sends events without a log, for orders that need none. `log_identity` tells
logs apart that have the same name.
"""

"""The client: a bus, its subscriptions, and the events they receive."""

from ensue.client.bus import Bus, connect
from ensue.client.received_event import ReceivedEvent
from ensue.client.subscription import Subscription

__all__ = ["Bus", "ReceivedEvent", "Subscription", "connect"]

"""What programs use: a bus, its subscriptions, the events they get."""

from ensue.client.bus import Bus, connect
from ensue.client.subscription import ReceivedEvent, Subscription

__all__ = ["Bus", "ReceivedEvent", "Subscription", "connect"]

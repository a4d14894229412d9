"""What programs use: a bus, its subscriptions, the events they get."""

from ensue.client.bus import Bus, connect
from ensue.client.received import ReceivedEvent
from ensue.client.subscription import Subscription

__all__ = ["Bus", "ReceivedEvent", "Subscription", "connect"]

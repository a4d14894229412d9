"""The frame of this order, beside those of the topic log."""

from ensue.core.event import Count
from ensue.protocols.topic_log.frames import TopicFrame

__all__ = ["EndOfBatch"]


class EndOfBatch(TopicFrame, frozen=True, tag=1_000):
    """The publisher leaves: its last batch on the topic ends with this number."""

    last: Count

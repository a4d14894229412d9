"""Refusal texts for reached limits."""

LATER = "try again when some have ended"


def too_many_topics(value: int = 1) -> str:
    return f"there are too many topics (limit topics_max={value}): use fewer"


def too_many_subscribers(value: int = 1) -> str:
    return f"there are too many subscribers (limit clients_max={value}): {LATER}"


def too_many_publishers(value: int = 1) -> str:
    return f"there are too many publishers (limit clients_max={value}): {LATER}"

"""Reasons that name a limit, and names that only look like one."""

import pytest

from ensue.core.errors import limit_in, limit_reason


def test_a_reason_names_its_limit() -> None:
    reason = limit_reason("a client has 1000 names", "names_per_connection", 1_000, "raise it")
    assert limit_in(reason) == ("names_per_connection", 1_000)


@pytest.mark.parametrize("topic", ["x (limit a=1)", "it's (limit a=1)", "'\"(limit a=1): "])
def test_topic_that_looks_like_a_limit_is_ignored(topic: str) -> None:
    assert limit_in(f"'bob' may not publish on {topic!r}") is None

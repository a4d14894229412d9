import re
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ensue.transports.address import escape, hide

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=255)


@given(NAMES)
@example("a=2Eb")
@example("a.b")
@example("%41")
def test_an_escaped_name_is_safe_everywhere_and_can_be_read_back(name: str) -> None:
    escaped = escape(name)
    assert re.fullmatch(r"[A-Za-z0-9_=-]+", escaped)
    assert unquote(escaped.replace("=", "%"), errors="strict") == name
    assert len(escaped) <= 3 * len(name.encode())


@pytest.mark.parametrize(
    ("url", "hidden"),
    [
        ("nats://a:1", "nats://a:1"),
        ("nats://me:hush@a:1", "nats://me:***@a:1"),
        ("nats://me:hu:sh@a:1", "nats://me:***@a:1"),
        ("nats://hush@a:1?x=1", "nats://***@a:1?x=1"),
        ("redis://:hush@a/0", "redis://:***@a/0"),
        ("amqp://me:hu@sh@a/b", "amqp://me:***@a/b"),
        ("amqp://me:hu/sh@a/b", "amqp://me:***@a/b"),
        ("amqp://me:hu?sh@a/b", "amqp://me:***@a/b"),
        ("nats://a:1?prefix=x@y", "nats://a:***@y"),
        ("nats", "nats"),
    ],
)
def test_a_password_or_token_is_hidden(url: str, hidden: str) -> None:
    assert hide(url) == hidden

"""Options and secrets in URLs."""

import pytest

from ensue.core.errors import BadInput
from ensue.transports.url_options import UrlOptions, hide


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


def read(query: str) -> UrlOptions:
    return UrlOptions.read(query, ("on", "count", "share"), shown="x://")


def test_options_are_read_by_their_kind() -> None:
    options = read("on=1&count=7&share=0.5")
    assert (options.switch("on"), options.integer("count", 1)) == (True, 7)
    assert (options.number("share", 0.0), options.text("share")) == (0.5, "0.5")
    assert (read("").switch("on"), read("").integer("count", 1)) == (False, 1)
    assert (read("").number("share", 0.25), read("").text("share", "-")) == (0.25, "-")


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("off=1", "x://: there is no option 'off'; expected on, count or share"),
        ("on=1&on=1", "x://: on is given more than once"),
        ("on=yes", "x://: on must be 0 or 1, got 'yes'"),
        ("on=", "x://: on must be 0 or 1, got ''"),
        ("count=1.5", "x://: count must be a whole number, got '1.5'"),
        ("share=inf", "x://: share must be a number, got 'inf'"),
    ],
)
def test_wrong_option_is_named_with_the_allowed_values(query: str, complaint: str) -> None:
    def use() -> None:
        options = read(query)
        options.switch("on")
        options.integer("count", 1)
        options.number("share", 0.0)

    with pytest.raises(BadInput) as caught:
        use()
    assert str(caught.value) == complaint

"""The fuzz target for content: no input breaks a broker, and planted faults are found."""

from random import Random

import pytest
from fuzz import content

from ensue.protocols.transactions.broker import TransactionBroker
from ensue.protocols.transactions.operations import Operations


def inputs(count: int) -> list[bytes]:
    random = Random(11)
    return [random.randbytes(random.choice((20, 200, 1000))) for _ in range(count)]


def test_random_choices_raise_only_protocol_errors() -> None:
    for data in inputs(300):
        content.one_input(data)


@pytest.mark.parametrize(
    ("owner", "handler"),
    [
        (TransactionBroker, "_operate"),
        (TransactionBroker, "_begin"),
        (TransactionBroker, "_end"),
        (TransactionBroker, "_submit"),
        (TransactionBroker, "_goodbye"),
        (Operations, "invite"),
    ],
)
def test_fuzzing_reaches_client_requests_of_a_broker(
    owner: type, handler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_given: object, **_named: object) -> None:
        raise ValueError("planted")

    def try_all() -> None:
        for data in inputs(300):
            content.one_input(data)

    monkeypatch.setattr(owner, handler, broken)
    with pytest.raises(ValueError, match="planted"):
        try_all()

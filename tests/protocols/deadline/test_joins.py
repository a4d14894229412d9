"""Messages that do not concern a subscriber that joins a topic late."""

from tests.protocols.deadline.brokers import A, Listener, Pusher

from ensue.protocols.deadline.config import DeadlineConfig

LONG = DeadlineConfig(subscribers_max=256, alpha=1)


def test_predecessors_of_delivered_messages_count_as_before_the_join() -> None:
    # Not `overtaken`: members of a topic deliver all messages that come in time.
    a = Pusher(A, LONG)
    question, answer = a.push("question", "asked", 5), a.push("answer", "told", 6)
    s = Listener(LONG, ["told"])
    s.receive(answer, 6)
    assert s.got == ["answer"]
    s.rules.join("asked", 4)
    s.receive(question, 7)
    assert s.refused == {"question": "before_join"}
    s.receive(a.push("more", "asked", 8), 8)
    assert s.got == ["answer", "more"]


def test_skipped_rounds_are_forgotten_when_they_expire() -> None:
    a = Pusher(A, LONG)
    question, answer = a.push("question", "asked", 5), a.push("answer", "told", 6)
    s = Listener(LONG, ["told"])
    s.receive(answer, 6)
    s.rules.join("asked", 4)
    s.rules.prune(5 + LONG.lifetime_rounds)
    s.receive(question, 5 + LONG.lifetime_rounds)
    assert s.refused == {"question": "late"}

"""What a relay believes of clients that it has not heard yet."""

from ensue.server.marks import CLOCK_ERROR_NS, Marks


def test_a_stamp_of_before_a_restart_is_not_of_after_it() -> None:
    started_ns = 1_000 * CLOCK_ERROR_NS
    marks = Marks(restored=1, started_ns=started_ns)
    assert marks.is_sent(0, started_ns)
    assert not marks.is_sent(0, started_ns + CLOCK_ERROR_NS + 1)
    assert not marks.is_sent(1, 1), "nobody was numbered 1 before the restart"


def test_a_client_that_was_heard_is_believed_no_further() -> None:
    marks = Marks(restored=1, started_ns=1_000)
    marks.sent(0, 500)
    assert marks.is_sent(0, 500)
    assert not marks.is_sent(0, 501)

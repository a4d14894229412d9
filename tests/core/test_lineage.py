"""The lineage of a log: what continues it, and what contradicts it."""

from ensue.core.lineage import INCARNATIONS_MAX, REPLACED, ROLLED_BACK, Lineage, contradiction

FIRST = Lineage("a" * 16, ()).begin(token=11, begun=0)
SECOND = FIRST.begin(token=22, begun=100)


def test_restart_continues_the_same_log() -> None:
    assert [each.number for each in SECOND.incarnations] == [1, 2]
    assert contradiction(FIRST, FIRST, place=1_000) == ""
    assert contradiction(FIRST, SECOND, place=100) == ""
    assert contradiction(SECOND, SECOND.begin(token=33, begun=100), place=100) == ""


def test_another_identity_is_another_log() -> None:
    other = Lineage("b" * 16, FIRST.incarnations)
    assert contradiction(FIRST, other) == REPLACED


def test_older_copy_lacks_the_known_incarnation() -> None:
    """Started as often as the original was, or more often."""
    copy = FIRST.begin(token=44, begun=100)
    assert contradiction(SECOND, FIRST) == ROLLED_BACK
    assert contradiction(SECOND, copy) == ROLLED_BACK
    assert contradiction(SECOND, copy.begin(token=55, begun=500)) == ROLLED_BACK


def test_log_that_continues_before_a_delivered_event_is_rolled_back() -> None:
    assert contradiction(FIRST, SECOND, place=101) == ROLLED_BACK
    assert contradiction(FIRST, SECOND.begin(token=33, begun=900), place=101) == ROLLED_BACK


def test_log_under_another_identity_continues_if_it_has_all_delivered_events() -> None:
    accepted = Lineage("c" * 16, FIRST.incarnations).begin(token=99, begun=100)
    assert contradiction(FIRST, accepted) == REPLACED
    assert accepted.continues(FIRST.last, place=100)
    assert not accepted.continues(FIRST.last, place=101)
    assert not accepted.continues(SECOND.last)
    assert not accepted.continues(Lineage("a" * 16, ()))


def test_last_incarnations_are_reported_and_older_ones_accepted() -> None:
    lineage = FIRST
    for token in range(2 * INCARNATIONS_MAX):
        lineage = lineage.begin(token=token, begun=0)
    assert len(lineage.incarnations) == INCARNATIONS_MAX
    assert lineage.incarnations[-1].number == 2 * INCARNATIONS_MAX + 1
    assert contradiction(FIRST, lineage) == ""
    assert contradiction(lineage, lineage.begin(token=1, begun=0)) == ""

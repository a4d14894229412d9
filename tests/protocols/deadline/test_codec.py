"""Matrices from which messages between brokers are decoded: shared rows, bounded memory."""

import msgspec

from ensue.core.event import CLOCK, DEADLINE, Event, Stamp
from ensue.protocols.deadline.causality import Causality, Sent, raise_to
from ensue.protocols.deadline.codec import ENTRY_BYTES, Codec
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.frames import Matrix

BROKERS = 16
ALL = tuple(range(BROKERS))
CONFIG = DeadlineConfig(lifetime_ns=10**9, lifetime_ns_max=10**9, durable=False, spreads=False)


def message(source: int, stamp: int, after: Matrix) -> Sent:
    event = Event(
        topic="t",
        payload=b"",
        publisher=f"b{source}",
        publisher_seq=stamp,
        stamp=Stamp({CLOCK: stamp, DEADLINE: stamp + 10**9}),
    )
    return Sent(event, source, ALL, after)


class Group:
    """Brokers that all publish in turn, and receive everything at once."""

    def __init__(self, config: DeadlineConfig = CONFIG) -> None:
        self.config = config
        self.codecs = [Codec(number, config) for number in ALL]
        self.rules = [Causality(number, config, {}) for number in ALL]
        self.now_ns = 1

    def publish(self, source: int) -> None:
        self.now_ns += 1
        rules = self.rules[source]
        sent = message(source, rules.stamp(self.now_ns), rules.before(self.now_ns))
        rules.sent(sent)
        self.codecs[source].keep(sent)
        for peer in ALL:
            if peer == source:
                continue
            self.codecs[source].heard(peer, self.codecs[peer].latest(source))
            read = self.codecs[peer].read(self.codecs[source].write(sent, peer))
            assert read is not None, "its base is there"
            assert read.after == sent.after
            self.codecs[peer].keep(read)
            self.rules[peer].offer(read, self.now_ns)
            assert self.rules[peer].next_ready(self.now_ns) is not None

    def publish_all(self, times: int) -> None:
        for _ in range(times):
            for source in ALL:
                self.publish(source)


def rows_of(letters: Codec) -> set[int]:
    return {id(row) for matrix in letters._known.values() for row in matrix.values()}


def real_bytes(letters: Codec) -> int:
    rows = {id(row): row for matrix in letters._known.values() for row in matrix.values()}
    pointers = sum(map(len, letters._known.values()))
    return ENTRY_BYTES * (pointers + sum(map(len, rows.values())))


def test_matrices_share_equal_rows() -> None:
    group = Group()
    group.publish_all(5)
    for letters in group.codecs:
        matrices = len(letters._known)
        assert matrices == 5 * BROKERS
        assert len(rows_of(letters)) < 4 * matrices, f"of {matrices * BROKERS} that there would be"
        assert letters.bytes == real_bytes(letters)


def test_memory_of_matrices_is_bounded_except_the_latest_of_each_sender() -> None:
    limit = 120_000
    about = 2 * ENTRY_BYTES * BROKERS * BROKERS
    group = Group(msgspec.structs.replace(CONFIG, matrices_bytes_max=limit))
    group.publish_all(8)
    for letters in group.codecs:
        assert len(letters._known) < 8 * BROKERS
        assert letters.bytes <= limit
        assert real_bytes(letters) <= limit + about
        assert all(letters.latest(source) for source in ALL)

    group = Group(msgspec.structs.replace(CONFIG, matrices_bytes_max=1))
    group.publish_all(3)
    assert [len(letters._known) for letters in group.codecs] == [BROKERS] * BROKERS


def test_memory_count_is_correct_after_drops() -> None:
    letters = Codec(0, CONFIG)
    one = message(1, 5, {2: {0: 3, 1: 3}})
    letters.keep(one)
    letters.keep(one)
    assert real_bytes(letters) > 0
    assert len(letters._sizes) == 1
    letters.prune(5 + 2 * CONFIG.horizon_ns + 1)
    assert (letters.bytes, letters._sizes) == (0, {})


def test_rows_are_replaced_and_never_changed() -> None:
    row = {1: 5, 2: 5}
    matrix: Matrix = {}
    raise_to(matrix, {0: row})
    assert matrix[0] is row
    raise_to(matrix, {0: {1: 4, 2: 9}})
    assert (row, matrix) == ({1: 5, 2: 5}, {0: {1: 5, 2: 9}})
    larger = {1: 9, 2: 9, 3: 1}
    raise_to(matrix, {0: larger})
    assert matrix[0] is larger

    rules = Causality(7, CONFIG, {})
    after = {1: {2: 3, 7: 3}}
    sent = message(1, 10, after)
    rules.learn(sent)
    assert after == {1: {2: 3, 7: 3}}
    before = rules.before(11)
    rules.learn(message(2, 12, {1: {2: 11}}))
    assert before[1][2] == 10
    assert 7 not in rules.matrix[1]

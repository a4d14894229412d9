"""Slots of a publisher's unsettled events, as runs."""

from random import Random

import pytest

from ensue.protocols.total.records import INT
from ensue.protocols.total.slots import PublishedSlots, decode_session, encode_session


def test_consecutive_slots_are_one_run() -> None:
    out = PublishedSlots()
    out.extend(3, [7, 8])
    out.extend(5, [9])
    out.extend(6, [20, 21, 4])
    out.extend(10, [5])
    assert out.runs() == ((3, 7, 3), (6, 20, 2), (8, 4, 1), (10, 5, 1))
    assert [out.get(number) for number in range(2, 12)] == [0, 7, 8, 9, 20, 21, 4, 0, 5, 0]
    out.forget(4)
    assert out.runs() == ((4, 8, 2), (6, 20, 2), (8, 4, 1), (10, 5, 1))
    out.forget(9)
    assert out.runs() == ((10, 5, 1),)
    out.forget(11)
    assert (out.runs(), len(out), out.get(10)) == ((), 0, 0)


@pytest.mark.parametrize("seed", range(50))
def test_runs_equal_a_dict(seed: int) -> None:
    random, out, plain = Random(seed), PublishedSlots(), dict[int, int]()
    number = 1
    for _ in range(60):
        number += random.choice((0, 0, 1, 5))
        slots, slot = [], random.randrange(1, 1000)
        for _ in range(random.randrange(4)):
            slot += random.choice((1, 1, 1, 3))
            slots.append(slot)
        out.extend(number, slots)
        plain.update(enumerate(slots, number))
        number += len(slots)
        if random.random() < 0.2:
            settled = random.randrange(number + 2)
            out.forget(settled)
            plain = {key: plain[key] for key in plain if key >= settled}
        assert len(out) == len(plain)
        assert all(out.get(each) == plain.get(each, 0) for each in range(number + 1))
    next_number, again = decode_session(encode_session(number, out))
    assert (next_number, again.runs()) == (number, out.runs())


def test_record_without_slots_is_restored() -> None:
    next_number, out = decode_session(INT.encode(7))
    assert (next_number, out.runs()) == (7, ())
    assert encode_session(7, PublishedSlots()) == INT.encode(7)

"""The index of one topic, restored from the changes of each segment, against a dictionary."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ensue.journal.format import Part
from ensue.journal.index import HOLE, EventIndex

SLOTS = range(12)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["put", "put", "drop"]), st.integers(0, SLOTS.stop - 1)),
        st.tuples(st.sampled_from(["seal", "seal", "forget"]), st.just(0)),
    ),
    max_size=30,
)


class Recorder:
    """An index, and the changes that its sidecars would hold."""

    def __init__(self) -> None:
        self.index = EventIndex()
        self.model: dict[int, int] = {}
        self.next = 0
        self.offset = 100
        self.sealed: list[tuple[int, dict[str, Part]]] = []
        """The end of each remaining segment, and its changes."""
        self.floor = 0
        self.next_slots: dict[str, int] = {}
        self.since: list[tuple[int, int | None]] = []

    def edit(self, slot: int, offset: int | None) -> None:
        write(self.index, slot, offset)
        self.since.append((slot, offset))
        if offset is None:
            self.model.pop(slot, None)
        else:
            self.model[slot] = offset
            self.next = max(self.next, slot + 1)

    def step(self, name: str, slot: int) -> None:
        self.offset += 1
        if name == "put":
            self.edit(slot, self.offset)
        elif name == "drop":
            self.edit(slot, None)
        elif name == "seal":
            self.sealed.append((self.offset, self.index.take_changes()))
            self.next_slots = self.index.next_slots()
            self.since = []
        elif self.sealed:
            self.floor, parts = self.sealed.pop(0)
            lost = [slot for slot, offset in self.model.items() if offset < self.floor]
            for each in lost:
                del self.model[each]
            ranges = {
                topic: (part.start, part.start + len(part.offsets) // 8)
                for topic, part in parts.items()
            }
            found = self.index.firsts_after(ranges, before=self.floor)
            assert found == ({"t": max(lost) + 1} if lost else {})
            self.index.remove_before(ranges, before=self.floor)

    def restored(self) -> EventIndex:
        """Restore the index as opening a journal does."""
        index = EventIndex()
        for _, parts in self.sealed:
            index.restore(parts, floor=self.floor)
        index.reserve(self.next_slots)
        for slot, offset in self.since:
            write(index, slot, offset)
        return index


def write(index: EventIndex, slot: int, offset: int | None) -> None:
    plan = index.plan({f"event/{slot}/t": None if offset is None else b""})
    index.apply(plan, offset or 0)


FOREIGN = [("put", 5), ("seal", 0), ("put", 3), ("put", 7), ("seal", 0), ("forget", 0)]
"""The range of the second segment covers an event of the first, which is dropped."""


@example(steps=FOREIGN)
@settings(max_examples=500, deadline=None)
@given(steps=STEPS)
def test_restored_index_equals_a_dictionary(steps: list[tuple[str, int]]) -> None:
    recorder = Recorder()
    for name, slot in steps:
        recorder.step(name, slot)
        for index in (recorder.index, recorder.restored()):
            for each in SLOTS:
                assert index.get("t", each) == recorder.model.get(each, HOLE), each
            for topic in index.topics.values():
                first = min(recorder.model, default=recorder.next)
                assert (topic.first, topic.next) == (first, recorder.next)
                assert len(topic.offsets) == topic.next - topic.start

"""State store and remote state: atomic batches, one owner, effects wait until stored."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest

from ensue.core.errors import limit_in
from ensue.protocols.interface import Effect, Frame, Persist, Refuse, Resumed, Send
from ensue.protocols.shared.remote_state import DISMISSED, HELD_MAX, RETRY_NS, RemoteState
from ensue.protocols.shared.state_store import (
    ASKED_MAX,
    Dismiss,
    Dismissed,
    NotKept,
    NotRecalled,
    Recall,
    Recalled,
    Remember,
    Remembered,
    StateStore,
    StateStoreConfig,
)

Records = Mapping[str, bytes]
Writes = Mapping[str, bytes | None]


class Word(Frame, frozen=True, tag=101):
    """The frame that the node sends after a batch."""

    number: int


class Clerk:
    """A node that persists what a test asks for, and sends a word after each batch."""

    def __init__(self, name: str, records: Records) -> None:
        self.name = name
        self.records = dict(records)
        self.effects: list[Effect] = []
        self.timer_ns: int | None = None
        self.heard: list[Frame] = []
        self.timers: list[int] = []
        self.repeats = 0

    def write(self, writes: Writes, word: int) -> None:
        self.effects += [Persist(key, value) for key, value in writes.items()]
        self.effects.append(Send("peer", Word(number=word)))

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        self.heard.append(frame)

    def handle_timer(self, *, now_ns: int) -> None:
        self.timers.append(now_ns)

    def next_timer_ns(self) -> int | None:
        return self.timer_ns

    def take_effects(self) -> Sequence[Effect]:
        effects, self.effects = self.effects, []
        return effects

    def repeat(self, *, now_ns: int) -> None:
        self.repeats += 1


class Office:
    """A state store with its disk; each step is synced before its answers leave."""

    def __init__(self, **config: Any) -> None:
        self.config = StateStoreConfig(**config)
        self.disk: dict[str, bytes] = {}
        self.restart()

    def restart(self) -> None:
        self.store = StateStore(name="store", config=self.config, records=dict(self.disk))

    def handle(self, frame: Frame, source: str = "desk") -> list[Frame]:
        self.store.receive(frame, source=source, now_ns=0)
        answers: list[Frame] = []
        for effect in self.store.take_effects():
            if isinstance(effect, Persist):
                if effect.value is None:
                    self.disk.pop(effect.key, None)
                else:
                    self.disk[effect.key] = effect.value
            elif isinstance(effect, Send):
                assert effect.peer == source
                answers.append(effect.frame)
        return answers

    def recall(self, number: int, source: str = "desk") -> Recalled:
        (answer,) = self.handle(Recall(number=number), source)
        assert isinstance(answer, Recalled)
        return answer

    def remember(self, epoch: int, number: int, source: str = "desk", **writes: Any) -> list[Frame]:
        frame = Remember(epoch=epoch, number=number, writes=tuple(writes.items()))
        return self.handle(frame, source)

    def safe(self, source: str = "desk") -> dict[str, bytes]:
        """The records that a new client would recall if the state store restarted now."""
        copy = StateStore(name="store", config=self.config, records=dict(self.disk))
        copy.receive(Recall(number=2**53), source=source, now_ns=0)
        (recalled,) = (
            effect.frame
            for effect in copy.take_effects()
            if isinstance(effect, Send) and isinstance(effect.frame, Recalled)
        )
        return recalled.records


def desk(number: int = 7, *, now_ns: int = 0) -> RemoteState[Clerk]:
    def build(records: Records, _now_ns: int) -> Clerk:
        return Clerk("desk", records)

    return RemoteState(build, name="desk", store="store", number=number, now_ns=now_ns)


def opened(office: Office, number: int = 7) -> RemoteState[Clerk]:
    """Return a client that has its records."""
    kept = desk(number)
    answer(kept, *asked(office, kept))
    return kept


def asked(office: Office, kept: RemoteState[Clerk]) -> list[Frame]:
    """Pass a client's requests to the state store; return the answers."""
    answers: list[Frame] = []
    for effect in kept.take_effects():
        if isinstance(effect, Send) and effect.peer == "store":
            answers += office.handle(effect.frame)
    return answers


def answer(kept: RemoteState[Clerk], *frames: Frame, now_ns: int = 0) -> None:
    for frame in frames:
        kept.receive(frame, source="store", now_ns=now_ns)


def clerk(kept: RemoteState[Clerk]) -> Clerk:
    assert kept.inner is not None
    return kept.inner


def words(effects: Sequence[Effect]) -> list[int]:
    return [e.frame.number for e in effects if isinstance(e, Send) and isinstance(e.frame, Word)]


def to_store(effects: Sequence[Effect]) -> list[Frame]:
    return [e.frame for e in effects if isinstance(e, Send) and e.peer == "store"]


# -- The state store -------------------------------------------------------------------------------


def test_remembered_records_are_recalled() -> None:
    office = Office()
    assert office.recall(1) == Recalled(number=1, epoch=1, records={})
    assert office.remember(1, 1, a=b"1", b=b"2") == [Remembered(epoch=1, number=1)]
    assert office.remember(1, 2, a=b"3", b=None) == [Remembered(epoch=1, number=2)]
    assert office.recall(2) == Recalled(number=2, epoch=2, records={"a": b"3"})


def test_repeated_recall_starts_no_new_epoch() -> None:
    office = Office()
    office.recall(1)
    office.remember(1, 1, a=b"1")
    assert office.recall(1) == Recalled(number=1, epoch=1, records={"a": b"1"})
    assert office.remember(1, 2, a=b"2") == [Remembered(epoch=1, number=2)]


def test_second_recall_starts_an_epoch_and_fences_the_first() -> None:
    office = Office()
    first, second = office.recall(1), office.recall(2)
    assert second.epoch > first.epoch
    assert office.remember(first.epoch, 1, a=b"old") == [
        NotKept(epoch=first.epoch, reason="superseded")
    ]
    assert office.safe() == {}
    assert office.remember(second.epoch, 1, a=b"new") == [Remembered(epoch=2, number=1)]
    assert office.safe() == {"a": b"new"}


def test_late_recall_does_not_take_the_name_back() -> None:
    office = Office()
    first, second = office.recall(1), office.recall(2)
    office.restart()
    assert office.handle(Recall(number=1)) == [NotRecalled(number=1, reason="superseded")]
    assert office.remember(second.epoch, 1, a=b"new") == [Remembered(epoch=second.epoch, number=1)]
    assert office.remember(first.epoch, 1, a=b"old") == [
        NotKept(epoch=first.epoch, reason="superseded")
    ]
    # Memory of earlier requests is bounded.
    for number in range(3, 4 + ASKED_MAX):
        office.recall(number)
    assert office.recall(1).records == {"a": b"new"}


def test_changes_apply_once_and_in_order() -> None:
    office = Office()
    office.recall(1)
    office.remember(1, 1, a=b"1")
    office.remember(1, 2, a=b"2")
    # Repeated: the answer has the last applied number.
    assert office.remember(1, 1, a=b"1") == [Remembered(epoch=1, number=2)]
    # Beyond the next one: this store had confirmed the one between, and has lost it.
    assert office.remember(1, 4, a=b"4") == [NotKept(epoch=1, reason="rolled back")]
    assert office.safe() == {"a": b"2"}


def test_store_that_lost_an_epoch_says_so() -> None:
    office = Office()
    office.recall(1)
    assert office.remember(2, 1, a=b"1") == [NotKept(epoch=2, reason="rolled back")]
    office.recall(2)
    assert office.remember(1, 1, a=b"1") == [NotKept(epoch=1, reason="superseded")]


def test_names_do_not_collide_whatever_characters_they_contain() -> None:
    office = Office()
    names = ("a", "a/b", "a/b/c", "1/a", "", "ä/2")
    for index, name in enumerate(names):
        office.recall(1, name)
        office.remember(1, 1, name, **{"b/x": b"%d" % index, "": b"e", "x": name.encode()})
    office.restart()
    for index, name in enumerate(names):
        assert office.recall(2, name).records == {
            "b/x": b"%d" % index,
            "": b"e",
            "x": name.encode(),
        }


def test_restarted_state_store_knows_records_epochs_and_numbers() -> None:
    office = Office()
    office.recall(1)
    office.remember(1, 1, a=b"1")
    office.restart()
    assert office.recall(1) == Recalled(number=1, epoch=1, records={"a": b"1"})
    assert office.remember(1, 1, a=b"again") == [Remembered(epoch=1, number=1)]
    assert office.safe() == {"a": b"1"}
    assert office.remember(1, 2, a=b"2") == [Remembered(epoch=1, number=2)]
    office.recall(2)
    office.restart()
    assert office.remember(1, 3, a=b"3") == [NotKept(epoch=1, reason="superseded")]


def test_name_is_unknown_before_its_recall() -> None:
    office = Office()
    assert office.remember(1, 1, a=b"1") == [NotKept(epoch=1, reason="forgotten")]
    assert office.disk == {}


def test_beyond_names_max_new_names_are_refused_and_known_ones_continue() -> None:
    office = Office(names_max=2)
    office.recall(1, "a")
    office.recall(1, "b")
    (answer,) = office.handle(Recall(number=1), "c")
    assert isinstance(answer, NotRecalled)
    assert limit_in(answer.reason) == ("names_max", 2)
    assert office.recall(2, "a").epoch == 2
    office.handle(Dismiss(epoch=2), "a")
    assert office.recall(1, "c").epoch == 1


def test_batch_beyond_records_max_is_refused_whole() -> None:
    office = Office(records_max=2)
    office.recall(1)
    office.remember(1, 1, a=b"1", b=b"2")
    assert office.remember(1, 2, a=b"3", c=b"4") == [
        NotKept(
            epoch=1,
            reason="the records of the durable subscription are too many or too large "
            "(limit records_max=2): "
            "give it fewer topics",
        ),
    ]
    assert office.safe() == {"a": b"1", "b": b"2"}
    assert office.remember(1, 2, a=b"3") == [Remembered(epoch=1, number=2)]


def test_dismiss_removes_all_records_and_only_the_owner_can() -> None:
    office = Office()
    office.recall(1)
    office.remember(1, 1, a=b"1")
    office.recall(2)
    office.handle(Dismiss(epoch=1))
    assert office.safe() == {"a": b"1"}
    office.handle(Dismiss(epoch=2))
    assert office.disk == {}
    assert dict(office.store.names()) == {}


def test_client_of_a_dismissed_epoch_can_not_change_later_records() -> None:
    office = Office()
    stalled = office.recall(5)
    office.handle(Dismiss(epoch=office.recall(6).epoch))
    successor = office.recall(7)
    assert office.remember(stalled.epoch, 1, a=b"old") == [
        NotKept(epoch=stalled.epoch, reason="superseded")
    ]
    assert office.remember(successor.epoch, 1, a=b"new") == [
        Remembered(epoch=successor.epoch, number=1)
    ]
    office.handle(Dismiss(epoch=stalled.epoch))
    assert office.safe() == {"a": b"new"}


def test_state_store_has_no_timer_and_ignores_stray_frames() -> None:
    office = Office()
    office.store.handle_timer(now_ns=10**12)
    assert office.store.next_timer_ns() is None
    assert office.handle(Word(number=1)) == []
    assert office.handle(Remembered(epoch=1, number=1)) == []


# -- Remote state ------------------------------------------------------------------------


def test_node_is_built_when_its_records_arrive() -> None:
    office = Office()
    office.recall(1)
    office.remember(1, 1, a=b"1")
    kept = desk()
    assert kept.inner is None
    answers = asked(office, kept)
    answer(kept, *answers, *answers)
    assert clerk(kept).records == {"a": b"1"}
    assert kept.take_effects() == [Resumed()]


def test_answer_to_another_recall_or_from_another_peer_is_ignored() -> None:
    kept = desk(7)
    answer(kept, Recalled(number=6, epoch=1, records={}))
    kept.receive(Recalled(number=7, epoch=1, records={}), source="stranger", now_ns=0)
    assert kept.inner is None


def test_effects_after_a_persist_wait_until_it_is_remembered() -> None:
    office = Office()
    kept = opened(office)
    kept.take_effects()
    clerk(kept).write({"a": b"1"}, 1)
    effects = kept.take_effects()
    assert words(effects) == []
    (frame,) = to_store(effects)
    # Effects without a persist still wait for earlier ones.
    clerk(kept).write({}, 2)
    assert words(kept.take_effects()) == []
    assert kept.unremembered == 2
    answer(kept, *office.handle(frame))
    assert words(kept.take_effects()) == [1, 2]
    assert kept.unremembered == 0


def test_effects_without_a_persist_before_them_are_released_at_once() -> None:
    kept = opened(Office())
    kept.take_effects()
    clerk(kept).write({}, 1)
    effects = kept.take_effects()
    assert words(effects) == [1]
    assert to_store(effects) == []


def test_batches_made_meanwhile_are_remembered_together_in_order() -> None:
    office = Office()
    kept = opened(office)
    kept.take_effects()
    clerk(kept).write({"a": b"1"}, 1)
    (first,) = to_store(kept.take_effects())
    for number in range(2, 6):
        clerk(kept).write({"a": b"%d" % number, f"n{number}": b"", "n2": None}, number)
        assert to_store(kept.take_effects()) == []
    answer(kept, *office.handle(first))
    effects = kept.take_effects()
    assert words(effects) == [1]
    (together,) = to_store(effects)
    answer(kept, *office.handle(together))
    assert words(kept.take_effects()) == [2, 3, 4, 5]
    assert office.safe() == {"a": b"5", "n3": b"", "n4": b"", "n5": b""}


def test_unanswered_requests_are_repeated() -> None:
    office = Office()
    kept = desk()
    (recall,) = to_store(kept.take_effects())
    assert kept.next_timer_ns() == RETRY_NS
    kept.handle_timer(now_ns=RETRY_NS)
    assert to_store(kept.take_effects()) == [recall]
    answer(kept, *office.handle(recall), now_ns=RETRY_NS)
    assert kept.next_timer_ns() is None
    clerk(kept).write({"a": b"1"}, 1)
    (remember,) = to_store(kept.take_effects())
    assert kept.next_timer_ns() == 2 * RETRY_NS
    kept.handle_timer(now_ns=2 * RETRY_NS)
    assert to_store(kept.take_effects()) == [remember]
    answer(kept, *office.handle(remember), *office.handle(remember))
    assert words(kept.take_effects()) == [1]


def test_lost_connection_repeats_requests_of_wrapper_and_node_at_once() -> None:
    kept = opened(Office())
    kept.take_effects()
    clerk(kept).write({"a": b"1"}, 1)
    (remember,) = to_store(kept.take_effects())
    kept.repeat(now_ns=5)
    assert to_store(kept.take_effects()) == [remember]
    assert clerk(kept).repeats == 1
    waiting = desk()
    (recall,) = to_store(waiting.take_effects())
    waiting.repeat(now_ns=5)
    assert to_store(waiting.take_effects()) == [recall]


def test_node_repeats_even_if_the_wrapper_has_no_request() -> None:
    kept = opened(Office())
    kept.take_effects()
    kept.repeat(now_ns=5)
    assert clerk(kept).repeats == 1


def test_answer_to_an_earlier_change_releases_nothing() -> None:
    office = Office()
    kept = opened(office)
    kept.take_effects()
    clerk(kept).write({"a": b"1"}, 1)
    answers = asked(office, kept)
    answer(kept, *answers)
    kept.take_effects()
    clerk(kept).write({"a": b"2"}, 2)
    kept.take_effects()
    answer(kept, *answers, Remembered(epoch=2, number=2))
    assert words(kept.take_effects()) == []


def test_superseded_client_stops_with_the_reason() -> None:
    office = Office()
    kept = opened(office)
    kept.take_effects()
    office.recall(8)
    clerk(kept).write({"a": b"1"}, 1)
    clerk(kept).timer_ns = 3
    answer(kept, *asked(office, kept))
    assert kept.take_effects() == [Refuse((), "superseded")]
    assert kept.stopped == "superseded"
    answer(kept, Remembered(epoch=1, number=1), Word(number=1))
    kept.handle_timer(now_ns=10**12)
    clerk(kept).write({}, 2)
    assert kept.take_effects() == []
    clerk(kept).write({"a": b"2"}, 3)
    assert kept.take_effects() == []
    assert kept.next_timer_ns() is None
    assert clerk(kept).heard == []
    assert office.safe() == {}


def test_refusal_for_another_epoch_is_ignored() -> None:
    office = Office()
    office.recall(1)
    kept = opened(office)
    kept.take_effects()
    answer(kept, NotKept(epoch=1, reason="superseded"))
    kept.receive(NotKept(epoch=2, reason="superseded"), source="stranger", now_ns=0)
    assert not kept.stopped


def test_limit_of_the_state_store_stops_the_client_and_is_named() -> None:
    office = Office(names_max=1)
    office.recall(1, "other")
    kept = desk()
    answer(kept, *asked(office, kept))
    (refuse,) = kept.take_effects()
    assert isinstance(refuse, Refuse)
    assert "names_max" in refuse.reason
    crowded = Office(records_max=1)
    kept = opened(crowded)
    kept.take_effects()
    clerk(kept).write({"a": b"", "b": b""}, 1)
    answer(kept, *asked(crowded, kept))
    (refuse,) = kept.take_effects()
    assert isinstance(refuse, Refuse)
    assert "records_max" in refuse.reason


def test_client_of_a_rolled_back_store_ends_with_the_reason() -> None:
    office = Office()
    kept = opened(office)
    copy = dict(office.disk)
    clerk(kept).write({"a": b"1"}, word=1)
    answer(kept, *asked(office, kept))
    assert words(kept.take_effects()) == [1]
    office.disk = copy
    office.restart()
    clerk(kept).write({"a": b"2"}, word=2)
    answer(kept, *asked(office, kept))
    assert kept.take_effects() == [Refuse((), "rolled back")]
    assert kept.stopped == "rolled back"
    assert kept.next_timer_ns() is None


def test_refused_node_ends_although_its_store_does_not_answer() -> None:
    office = Office()
    kept = opened(office)
    clerk(kept).write({"a": b"1"}, word=1)
    assert words(kept.take_effects()) == []
    clerk(kept).effects.append(Refuse((), "rolled back"))
    assert kept.take_effects() == [Refuse((), "rolled back")]
    assert kept.next_timer_ns() is None


def test_refused_topics_wait_as_other_effects_do() -> None:
    office = Office()
    kept = opened(office)
    clerk(kept).write({"a": b"1"}, word=1)
    kept.take_effects()
    clerk(kept).effects.append(Refuse(("orders",), "no"))
    assert kept.take_effects() == []
    assert kept.stopped == ""


def test_dismissed_client_ends_when_all_is_remembered() -> None:
    office = Office()
    kept = opened(office)
    kept.take_effects()
    clerk(kept).write({"a": b"1"}, 1)
    kept.dismiss(lambda node: bool(node.heard))
    (remember,) = to_store(kept.take_effects())
    kept.receive(Word(number=1), source="peer", now_ns=0)
    assert kept.take_effects() == []
    answer(kept, *office.handle(remember))
    effects = kept.take_effects()
    assert words(effects) == [1]
    (dismiss,) = to_store(effects)
    assert isinstance(dismiss, Dismiss)
    # Lost: it is repeated, and nothing else happens until the answer arrives.
    clerk(kept).write({"a": b"2"}, 2)
    assert kept.take_effects() == []
    due_ns = kept.next_timer_ns()
    assert due_ns is not None
    kept.handle_timer(now_ns=due_ns)
    assert to_store(kept.take_effects()) == [dismiss]
    assert not kept.stopped
    first, again = office.handle(dismiss), office.handle(dismiss)
    assert first == again == [Dismissed(epoch=dismiss.epoch)]
    assert office.disk == {}
    answer(kept, *first)
    assert kept.take_effects() == [Refuse((), DISMISSED)]
    assert kept.next_timer_ns() is None


def test_frames_and_timers_reach_the_wrapped_node() -> None:
    kept = opened(Office())
    kept.take_effects()
    clerk(kept).timer_ns = 42
    assert kept.next_timer_ns() == 42
    kept.handle_timer(now_ns=42)
    kept.receive(Word(number=3), source="peer", now_ns=43)
    assert (clerk(kept).timers, clerk(kept).heard) == ([42], [Word(number=3)])


# -- On a channel that loses, repeats and reorders -------------------------------------------------


class World:
    """Successive clients of one name and a state store, with a lossy line between them.

    The model is a list of dictionaries: the records after each batch.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.office = Office()
        self.now_ns = 0
        self.states: list[dict[str, bytes]] = [{}]
        self.released = 0
        """The last batch whose word has left."""
        self.line: list[tuple[str, int, Frame]] = []
        """Target, incarnation of the client, and frame."""
        self.incarnation = 0
        self.kept = desk(1)

    def crash(self) -> None:
        """Crash and restart the client; it recalls the state after some whole batch."""
        self.incarnation += 1
        self.kept = desk(self.incarnation + 1, now_ns=self.now_ns)

    def step(self) -> None:
        random = self.random
        match random.choice(("write", "move", "move", "move", "crash", "restart", "time")):
            case "write" if self.kept.inner is not None and not self.kept.stopped:
                self.write()
            case "move":
                self.move()
            case "crash" if random.random() < 0.2:
                self.crash()
            case "restart" if random.random() < 0.3:
                self.office.restart()
            case "time":
                self.now_ns += random.randrange(RETRY_NS)
                self.kept.handle_timer(now_ns=self.now_ns)
            case _:
                pass
        self.drain()
        self.judge()

    def write(self) -> None:
        random = self.random
        keys = random.sample("abcde", random.randint(1, 4))
        writes = {key: None if random.random() < 0.3 else b"%d" % len(self.states) for key in keys}
        state = dict(self.states[-1])
        for key, value in writes.items():
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
        # So that no two states are alike.
        writes["batch"] = state["batch"] = b"%d" % len(self.states)
        clerk(self.kept).write(writes, len(self.states))
        self.states.append(state)

    def drain(self) -> None:
        effects = self.kept.take_effects()
        for word in words(effects):
            assert word == self.released + 1, "words are sent in order without gaps"
            self.released = word
        for frame in to_store(effects):
            self.line.append(("store", self.incarnation, frame))

    def move(self) -> None:
        random = self.random
        if not self.line:
            return
        place = random.randrange(len(self.line)) if random.random() < 0.5 else 0
        target, incarnation, frame = self.line[place]
        if random.random() < 0.8:
            del self.line[place]  # Otherwise it is duplicated.
        if random.random() < 0.2:
            return  # Lost.
        # Frames for an earlier incarnation may reach the current one.
        if target == "store" or incarnation == self.incarnation or random.random() < 0.5:
            self.pass_on(target, incarnation, frame)

    def pass_on(self, target: str, incarnation: int, frame: Frame) -> None:
        if target == "store":
            self.line += (("client", incarnation, each) for each in self.office.handle(frame))
            return
        before = self.kept.inner
        self.kept.receive(frame, source="store", now_ns=self.now_ns)
        if before is None and self.kept.inner is not None:
            self.take_up(clerk(self.kept).records)

    def take_up(self, records: dict[str, bytes]) -> None:
        """Continue the model from the state that a new incarnation recalls."""
        assert records in self.states, "half a batch"
        place = self.states.index(records)
        assert place >= self.released, "batches before a sent word are remembered"
        del self.states[place + 1 :]
        self.released = place

    def judge(self) -> None:
        safe = self.office.safe()
        if self.kept.inner is None:
            return  # Only the recalled state matters.
        assert safe in self.states, "half a batch"
        assert self.states.index(safe) >= self.released, "released before it was stored"


@pytest.mark.parametrize("seed", range(150))
def test_batches_are_atomic_ordered_and_stored_before_release(seed: int) -> None:
    world = World(seed)
    for _ in range(250):
        world.step()
    # With a reliable line and one incarnation, every frame arrives.
    world.crash()
    world.line = []
    for turn in range(20):
        world.drain()
        if turn < 10 and world.kept.inner is not None:
            world.write()
            world.drain()
        line, world.line = world.line, []
        for target, _, frame in line:
            world.pass_on(target, world.incarnation, frame)
        world.now_ns += RETRY_NS
        world.kept.handle_timer(now_ns=world.now_ns)
    world.drain()
    assert not world.kept.stopped
    assert world.kept.unremembered == 0
    assert world.released == len(world.states) - 1
    assert world.office.safe() == world.states[-1]


def test_node_rests_while_the_state_store_is_unreachable() -> None:
    office = Office()
    kept = opened(office)
    kept.take_effects()
    node = clerk(kept)
    node.write({"a": b"1"}, 0)
    (remember,) = to_store(kept.take_effects())

    # It sends a word for each frame, as a subscriber delivers each event.
    heard = 0
    for number in range(1, HELD_MAX + 1_000):
        kept.receive(Word(number=number), source="log", now_ns=number)
        if len(node.heard) > heard:
            heard = len(node.heard)
            node.effects.append(Send("peer", Word(number=number)))
        assert not words(kept.take_effects())
    assert len(node.heard) == HELD_MAX - 1, "with the word after the batch, the limit is reached"

    node.timer_ns = 5
    assert kept.next_timer_ns() == RETRY_NS, (
        "its timer is not due, but the question to the state store is"
    )
    kept.handle_timer(now_ns=RETRY_NS)
    kept.repeat(now_ns=RETRY_NS)
    assert (node.timers, node.repeats) == ([], 0)

    answer(kept, *office.handle(remember))
    assert words(kept.take_effects()) == list(range(HELD_MAX)), "the waiting words, in order"
    assert kept.next_timer_ns() == 5
    kept.receive(Word(number=0), source="log", now_ns=0)
    assert len(node.heard) == HELD_MAX

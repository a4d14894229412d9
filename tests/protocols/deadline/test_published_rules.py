"""Each fault of the published rules, shown as printed and fixed in ours.

Numbers are those of the errata.
"""

from collections.abc import Iterator

from tests.protocols.deadline.brokers import A, B, Broker, C, D, Listener, Pusher, event_of

from ensue.protocols.deadline.causality import Causality, Held, Sent
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.partial_views import Picker
from ensue.protocols.deadline.repair import Repair
from ensue.protocols.deadline.rounds import ReceivedRumor, Rounds

THREE = DeadlineConfig(subscribers_max=4, alpha=1)


# -- Between brokers -------------------------------------------------------------------------------


class AsPrinted(Causality):
    """Figures 4 and 5: stamps are clocks, own earlier messages are ignored, `=` tests deadlines."""

    def stamp(self, now_ns: int) -> int:
        return now_ns

    def deadline_ns(self, now_ns: int, lifetime_ns: int) -> int:
        return now_ns + lifetime_ns

    def offer(self, message: Sent, now_ns: int) -> str:
        if now_ns > message.deadline_ns:
            return "late"
        if self.is_settled(message.source, message.stamp):
            return "overtaken"
        copies = sum(key[:2] == message.key for key in self.waiting)
        key = message.key if not copies else (*message.key, copies)
        self.waiting[key] = Held(message, now_ns)  # type: ignore[index]
        return ""

    def next_ready(self, now_ns: int) -> Held | None:
        for key in list(self.waiting):
            message = self.waiting[key].sent
            rows = message.after.items()
            fine = not self.is_settled(message.source, message.stamp) and all(
                row.get(self.number, 0) <= self.settled.get(x, 0)
                for x, row in rows
                if x != message.source
            )
            after = [h.sent for h in self.waiting.values() if self._is_after(message, h.sent)]
            if fine or now_ns == min(other.deadline_ns for other in after):
                held = self.waiting.pop(key)
                self._learn(message)
                return held
        return None

    def expired(self, now_ns: int) -> list[Held]:
        return []

    def _is_after(self, message: Sent, other: Sent) -> bool:
        return message is other or self._precedes(message, other)


def pair(rule: type[Causality]) -> tuple[Broker, Broker]:
    return Broker(A, rule=rule), Broker(D, rule=rule)


def test_1_a_later_message_of_the_same_sender_overtakes() -> None:
    for rule, got in ((AsPrinted, ["m2"]), (Causality, ["m1", "m2"])):
        a, d = pair(rule)
        m1, m2 = a.send("m1", (D,), 1), a.send("m2", (D,), 2)
        d.receive(m2, 3)
        d.receive(m1, 4)
        assert d.got == got


def test_2_two_messages_of_one_instant() -> None:
    for rule, got in ((AsPrinted, ["m1"]), (Causality, ["m1", "m2"])):
        a, d = pair(rule)
        m1, m2 = a.send("m1", (D,), 1), a.send("m2", (D,), 1)
        d.receive(m1, 3)
        d.receive(m2, 4)
        assert d.got == got


def test_3_order_at_a_common_deadline() -> None:
    for rule, got in ((AsPrinted, ["m4", "m2"]), (Causality, ["m2", "m4"])):
        a, b, d = Broker(A, rule=rule), Broker(B, rule=rule), Broker(D, rule=rule)
        m1 = a.send("m1", (B, D), 1)
        b.receive(m1, 2)
        m2 = b.send("m2", (A, D), 3, deadline=200)
        a.receive(m2, 4)
        m4 = a.send("m4", (D,), 5, deadline=150)
        d.receive(m4, 6)
        d.receive(m2, 7)
        d.look(150)
        d.look(200)
        assert d.got == got


def test_4_a_copy_of_a_waiting_message() -> None:
    for rule, got in ((AsPrinted, ["m2", "m2"]), (Causality, ["m2"])):
        a, b, d = Broker(A, rule=rule), Broker(B, rule=rule), Broker(D, rule=rule)
        b.receive(a.send("m1", (B, D), 1), 2)
        m2 = b.send("m2", (D,), 3, deadline=50)
        d.receive(m2, 4)
        d.receive(m2, 5)
        d.look(50)
        assert d.got == got


def test_5_a_timer_that_fires_late() -> None:
    for rule, got in ((AsPrinted, []), (Causality, ["m2"])):
        a, b, d = (Broker(x, rule=rule, slack_ns=5) for x in (A, B, D))
        b.receive(a.send("m1", (B, D), 1), 2)
        d.receive(b.send("m2", (D,), 3, deadline=50), 4)
        d.look(49)
        d.look(51)
        if rule is Causality:
            assert d.refused == {}
        assert d.got == got


def test_5_and_one_that_fires_after_the_deadline_leaves_nothing_waiting() -> None:
    a, b, d = Broker(A), Broker(B), Broker(D)
    b.receive(a.send("m1", (B, D), 1), 2)
    d.receive(b.send("m2", (D,), 3, deadline=50), 4)
    d.look(51)
    assert (d.got, d.refused, d.rules.waiting) == ([], {"m2": "late"}, {})


def test_6_deadlines_that_fall() -> None:
    for rule, got in ((AsPrinted, ["m2"]), (Causality, ["m1", "m2"])):
        a, b, d = Broker(A, rule=rule), Broker(B, rule=rule), Broker(D, rule=rule)
        m1 = a.send("m1", (B, D), 1, deadline=300)
        b.receive(m1, 2)
        m2 = b.send("m2", (D,), 3)
        d.receive(m2, 4)
        d.look(103)
        d.receive(m1, 120)
        d.look(299)
        assert d.got == got, "m1 arrives in time"


# -- Towards subscribers ---------------------------------------------------------------------------


class RoundsAsPrinted(Rounds):
    """Figure 5 with three colors compared as numbers; a deadline color is a send color."""

    def offer(self, rumor: ReceivedRumor, now_round: int) -> str:
        color, current = rumor.round % 3, now_round % 3
        own = self._settled.get((rumor.topic, rumor.source), -1)
        if color < current or color < own or color <= own:
            return "late"
        self.waiting[rumor.key] = rumor
        return ""

    def next_ready(self, now_round: int) -> ReceivedRumor | None:
        for key in list(self.waiting):
            rumor = self.waiting[key]
            if rumor.round % 3 == now_round % 3 or not any(self._missing(rumor, now_round)):
                del self.waiting[key]
                self._settled[rumor.topic, rumor.source] = rumor.round % 3
                return rumor
        return None


def test_10_the_papers_own_figure_3_is_not_reproduced() -> None:
    for rule, got in ((RoundsAsPrinted, ["A1", "B2"]), (Rounds, ["A1", "B2", "B3"])):
        a, b, s3 = Pusher(A, THREE), Pusher(B, THREE), Listener(THREE, ["t"], rule=rule)
        a.learn(b.push("B1", "t", 1))
        a1 = a.push("A1", "t", 2)
        b.learn(a1)
        b2, b3 = b.push("B2", "t", 3), b.push("B3", "t", 4)
        s3.receive(a1, 2)
        if rule is RoundsAsPrinted:
            assert s3.got == ["A1"], "delivered on arrival, though B1 may still come"
        s3.receive(b2, 3)
        s3.look(4)
        s3.receive(b3, 5)
        assert s3.got == got


def test_10_and_11_a_message_is_late_when_its_lifetime_is_over_and_not_before() -> None:
    for rule, verdict in ((RoundsAsPrinted, "late"), (Rounds, "")):
        s = Listener(THREE, ["t"], rule=rule)
        s.receive(Pusher(A, THREE).push("m", "t", 4), 5)
        assert s.refused.get("m", "") == verdict, "red is 1, yellow is 2: late at the age of 1"


def test_8_vector_by_subscriber_does_not_identify_the_broker() -> None:
    """MS2 writes an entry per subscriber of a message; Del_viol_CO reads the one of its broker."""
    s2, s3 = 5, 6
    as_printed, here = dict.fromkeys((s2, s3), 1), dict[int, int]()
    assert as_printed.get(A, 0) <= here.get(A, 0), "the very first message counts as known"
    a, s = Pusher(A, THREE), Listener(THREE, ["t"])
    s.receive(a.push("m1", "t", 1), 1)
    assert a.push("m2", "t", 2).live == {"t": {A: 1}}
    assert (s.got, s.refused) == (["m1"], {})


def test_9_no_order_across_brokers_without_merging_vectors() -> None:
    for learns, got in ((False, ["m2", "m1"]), (True, ["m1", "m2"])):
        a, b, s = Pusher(A, THREE), Pusher(B, THREE), Listener(THREE, ["t"])
        m1 = b.push("m1", "t", 1)
        if learns:
            a.learn(m1)
        m2 = a.push("m2", "t", 2)
        s.receive(m2, 2)
        s.receive(m1, 3)
        assert s.got == got


class OtherBrokersAlone(Rounds):
    """Del_ok of Figure 5: earlier messages of the same broker are ignored."""

    def _missing(self, rumor: ReceivedRumor, now_round: int) -> Iterator[tuple[str, int]]:
        return (each for each in super()._missing(rumor, now_round) if each[1] != rumor.source)


class LooksForCopiesOnArrivalAlone(Rounds):
    """Del_viol_CO of Figure 5: a waiting message is in no vector, so its copy waits beside it."""

    def offer(self, rumor: ReceivedRumor, now_round: int) -> str:
        verdict = super().offer(rumor, now_round)
        if verdict != "duplicate":
            return verdict
        self.waiting[*rumor.key, len(self.waiting)] = rumor  # type: ignore[index]
        return ""


def test_12_overtaking() -> None:
    for rule, got in ((OtherBrokersAlone, ["m2"]), (Rounds, ["m1", "m2"])):
        a, s = Pusher(A, THREE), Listener(THREE, ["t"], rule=rule)
        m1, m2 = a.push("m1", "t", 1), a.push("m2", "t", 2)
        s.receive(m2, 2)
        s.receive(m1, 2)
        assert s.got == got
        assert s.refused == ({"m1": "overtaken"} if rule is OtherBrokersAlone else {})


def test_12_copies() -> None:
    for rule, got in (
        (LooksForCopiesOnArrivalAlone, ["m1", "m2", "m2"]),
        (Rounds, ["m1", "m2"]),
    ):
        a, s = Pusher(A, THREE), Listener(THREE, ["t"], rule=rule)
        m1, m2 = a.push("m1", "t", 1), a.push("m2", "t", 2)
        for rumor in (m2, m2, m1, m1):
            s.receive(rumor, 2)
        assert s.got == got


def test_13_no_subscriber_waits_for_expired_messages() -> None:
    class WaitsForSuccessors(Rounds):
        def _missing(self, rumor: ReceivedRumor, now_round: int) -> Iterator[tuple[str, int]]:
            alive = now_round < rumor.round + self.config.lifetime_rounds - 1
            return super()._missing(rumor, rumor.round if alive else now_round)

    for rule, got in ((WaitsForSuccessors, []), (Rounds, ["m2"])):
        a, s = Pusher(A, THREE), Listener(THREE, ["t"], rule=rule)
        a.push("m1", "t", 1)
        m2 = a.push("m2", "t", 3)
        s.receive(m2, 3)
        s.look(4)
        assert s.got == got


def test_14_a_broker_has_one_message_in_a_round_and_it_is_later_than_all_it_knows() -> None:
    a, b = Pusher(A, THREE), Pusher(B, THREE)
    m1 = a.push("m1", "t", 5)
    assert a.vector.next(5) == 6
    b.learn(m1)
    assert b.vector.next(5) == 6
    # Otherwise both expire together, and m2 is ordered or in time, not both.
    s = Listener(THREE, ["t"])
    same = ReceivedRumor("t", B, 5, {"t": {A: 5}}, (event_of("m2"),))
    s.receive(same, 5)
    s.look(7)
    assert s.got == []
    s.look(8)
    assert s.refused == {"m2": "late"}


def test_15_one_entry_for_several_groups_delays_others() -> None:
    a = Pusher(A, THREE)
    a.push("m1", "elsewhere", 1)
    m2 = a.push("m2", "here", 2)
    assert m2.live == {"elsewhere": {A: 1}}
    one_entry = ReceivedRumor("here", A, 2, {"here": {A: 1}}, m2.events)
    for rumor, got in ((one_entry, []), (m2, ["m2"])):
        s = Listener(THREE, ["here"])
        s.receive(rumor, 2)
        assert s.got == got


def test_15_only_live_rounds_are_named() -> None:
    a = Pusher(A, THREE)
    a.push("m1", "one", 1)
    a.push("m2", "two", 2)
    assert a.push("m3", "three", 4).live == {"two": {A: 2}}


def test_7_matrix_as_summary_requests_messages_for_others_and_misses_gaps() -> None:
    a, c = Broker(A), Broker(C)
    due = 10**9
    for_b = a.send("to B", (B,), 1, due)
    first, second = a.send("1", (C,), 2, due), a.send("2", (C,), 3, due)

    def asked_as_printed() -> set[tuple[int, int, int]]:
        """For all (x, y): MCP_i[x, y] < MCP_m[x, y]."""
        column = {x: {C: stamp} for x, stamp in c.rules.settled.items()}
        return {
            (x, y, stamp)
            for x, row in a.rules.matrix.items()
            for y, stamp in row.items()
            if column.get(x, {}).get(y, 0) < stamp
        }

    assert asked_as_printed() == {(A, B, for_b.stamp), (A, C, second.stamp)}
    c.receive(second, 4)
    assert asked_as_printed() >= {(A, C, second.stamp)}, "it has that one; the first is missing"
    repair = Repair(c.rules.config, Picker("a"))
    for message in (for_b, first, second):
        repair.keep(message, 4)
    summaries = dict(repair.summaries([B, C], 4 + c.rules.config.period_ns))
    assert summaries[C] == {A: (first.stamp, second.stamp)}, "nothing that is for B"
    assert repair.lacking(summaries[C], c.rules) == {A: (first.stamp,)}, "nothing that waits here"


def test_7_broker_requests_only_messages_addressed_to_it() -> None:
    a, c = Broker(A), Broker(C)
    other = a.send("to B", (B,), 1)
    mine = a.send("to C", (C,), 2)
    assert mine.after == {A: {B: other.stamp}}
    c.receive(mine, 3)
    assert c.got == ["to C"], "it does not wait for what is not for it"

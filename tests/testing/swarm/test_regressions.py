"""Seeds that found a defect once, and what it was."""

import pytest

from ensue.testing.swarm import draw, run


@pytest.mark.parametrize(
    ("order", "seed"),
    [
        # A server with users was killed before it had persisted what a client had published, and
        # that client was killed too: all summaries that named its event were refused, so nothing
        # was repaired for a minute, and events were given up as missed.
        ("causal", 36),
        # A clock that was set back began to slew when an idle publisher read it again, long
        # afterwards: its events were dropped as skewed.
        ("merged", 22),
        # A late event that was to be delivered found no room: it counted as late and as overflow.
        ("merged", 174),
        # A timer from before a clock was set forward held up the timers of events that came later:
        # an event that waited for a missing one was dropped as late.
        ("deadline", 74),
        # A station on a broker was rolled back to before what a plain subscription had read: it was
        # not ended, and dropped new events as duplicates.
        ("total", 1711),
        # The refusal of a durable subscription whose log was rolled back waited for its state
        # store, which was rolled back too and never answered.
        ("total", 2319),
        # A new publisher gave up on all members, which were cut off: it took its event for one
        # without subscribers, got a receipt, and left.
        ("causal", 88),
        # A slow reader left a topic, and dropped events that it had received and not delivered: it
        # was the only one that had them, and their publisher had its receipts and left.
        ("causal", 72),
        # A server was killed, and took all silent clients for ones that may have subscribed: the
        # receipts of a new publisher waited a minute for publishers that were killed.
        ("causal", 1980),
        # A publisher was cut off when a reader subscribed. It took its events for ones without
        # subscribers, and got receipts; the reader never got them.
        ("causal", 3344),
        # A reader returned after two publishers were killed. One had a receipt for an event that a
        # joining reader had acknowledged and dropped; the other alone had one of another topic. So
        # the reader skipped everything up to then in one topic, although events there only waited
        # for the other, and missed events that another reader still had.
        ("causal", 9713),
        # A server with users was killed before it had persisted what a client had published, and
        # that client was killed too. The only reader of its last event could not answer a new one,
        # whose subscription waited 26 seconds and began without that answer.
        ("causal", 1613),
        # A client closed before it was connected to the last node of the chain, which kept its slot
        # for a full lease: subscribers waited for ten seconds.
        ("total", 2074),
        # A server was restarted more often than leases run out, and began them again each time,
        # also those that had run out: subscribers waited for slots of killed publishers.
        ("total", 1260),
        # An acknowledgement was stored after its subscription was closed: the timer that limited
        # the wait ran on for seconds after the bus was closed.
        ("total", 10020),
        # The leave of an expired subscriber kept it alive at the next node of the chain.
        ("total", 57),
        ("total", 353),
        # A server was rolled back to before a subscription that had got no event yet: the
        # subscription dropped new events as published before it joined, without an error.
        ("total", 164),
        # A durable subscription left a topic with unread events and was killed: events that came
        # again had lower positions, and new events got positions that others had had.
        ("total", 1739),
        # A plan and a serializable transaction moved one subscription to two clients: both were
        # committed, and events in between did not reach the later one.
        ("transactions", 99),
        # A machine was suspended while a handler of an invitation ran, until brokers gave its
        # client up: its answer raised an exception in a task that no code awaits.
        ("transactions", 19),
        # A transaction that committed after a subscription had ended sent events that had matched
        # it before: the client kept them for a reader that never came.
        ("transactions", 52),
        # A planned subscription that another transaction withdrew first stayed open at its client.
        ("transactions", 701),
        # A server was suspended when a client entered its name. The client connected again, and
        # what it had sent on the abandoned connection came later: it was refused as superseded.
        ("transactions", 343),
        # A client that had not finished advertising published in a transaction: the subscriptions
        # of another server were not attracted yet, so one missed this event of the transaction.
        ("transactions", 1856),
        # A subscription was refused because the transaction of another client aborted, whose filter
        # covered it.
        ("transactions", 391),
        # The judge: a bus left when its connection had become silent, and the server accepted
        # another one only after `close_timeout`: its registry kept it.
        ("causal", 70),
        # The judge: a later life of a durable subscription left the topic of an event that was not
        # acknowledged, before that came again: its position went to the next event.
        ("total", 1435),
        # The program: a publisher with a void event left as soon as faults were over, while a
        # server was still away, which kept its session. It published no final events either.
        ("total", 2046),
        # The program: retention removed events that a durable subscription had got and not
        # acknowledged; it learned that, and their positions went to the next events.
        ("operations", 236),
        # The judge: a subscription moved on from a client that was suspended until brokers had
        # given it up, with the events that they had sent it.
        ("transactions", 123),
        # The judge: an event was on the way for 15 s, as the network had forgotten connections. It
        # arrived while a transaction that was then aborted had withdrawn the moved subscription.
        ("transactions", 1331),
        # The program: a server was suspended for 70 s, and an acknowledgement had to return in 60.
        ("total-noncausal", 41),
        # The program: a machine was suspended until servers had given a subscription up, which the
        # application has to expect.
        ("operations", 690),
        # The judge: a reader was killed while its machine was suspended, and all others that had an
        # event were killed before that; the event still counted as owed to the reader.
        ("causal", 325),
        # The judge: faults struck for 100 s. Durable subscriptions, suspended or cut off, left
        # topics before events came that others had got; they counted as owed after 20 s.
        ("total", 2034),
        # On a slow link, a reader with a small `pending_max` was paused and resumed while an answer
        # of the log arrived, and requested it again each time: its connection was busy for minutes.
        ("total", 1802),
        # A client closed its connection while a heartbeat arrived, which was answered by a reset:
        # the server lost its farewell, and kept its session.
        ("total", 1002),
        # A publisher left on a connection that the network had forgotten: its registry kept it.
        ("causal", 1025),
        # The judge: a reader continued after a pause while servers were away, and all others that
        # had an event were killed before it could reach them; the event still counted as owed.
        ("causal", 817),
        # A run read too far ahead after one that had stopped: what that had finished behind the
        # first unfinished event did not count.
        ("total", 92),
        # The same, for what that run had finished behind the last unfinished event.
        ("causal", 1221),
        # The judge: events of a publisher waited for a server that refuses its log, and the others
        # kept its session.
        ("total", 3280),
        # The program: a client whose server had lost its log published no more, so it did not
        # learn that it had to connect again, and could not deregister in the end.
        ("total", 2555),
        # The judge: a client without permission for all topics subscribed anew, 30 ms after the
        # last events were published.
        ("merged", 2010),
        # The program: a client with manual acknowledgements held two of three events for half a
        # second, in which merged order dropped, as documented, all last events of a publisher.
        ("merged", 99),
        # The judge: nobody else had the topics of a durable subscription, and without causal order
        # its unacknowledged events came again at other positions.
        ("total-noncausal", 10010),
        # The program: a durable subscription that closed while faults ended was not entered again,
        # so nothing read what it was owed.
        ("total-content", 190),
        # The judge: a station on a broker was rolled back, and a subscription that did not notice
        # got events of that time in another order.
        ("total", 1023),
        # The judge: a server without topics refused its log; it had the state of a durable
        # subscription, which waited for it.
        ("total-noncausal", 105),
        # The judge: a server refused its log, and a subscription to two topics of other servers
        # waited for an event whose stamp was to pass it.
        ("total-noncausal", 98),
        # The program: a server without topics refused its log, and had a topic without a place: the
        # client that published on it waited for it.
        ("total-noncausal", 1521),
        # The judge: a server was suspended until it had given a client up, and the client's reader
        # ended with the loss of its subscription.
        ("transactions", 232),
        # A client wrote hundreds of events to a broker over a link of low bandwidth. The broker
        # could not confirm them in time, and they were written again from the first, for ever.
        ("causal", 1171),
        ("deadline", 10863),
        # On slow links, all others sent a client that had been suspended what it lacked, each the
        # same events again and again, most of which it had no room for.
        ("causal", 9591),
    ],
)
def test_a_seed_that_found_a_defect_is_valid(order: str, seed: int) -> None:
    assert run(draw(seed, order)).problems == []

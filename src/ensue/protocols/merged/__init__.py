"""Merged order: every subscriber sorts by stamps alone, without a sequencer.

Guarantee
    All subscribers deliver the events that they have in common in the same order, and causes
    before effects while clocks and delays keep their bounds. An event is held at most
    delta + 3 epsilon, to the end of the tick. Order never depends on an answer: a lost event is
    lost, and no subscriber waits for it.

Theory of operation
    Time is counted in ticks of each process's own clock. Two clocks differ by at most epsilon; a
    message arrives before its sender's clock has advanced by more than delta, or counts as lost.
    `timestamps` defines logical timestamps over such clocks: a cause always has a smaller key than
    its effect. A `MergedPublisher` stamps its events. A `MergedSubscriber` holds each event in a
    `Merger` until no predecessor can arrive any more, and then delivers in key order. A
    `MergedRelay` sorts for other subscribers, and relays can be stacked.

    All processes must use the same bounds (`terms`). Behind a server they are agreed on at connect;
    on the topics of a broker each stamp carries them.

Assumptions
    Clocks do not go back, differ by at most epsilon, and messages take at most delta. The state of
    a merger is self-stabilizing: whatever a fault leaves in its memory, delta + 3 epsilon ticks
    after its next call nothing of it is left.

HAZARD: a message that takes longer than delta is late, and may have been in time at another
subscriber: the two deliver different sets of events. Order is kept.

HAZARD: a clock that is off by more than epsilon makes punctual events late, or look as if they came
from the future. Events are lost at that process until its clock is corrected. Order is kept, except
as `timestamps` and `merger` say for clocks that go back.

Deviations from the paper ("Stabilizing Causal Deterministic Merge", Kulkarni and Ravikant) are
listed in `timestamps` and `merger`.
"""

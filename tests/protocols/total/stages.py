"""Helpers for tests of a single sequencer."""

from collections.abc import Mapping
from typing import Any

from tests.protocols.total.harness import sent

from ensue.core.event import Event, Stamp
from ensue.protocols.interface import Broadcast, Effect, Frame, Persist, Send
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import (
    ChangeFill,
    ChangeRequest,
    Fill,
    Grant,
    Stamped,
    StampRequest,
)
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.sequencer import Sequencer

PLACEMENT = Placement(
    ["low", "middle", "high"], topics={"low": ["a", "b"], "middle": ["c"], "high": ["d"]}
)

FILL = Fill(publisher="p", origin="low", number=1, topic="a", stamp=Stamp({"a": 1}), last=2)
CHANGE = ChangeFill(subscriber="s", number=1, old=(), new=("a", "d"), entries={"a": 1}, last=2)


def node(name: str = "low", records: Mapping[str, bytes] | None = None, **config: Any) -> Sequencer:
    return Sequencer(
        name=name,
        placement=PLACEMENT,
        config=SequencerConfig(**{"leave_out": False, **config}),
        records=records,
    )


def ask(
    target: Sequencer, number: int, *topics: str, publisher: str = "p", settled: int = 1
) -> list[Frame]:
    frame = StampRequest(number=number, topics=topics, settled=settled)
    target.receive(frame, source=publisher, now_ns=0)
    return sent(target)


def change(
    target: Sequencer, number: int, old: str = "", new: str = "", *, subscriber: str = "s"
) -> list[Frame]:
    """Request a change; topics are written as one word."""
    frame = ChangeRequest(number=number, old=tuple(old), new=tuple(new))
    target.receive(frame, source=subscriber, now_ns=0)
    return sent(target)


def handle(target: Sequencer, frame: Frame, *, source: str = "p", at: int = 0) -> list[Frame]:
    target.receive(frame, source=source, now_ns=at)
    return sent(target)


def stamped(*entries: dict[str, int], number: int = 1, origin: str = "low") -> Stamped:
    grants = tuple(Grant(number + index, Stamp(each)) for index, each in enumerate(entries))
    return Stamped(origin=origin, grants=grants)


def broadcasts(effects: list[Effect]) -> list[Event]:
    return [each.event for each in effects if isinstance(each, Broadcast)]


def overdue(target: Sequencer, at: int) -> list[Event]:
    target.handle_timer(now_ns=at)
    return broadcasts(list(target.take_effects()))


class Disk(dict[str, bytes]):
    """Runs a node and keeps what it persists."""

    def drain(self, target: Sequencer) -> list[Frame]:
        frames: list[Frame] = []
        for effect in target.take_effects():
            if isinstance(effect, Persist):
                if effect.value is None:
                    self.pop(effect.key, None)
                else:
                    self[effect.key] = effect.value
            elif isinstance(effect, Send):
                frames.append(effect.frame)
        return frames

"""Planted bugs of events by content in total order.

`mutants` merges them with all others, and runs them.
"""

from typing import Any

from tests.testing.swarm.planted import Mutant

from ensue.client.content import cells as content_cells
from ensue.core.event import Event
from ensue.protocols.content.cells import Cells, Match
from ensue.protocols.interface import Deliver, Discard
from ensue.protocols.total.delivery import Delivery

__all__ = ["CELLS"]


def want_everything(self: Match, event: Event) -> bool:
    """The application gets every event of its cells."""
    self.counts.delivered += 1
    return bool(event)


def write_as_text(attributes: dict[str, Any]) -> dict[str, str]:
    """A number becomes the text that it is written as."""
    return {name: f'"{value}"' for name, value in attributes.items()}


def forget_last_attribute(self: Cells, event: dict[str, Any]) -> str:
    """The publisher takes the last attribute for absent."""
    classes = [axis.class_of(event.get(axis.name)) for axis in self.axes]
    return self._topic((*classes[:-1], 0))


def count_in_vain(self: Delivery, event: Event, slot: int, since_ns: int, now_ns: int) -> None:
    """An event that does not match takes a position."""
    skipped = self._skipped(event)
    self._progress.places[event.topic] = event.place
    self._progress.handled(event.topic, slot, count=not event.void)
    if skipped:
        self._effects.append(Discard(event, skipped))
    else:
        self._effects.append(Deliver(event, self._progress.delivered, "", now_ns - since_ns))


CELLS = tuple(
    Mutant(name, "total-content", (patch,))
    for name, patch in (
        ("events in vain reach the application", (Match, "__call__", want_everything)),
        ("numbers become text", (content_cells, "headers_of", write_as_text)),
        ("a publisher forgets an attribute", (Cells, "topic_of", forget_last_attribute)),
        ("an event in vain takes a position", (Delivery, "release", count_in_vain)),
    )
)

"""How somebody asks a station what it is doing. Questions and answers may be lost: ask again.

What there is to say beyond the protocol (connections, the journal, the time) a station does not know: whoever
runs it gives it the answer (`Station.on_look`).
"""

from ensue.event import Count, Name
from ensue.protocols.core import Frame

__all__ = ["FRAMES", "TOPICS_MAX", "Look", "Seen"]

TOPICS_MAX = 2_000
"""Topics that can be asked for by name at once: with the longest names the answer is half a megabyte."""


class Look(Frame, frozen=True, tag=52):
    """Tell me what you are doing."""

    number: Count
    """Chosen by the sender, and told again in the answer."""
    readable: tuple[Name, ...] | None = None
    """Tell only of topics that match any of these: a topic, a prefix with everything below it
    (`audit.*`), or all (`*`); None: of everything. A server puts in what the user may subscribe to."""
    topics: tuple[Name, ...] = ()
    """Also tell where these topics of yours begin and end; `TOPICS_MAX` at the most."""


class Seen(Frame, frozen=True, tag=53):
    """What the station is doing."""

    number: Count
    state: bytes
    """One JSON object: `ensue.server.state` says what is in it."""
    bounds: dict[Name, tuple[Count, Count]]
    """The first slot that is kept and the next free one of each topic that was asked for."""


FRAMES: tuple[type[Frame], ...] = (Look, Seen)

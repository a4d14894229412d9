"""A station: one stage of the chain, the log of its topics, and what clients ask it to remember.

Three nodes that share one name, one disk and one batch: whatever a frame causes in any of them is
persisted together. That is what makes `SequencerConfig.carries` safe: the count of a topic and the
event that has the slot survive a crash together or not at all.

The log of a topic is at the station that hosts the topic. A void for a topic of another station
goes there as a `Put`.
"""

from collections.abc import Mapping, Sequence

from ensue.protocols import ens, keeping
from ensue.protocols.core import Broadcast, Effect, Frame, Send
from ensue.protocols.ens import EnsConfig, KeptEvents, Put, TopicLog
from ensue.protocols.keeping import Keeper, KeeperConfig
from ensue.protocols.sequencer import frames
from ensue.protocols.sequencer.config import SequencerConfig
from ensue.protocols.sequencer.node import SequencerNode
from ensue.protocols.sequencer.placement import Placement

__all__ = ["FRAMES", "UNNUMBERED", "Station"]

FRAMES: tuple[type[Frame], ...] = (*frames.FRAMES, *keeping.FRAMES)
"""Everything that stations and their clients tell each other."""

UNNUMBERED: tuple[type[Frame], ...] = (
    frames.Repeat,
    frames.ChangeRepeat,
    ens.Put,
    ens.Accepted,
    ens.Taken,
)
"""What stations tell each other and need no numbered link for: whoever sends these repeats them."""

_FOR_LOG = (ens.Put, ens.AttachRequest, ens.DetachRequest)
_FOR_KEEPER = (keeping.Recall, keeping.Remember, keeping.Dismiss)


class Station:
    """One station. It has no commands of its own but `trim`: it answers frames.

    `records` is what an earlier incarnation persisted, without the events if `kept` has them.
    """

    def __init__(
        self,
        *,
        name: str,
        placement: Placement,
        config: SequencerConfig,
        ens_config: EnsConfig | None = None,
        keeper_config: KeeperConfig | None = None,
        records: Mapping[str, bytes] | None = None,
        kept: KeptEvents | None = None,
        now_ns: int = 0,
    ) -> None:
        self.name = name
        self.placement = placement
        own = records or {}
        of_log = {key: own[key] for key in own if key.startswith(("event/", "first/", "attached/"))}
        of_keeper = {key: own[key] for key in own if key.startswith(("keeper/", "kept/"))}
        of_node = {key: own[key] for key in own if key not in of_log and key not in of_keeper}
        self.node = SequencerNode(
            name=name, placement=placement, config=config, records=of_node, now_ns=now_ns
        )
        self.log = TopicLog(name=name, config=ens_config, records=of_log, kept=kept)
        self.keeper = Keeper(name=name, config=keeper_config, records=of_keeper)
        self._now_ns = now_ns

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Hand a frame to whom it is for."""
        self._now_ns = now_ns
        if isinstance(frame, _FOR_LOG):
            self.log.receive(frame, source=source, now_ns=now_ns)
        elif isinstance(frame, _FOR_KEEPER):
            self.keeper.receive(frame, source=source, now_ns=now_ns)
        else:
            self.node.receive(frame, source=source, now_ns=now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Let the sequencer do what is due."""
        self._now_ns = now_ns
        self.node.handle_timer(now_ns=now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when the sequencer has something due."""
        return self.node.next_timer_ns()

    def trim(self, topic: str, first: int) -> None:
        """Note that events of a topic below a slot are no longer kept."""
        self.log.trim(topic, first)

    def take_effects(self) -> Sequence[Effect]:
        """Drain what is to be done, after the three have told each other what they must."""
        effects: list[Effect] = []
        for effect in self.node.take_effects():
            if not isinstance(effect, Broadcast):
                effects.append(effect)
            elif (home := self.placement.node(effect.event.topic)) == self.name:
                self.log.receive(Put(event=effect.event), source=self.name, now_ns=self._now_ns)
            else:
                effects.append(Send(home, Put(event=effect.event)))
        for effect in self.log.take_effects():
            if isinstance(effect, Send) and effect.peer == self.name:
                # The answer to what the sequencer put out or voided.
                self.node.receive(effect.frame, source=self.name, now_ns=self._now_ns)
            else:
                effects.append(effect)
        effects += self.node.take_effects()
        effects += self.keeper.take_effects()
        return effects

"""Turn the tables below `faults` of a scenario file into faults.

A table that names several nodes, a group or a site is one fault for each of them where faults
strike nodes, and one fault for all of them where it strikes what is sent.
"""

from collections.abc import Iterator

from ensue.simulation.scenario import Vanish
from ensue.simulation.scenario_file.names import Directory, placed
from ensue.simulation.scenario_file.tables import FaultsTable
from ensue.simulation.world.faults import ClockJump, Clog, Crash, Faults, Noise, Partition, Pause

__all__ = ["FaultsBuilder"]


class FaultsBuilder:
    """Builds the faults of one file."""

    def __init__(self, table: FaultsTable, names: Directory) -> None:
        self._table = table
        self._names = names

    def faults(self) -> Faults:
        """Return all but the vanished publishers."""
        return Faults(
            partitions=tuple(self._partitions()),
            clogs=tuple(self._clogs()),
            noises=tuple(self._noises()),
            pauses=tuple(self._pauses()),
            crashes=tuple(self._crashes()),
            clock_jumps=tuple(self._clock_jumps()),
        )

    def _partitions(self) -> Iterator[Partition]:
        for index, table in enumerate(self._table.partition):
            place = f"faults.partition[{index}]"
            self._names.span(place, table.from_, table.until)
            with placed(place):
                yield Partition(
                    side=self._names.nodes(f"{place}.side", table.side),
                    other=self._names.nodes(f"{place}.other", table.other),
                    from_ns=table.from_,
                    until_ns=table.until,
                    one_way=table.one_way,
                )

    def _clogs(self) -> Iterator[Clog]:
        for index, table in enumerate(self._table.clog):
            place = f"faults.clog[{index}]"
            self._names.span(place, table.from_, table.until)
            yield Clog(
                sources=self._names.nodes(f"{place}.sources", table.sources),
                targets=self._names.nodes(f"{place}.targets", table.targets),
                from_ns=table.from_,
                until_ns=table.until,
            )

    def _noises(self) -> Iterator[Noise]:
        for index, table in enumerate(self._table.noise):
            place = f"faults.noise[{index}]"
            self._names.span(place, table.from_, table.until)
            yield Noise(
                loss=table.loss,
                duplication=table.duplication,
                reordering=table.reordering,
                sources=self._names.nodes(f"{place}.sources", table.sources),
                targets=self._names.nodes(f"{place}.targets", table.targets),
                from_ns=table.from_,
                until_ns=table.until,
            )

    def _pauses(self) -> Iterator[Pause]:
        for index, table in enumerate(self._table.pause):
            place = f"faults.pause[{index}]"
            self._names.span(place, table.from_, table.until)
            for node in self._names.nodes(f"{place}.node", table.node):
                yield Pause(node=node, from_ns=table.from_, until_ns=table.until)

    def _crashes(self) -> Iterator[Crash]:
        for index, table in enumerate(self._table.crash):
            place = f"faults.crash[{index}]"
            at_ns = self._names.within(f"{place}.at", table.at)
            for node in self._names.nodes(f"{place}.node", table.node):
                yield Crash(node=node, at_ns=at_ns, restart_after_ns=table.restart_after)

    def _clock_jumps(self) -> Iterator[ClockJump]:
        for index, table in enumerate(self._table.clock_jump):
            place = f"faults.clock_jump[{index}]"
            at_ns = self._names.within(f"{place}.at", table.at)
            for node in self._names.nodes(f"{place}.node", table.node):
                with placed(place):
                    yield ClockJump(node=node, at_ns=at_ns, by_ns=table.by, monotone=table.monotone)

    def vanish(self) -> tuple[Vanish, ...]:
        """Return the publishers that vanish."""
        return tuple(
            Vanish(publisher=name, at_ns=self._names.within(f"faults.vanish[{index}].at", table.at))
            for index, table in enumerate(self._table.vanish)
            for name in self._names.publishers_named(
                f"faults.vanish[{index}].publisher", table.publisher
            )
        )

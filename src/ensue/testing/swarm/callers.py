"""The processes of programs by content that make rare calls."""

from collections.abc import Callable, Iterator, Sequence
from random import Random

from ensue.testing.swarm.client_watch import ClientWatch
from ensue.testing.swarm.content_caller import ContentCaller, ContentPhase
from ensue.testing.swarm.content_calls import ContentCalls
from ensue.testing.swarm.durable_calls import DurableCalls, DurableTerms
from ensue.testing.swarm.invitation_calls import InvitationCalls
from ensue.testing.swarm.plan_calls import PlanCalls
from ensue.testing.swarm.rare_calls import GUESTS, KEPT, OFFERS, PLANS
from ensue.testing.world import World

__all__ = ["make_callers"]

_CALLERS: dict[str, type[ContentCaller]] = {
    OFFERS: ContentCalls,
    PLANS: PlanCalls,
    GUESTS: InvitationCalls,
    KEPT: DurableCalls,
}


def make_callers(
    calls: Sequence[str],
    world: World,
    problems: list[str],
    *,
    phase: ContentPhase,
    url: Callable[[Random], str],
    late_s: float,
    watch: ClientWatch,
    expired: tuple[type[Exception], ...],
    terms: DurableTerms,
    reader_url: str,
    servers: int,
) -> Iterator[ContentCaller]:
    """Yield a process for each of the calls that a program makes."""
    for each in calls:
        caller = _CALLERS[each](
            world, problems, phase=phase, url=url, late_s=late_s, watch=watch, expired=expired
        )
        if isinstance(caller, DurableCalls):
            caller.expect(terms, reader_url=reader_url, servers=servers)
        yield caller

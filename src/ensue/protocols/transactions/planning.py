"""What is wrong with a plan, if anything: judged by the coordinator's home before anything of it happens."""

from collections.abc import Iterator, Mapping

from ensue.errors import BadInput, limit_reason
from ensue.protocols.overlay import frames as f
from ensue.protocols.overlay.config import OverlayConfig
from ensue.protocols.overlay.filters import event_of
from ensue.protocols.overlay.parsing import parse
from ensue.protocols.overlay.refusing import INVERSE, SPLIT, no_such, too_long
from ensue.protocols.overlay.tables import Tables
from ensue.protocols.transactions.frames import Operation, Submit

__all__ = ["flaw"]


def flaw(
    plan: Submit, tables: Tables, members: Mapping[str, tuple[str, str]], config: OverlayConfig
) -> str:
    """Say what is wrong with a plan, if anything."""
    return next(_flaws(plan, tables, members, config), "")


def _flaws(
    plan: Submit, tables: Tables, members: Mapping[str, tuple[str, str]], config: OverlayConfig
) -> Iterator[str]:
    if not plan.operations:
        yield "the plan is empty"
    if len(plan.operations) > config.operations_max:
        what = "the plan has too many operations"
        yield limit_reason(what, "operations_max", config.operations_max, SPLIT)
    if not 0 < plan.timeout_ns <= config.timeout_ns_max:
        yield too_long(config)
    seen: dict[str, None] = {}
    for one in plan.operations:
        if one.path in seen:
            yield f"operation {one.path} is planned twice"
        if not all(each in seen for each in one.after):
            yield f"operation {one.path} comes after one that is not planned before it"
        if one.client not in members:
            yield f"nobody here is called {one.client!r}"
        try:
            _, hop = members.get(one.client, ("", ""))
            wrong = _flaw_of(one, plan, tables, hop)
        except BadInput as error:
            wrong = str(error)
        if wrong:
            yield f"operation {one.path}: {wrong}"
        seen[one.path] = None


def _flaw_of(one: Operation, plan: Submit, tables: Tables, hop: str) -> str:
    if (one.change is None) == (one.publication is None):
        return "it must change or publish something, and not both"
    if one.change is not None:
        if not one.change.name.startswith(f"{one.client}."):
            return f"{one.change.name!r} does not belong to {one.client}"
        if one.change.action in INVERSE:
            parse(one.change.where)
        return no_such(one.change)
    assert one.publication is not None
    event = event_of(one.publication.attributes)
    covering = tables.advertised(event, hop)
    promised = [
        its.change.where
        for its in plan.operations
        if its.client == one.client and its.change is not None and its.change.action == f.ADVERTISE
    ]
    if any(name.startswith(f"{one.client}.") for name in covering):
        return ""
    if any(parse(where).matches(event) for where in promised):
        return ""
    return f"no advertisement of {one.client} covers it"

"""Transactions that do not conflict commute at a broker: the argument of `locks`, by example."""

from random import Random
from unittest import mock

import pytest

from ensue.protocols.content.frames import Change, Publication
from ensue.protocols.content.tables import Layer, Tables, TablesRecord
from ensue.protocols.transactions import contexts, locks
from ensue.protocols.transactions.contexts import Context, Logged, run

NEIGHBORS, CLIENTS = ("n1", "n2"), ("c1", "c2")
FILTERS = (
    "x = 1", "x = 2", "x = 3", "x <= 2", "x >= 2", "x exists", "x = 1 and y = 1", "x = 1 and y = 2",
    "x = 1 and y <= 2", "x = 3 and y > 2", "x = 3 and y <= 2",
)  # fmt: skip
SEEDS = range(4000)


def context_of(
    tables: Tables, *steps: tuple[str, str, str] | tuple[str, dict[str, int]]
) -> Context:
    """Return a transaction with steps (hop, action, name[=filter]) or (hop, event)."""
    context = Context(tables, isolated=True)
    for step in steps:
        changes: tuple[Change, ...] = ()
        publication = None
        if len(step) == 3:
            name, _, where = step[2].partition("=")
            changes = (Change(step[1], name, where),)
        else:
            publication = Publication(publisher="c1", number=1, attributes=dict(step[1]))
        logged = Logged(step[0], changes, publication, {}, [], {})
        context.log.append(run(context.tables, logged))
    context.changed = list(_changed(context, tables))
    return context


def _changed(context: Context, tables: Tables) -> dict[str, None]:
    layer, found = Layer(tables).tables, dict[str, None]()
    for step in context.log:
        found.update(contexts.changed_filters(step, layer))
        run(layer, step)
    return found


def drawn(random: Random) -> tuple[Tables, Context, Context]:
    """Return random tables, and two transactions over them."""
    tables = Tables(NEIGHBORS)
    for number in range(random.randint(2, 8)):
        action, hop = random.choice(("adv", "sub")), random.choice((*NEIGHBORS, *CLIENTS))
        tables.apply(Change(action, f"{action}{number}", random.choice(FILTERS)), hop)
    found = []
    for label in ("t", "u"):
        steps: list[tuple[str, str, str] | tuple[str, dict[str, int]]] = []
        for number in range(random.randint(1, 3)):
            held = [("uadv", *one) for one in tables.advertisements.items()]
            held += [("usub", *one) for one in tables.subscriptions.items()]
            roll = random.random()
            if roll < 0.2:
                event = {"x": random.randint(1, 3), "y": random.randint(1, 3)}
                steps.append((random.choice((*NEIGHBORS, *CLIENTS)), event))
            elif roll < 0.6 and held:
                action, name, entry = random.choice(held)
                steps.append((entry.hop, action, name))
            else:
                hop, action = random.choice((*NEIGHBORS, *CLIENTS)), random.choice(("adv", "sub"))
                steps.append((hop, action, f"{label}{number}={random.choice(FILTERS)}"))
        found.append(context_of(tables, *steps))
    return tables, found[0], found[1]


def outcomes(record: TablesRecord, first: Context, second: Context) -> tuple[object, ...]:
    """Return what two transactions do one after the other, and the tables after them."""
    tables = Tables(NEIGHBORS, record)
    done = [contexts._comparable(run(tables, step)) for step in (*first.log, *second.log)]
    after = tables.record()
    return done[: len(first.log)], done[len(first.log) :], sorted_tables(after)


def sorted_tables(record: TablesRecord) -> object:
    return (
        sorted(record.advertisements.items()),
        sorted(record.subscriptions.items()),
        {neighbor: sorted(passed.items()) for neighbor, passed in record.passed.items()},
    )


def commute(seed: int) -> bool | None:
    """Return whether two transactions that do not conflict commute; None if they conflict."""
    tables, one, other = drawn(Random(f"locks/{seed}"))
    if locks.overlap(one, other):
        return None
    record = tables.record()
    mine, its, after = outcomes(record, one, other)
    its_first, mine_second, after_both = outcomes(record, other, one)
    return (mine, its, after) == (mine_second, its_first, after_both)


def test_transactions_that_do_not_conflict_commute() -> None:
    found = [commute(seed) for seed in SEEDS]
    assert found.count(True) > 500
    assert False not in found


def own_filters(step: Logged, tables: Tables) -> dict[str, None]:
    """An advertisement does not lock the subscriptions that depend on it."""
    held = [tables.table(each).get(each.name) for each in step.changes]
    own = [each.where for each in step.changes if each.where]
    return dict.fromkeys(own + [entry.where for entry in held if entry is not None])


def no_changes(step: Logged, tables: Tables) -> dict[str, None]:
    """Nothing but events and names is locked."""
    del step, tables
    return {}


@pytest.mark.parametrize("wrong", [own_filters, no_changes])
def test_smaller_locks_would_not_do(wrong: object) -> None:
    with mock.patch.object(contexts, "changed_filters", wrong):
        assert False in [commute(seed) for seed in SEEDS]


def test_unlocked_events_would_not_do() -> None:
    with mock.patch.object(locks, "_events", return_value=()):
        assert False in [commute(seed) for seed in SEEDS]


def test_unlocked_names_would_not_do() -> None:
    """A filter that matches nothing overlaps nothing, but can be withdrawn once only."""
    tables = Tables(NEIGHBORS)
    tables.apply(Change("sub", "c1.s", "x = 1 and x = 2"), "c1")
    withdrawal = ("c1", "usub", "c1.s")
    assert locks.overlap(context_of(tables, withdrawal), context_of(tables, withdrawal))
    with mock.patch.object(locks, "_names", return_value=set()):
        assert not locks.overlap(context_of(tables, withdrawal), context_of(tables, withdrawal))

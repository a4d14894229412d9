"""Scenario files with transactions: what they mean, what they refuse, how they are judged."""

from pathlib import Path

import pytest

from ensue.core.errors import BadInput
from ensue.protocols.content.frames import Change
from ensue.protocols.transactions.broker import TransactionBroker
from ensue.simulation.content_spec import ContentRate
from ensue.simulation.deployments.base import Roles
from ensue.simulation.deployments.transaction_clients import Act, RegularSpec, TransactionSpec
from ensue.simulation.run import Outcome, play
from ensue.simulation.scenario_file.reader import load, loads

MS = 1_000_000
SECOND = 1_000_000_000
DISPATCH = Path(__file__).parents[3] / "examples" / "scenarios" / "dispatch.toml"

CAST = """
order = "transactions"
[[brokers]]
name = "b"
count = 3
site = ["north", "south"]
[[clients]]
name = "shop"
home = "b-1"
advertisements = [{ where = "x exists", name = "all" }]
[[clients]]
name = "desk"
count = 3
home = ["b-2", "b-3"]
subscriptions = [{ where = "x = 1", name = "mine", at = "1s", until = "2s" }]
"""


def transaction(operations: str, more: str = "") -> str:
    """Return a file with one transaction of the shop."""
    return f'{CAST}[[transactions]]\nclient="shop"\nat="1s"\n{more}\noperations=[{operations}]'


def test_brokers_form_a_tree_and_clients_have_homes_in_turn() -> None:
    overlay = loads(CAST).overlay
    assert overlay.brokers == {"b-1": ("b-2", "b-3"), "b-2": ("b-1",), "b-3": ("b-1",)}
    assert overlay.clients == {"shop": "b-1", "desk-1": "b-2", "desk-2": "b-3", "desk-3": "b-2"}
    assert overlay.sites == {"b-1": "north", "b-2": "south", "b-3": "north"}


def test_broker_names_its_parent() -> None:
    text = CAST + '[[brokers]]\nname = "far"\nparent = "b-3"'
    assert loads(text).overlay.brokers["far"] == ("b-3",)


def test_entries_events_and_rates_of_clients() -> None:
    overlay = loads(
        CAST
        + """
        [[clients]]
        name = "more"
        home = "b-1"
        events = [{ at = "3s", publish = { x = 1, y = "a" }, size = 4 }]
        rates = [{ publish = [{ x = 1 }, { x = 2 }], per_second = 5, from = "1s", until = "2s" }]
        """
    ).overlay
    assert [one for one in overlay.regular if one.client == "desk-2"] == [
        RegularSpec(
            client="desk-2",
            at_ns=SECOND,
            act=Act(action="sub", label="desk-2/sub/mine", where="x = 1"),
        ),
        RegularSpec(
            client="desk-2", at_ns=2 * SECOND, act=Act(action="usub", label="desk-2/sub/mine")
        ),
    ]
    event = Act(action="pub", attributes={"x": 1, "y": "a"}, payload=bytes(4))
    assert overlay.regular[-1] == RegularSpec(client="more", at_ns=3 * SECOND, act=event)
    assert overlay.rates == (
        ContentRate(
            client="more",
            attributes=({"x": 1}, {"x": 2}),
            per_second=5,
            from_ns=SECOND,
            until_ns=2 * SECOND,
        ),
    )


def test_operations_of_a_transaction() -> None:
    text = transaction(
        """
        { publish = { x = 1 }, size = 3 },
        { invite = "desk-1", operations = [
            { unsubscribe = "mine" },
            { invite = "desk-2", operations = [{ subscribe = "x = 2", name = "new" }] },
        ] },
        { unadvertise = "all" },
        """,
        'isolation = "atomic"\ntimeout = "3s"\ncommit = false\nattempts = 2',
    )
    inner = Act(
        action="invite",
        client="desk-2",
        acts=(Act(action="sub", label="desk-2/sub/new", where="x = 2"),),
    )
    assert loads(text).overlay.transactions == (
        TransactionSpec(
            client="shop",
            at_ns=SECOND,
            acts=(
                Act(action="pub", attributes={"x": 1}, payload=bytes(3)),
                Act(
                    action="invite",
                    client="desk-1",
                    acts=(Act(action="usub", label="desk-1/sub/mine"), inner),
                ),
                Act(action="uadv", label="shop/adv/all"),
            ),
            isolation="atomic",
            timeout_ns=3 * SECOND,
            commit=False,
            attempts=2,
        ),
    )


def test_content_table_configures_brokers() -> None:
    config = loads(CAST + '[content]\nlease = "3s"\noperations_max = 7').overlay.config
    assert (config.lease_ns, config.operations_max) == (3 * SECOND, 7)


INNER = "transactions[0].operations[0].operations[0]"
ONE_OF = (
    "transactions[0].operations[0]: needs exactly one of publish, subscribe, unsubscribe, "
    "advertise, unadvertise, invite"
)
CLIENT = CAST + '[[clients]]\nname = "c"\nhome = "b-1"\n'
REFUSED = [
    ('order = "transactions"', 'brokers: order = "transactions" needs at least 1 broker'),
    (
        '[[brokers]]\nname = "b"',
        'brokers: this table is for order = "transactions", not for order = "total"',
    ),
    (
        CAST + '[[publishers]]\nname = "p"',
        'publishers: there are none with order = "transactions"; clients publish',
    ),
    (
        CAST + '[[brokers]]\nname = "c"\nparent = "d"',
        "brokers[1].parent: there is no node, group or site 'd'",
    ),
    (
        CAST + '[[brokers]]\nname = "c"\nparent = "b"',
        "brokers[1].parent: 'b' stands for 3 nodes; name one of them",
    ),
    (
        'order = "transactions"\n[[brokers]]\nname = "a"\nparent = "b"\n[[brokers]]\nname = "b"',
        "brokers[0].parent: the first broker has no parent",
    ),
    (
        CAST + '[[clients]]\nname = "c"\nhome = "shop"',
        "clients[2].home: there is no broker 'shop'; there are: b-1, b-2, b-3",
    ),
    (
        CLIENT + 'subscriptions = [{ where = "x =" }]',
        "clients[2].subscriptions[0].where: ",
    ),
    (
        CLIENT
        + 'subscriptions = [{ where = "x = 1", name = "a" }, { where = "x = 2", name = "a" }]',
        "clients[2]: the name 'a' is used twice",
    ),
    (
        CLIENT + "rates = [{ publish = [], per_second = 1 }]",
        "clients[2].rates[0]: a rate needs attributes",
    ),
    (
        CLIENT + "rates = [{ publish = [{x=1}], per_second = 1e9 }]",
        "clients[2].rates[0]: ask for 10000000000 events",
    ),
    (
        CAST + '[[faults.vanish]]\npublisher = "b-1"\nat = "1s"',
        "faults.vanish[0].publisher: there is no client 'b-1'",
    ),
    (
        CAST + '[[faults.crash]]\nnode = "ens"\nat = "1s"',
        'faults.crash[0].node: with order = "transactions" there is neither chain nor ens',
    ),
    (CAST + '[content]\nlease = "1s"', "content: beat must be below lease"),
    (transaction(""), "transactions[0].operations: needs at least 1 operation"),
    (
        transaction("{ size = 1 }"),
        f"{ONE_OF}; got none",
    ),
    (
        transaction('{ subscribe = "x = 1", advertise = "x = 1" }'),
        f"{ONE_OF}; got subscribe and advertise",
    ),
    (
        transaction('{ invite = "desk-1", operations = [{ unsubscribe = "mein" }] }'),
        f"{INNER}.unsubscribe: there is no subscription of desk-1 'mein'; did you mean 'mine'?",
    ),
    (
        transaction('{ unsubscribe = "mine" }'),
        "transactions[0].operations[0].unsubscribe: there is no subscription of shop 'mine'",
    ),
    (
        transaction('{ invite = "shop" }'),
        "transactions[0].operations[0].invite: 'shop' can't invite itself",
    ),
    (
        transaction('{ invite = "desk" }'),
        "transactions[0].operations[0].invite: 'desk' stands for 3 nodes; name one of them",
    ),
    (
        transaction('{ subscribe = "x = 1", size = 1 }'),
        "transactions[0].operations[0].size: is for",
    ),
    (transaction("{ publish = { x = 1 }, name = 'a' }"), "transactions[0].operations[0].name: is"),
    (
        transaction("{ publish = { x = 1 }, operations = [{ publish = { x = 1 } }] }"),
        "transactions[0].operations[0].operations: is for invite only",
    ),
    (
        transaction("{ publish = { x = 1 } }", "hold = true"),
        'transactions[0].hold: is for isolation = "planned", got "serializable"',
    ),
    (
        transaction("{ publish = { x = 1 } }", 'isolation = "planned"\ncommit = false'),
        "transactions[0].commit: only a held plan can abort",
    ),
    (
        transaction("{ publish = { x = 1 } }", "attempts = 0"),
        "transactions[0].attempts: must be from 1 to 100, got 0",
    ),
    (
        transaction("{ publish = { x = 1 } }", 'timeout = "11m"'),
        "transactions[0].timeout: must be above 0 and at most 600s",
    ),
    (
        transaction("{ publish = { x = 1 } }", 'isolation = "serialisable"'),
        "transactions[0].isolation: there is no 'serialisable' here; did you mean 'serializable'?",
    ),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[message[:60] for _, message in REFUSED])
def test_error_names_file_and_place(text: str, message: str) -> None:
    with pytest.raises(BadInput) as refused:
        loads(text, source="day.toml")
    assert str(refused.value).startswith(f"day.toml: {message}")


def row_keys(outcome: Outcome) -> list[tuple[str, int, str, str | None, int | None]]:
    """Return what identifies the rows of a run."""
    return [(row.node, row.step, row.action, row.event, row.true_ns) for row in outcome.rows]


def test_same_seed_gives_the_same_run() -> None:
    scenario = load(DISPATCH)
    runs = [row_keys(play(scenario, seed)) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_moved_order_reaches_one_driver_at_a_time() -> None:
    outcome = play(load(DISPATCH), 3)
    assert outcome.valid, outcome.sentences()
    drivers = {row.node for row in outcome.rows if row.action == "delivered"}
    assert drivers == {"driver-1", "driver-2"}
    began = {row.transaction for row in outcome.rows if row.action == "began"}
    committed = {row.transaction for row in outcome.rows if row.action == "committed"}
    assert began == committed
    assert len(began) == 3


def test_broken_broker_is_found() -> None:
    class Forgetful(TransactionBroker):
        """Forgets a client's last subscription when it restarts."""

        def __init__(self, **options: object) -> None:
            super().__init__(**options)  # type: ignore[arg-type]
            mine = [
                name for name, one in self.tables.subscriptions.items() if one.hop in self.clients
            ]
            for name in mine[-1:]:
                self.tables.apply(Change("usub", name), name.rpartition(".")[0])

    outcome = play(load(DISPATCH), 1, roles=Roles(broker=Forgetful))
    assert not outcome.valid

"""Random scenarios of transactions: trees, clients, operations, and faults.

Some seeds have serializable transactions alone, which are judged most sharply: *move* takes
subscriptions from one client to another while many events are published, *dense* has many short
ones at once. Others mix all kinds with regular operations. Most events are published by clients
that advertised them from the start; those with `y` are advertised, and that is withdrawn, within
transactions. Each seed turns some faults on and others off; most let a node or two crash right
after some frame.
"""

from collections.abc import Sequence
from random import Random

import msgspec

from ensue.protocols.content.config import ContentConfig
from ensue.protocols.shared.link import CONNECTED, LinkConfig
from ensue.protocols.transactions.frames import ANYONE, ATOMIC, PLANNED, SERIALIZABLE
from ensue.simulation.content_spec import ContentSpec
from ensue.simulation.deployments.durable_readers import ReaderSpec
from ensue.simulation.deployments.transaction_clients import Act, RegularSpec, TransactionSpec
from ensue.simulation.scenario import Scenario, Vanish
from ensue.simulation.swarms.draws import (
    MS,
    SECOND,
    draw_clocks,
    draw_delay,
    draw_faults,
    draw_network,
    draw_round_trips,
)
from ensue.simulation.world.delays import Constant, Uniform
from ensue.simulation.world.disks import DiskConfig
from ensue.simulation.world.faults import Clog, Faults
from ensue.simulation.world.network import NetworkConfig

__all__ = ["draw"]

DURABLE_RATE = 0.15
"""How many of the seeds have a durable subscription."""
QUIET_NS = 2 * SECOND
"""Until then clients come, advertise and subscribe; no fault strikes."""
FILTERS = ("x = 1", "x = 2", "x >= 1 and x <= 2", "x > 0", "x exists", "x = 1 and z = 1")
USUAL, SELDOM = "x <= 3", "x = 7 and y exists"
"""What all clients have advertised, and what is advertised within transactions: they don't overlap,
so that the latter attracts subscriptions that wait for it."""


def draw(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    random = Random(f"swarm/transactions/{seed}")
    load = random.choice(("mixed", "mixed", "mixed", "move", "dense"))
    calm = random.random() < (0.4 if load == "mixed" else 0.8)
    duration_ns = QUIET_NS + random.randrange(SECOND, (2 if calm else 3) * SECOND)
    brokers = _tree(random, random.choice((1, 2, 3, 3, 4, 5, 6)))
    clients = {f"c{number}": random.choice(list(brokers)) for number in range(random.randint(3, 6))}
    people = _People(random, list(clients), duration_ns, load=load, calm=calm)
    kinds: tuple[str, ...] = (SERIALIZABLE,)
    if load == "mixed":
        every = (SERIALIZABLE, ATOMIC, PLANNED)
        kinds = random.choice((kinds, (ATOMIC,), (PLANNED,), every))
    nodes = [*brokers, *clients]
    vanish: tuple[Vanish, ...] = ()
    if not calm and random.random() < 0.3:
        gone = random.choice(list(clients))
        vanish = (Vanish(publisher=gone, at_ns=random.randrange(QUIET_NS, duration_ns)),)
    config = _config(random)
    regular = people.regular(churn=load == "mixed" and random.random() < 0.6)
    transactions = _halved(seed, _decided_later(seed, people.transactions(kinds)))
    regular, transactions = _by_content(
        seed, list(clients), kinds, regular, transactions, people.close_ns
    )
    scenario = Scenario(
        name="swarm-transactions",
        order="transactions",
        duration_ns=duration_ns,
        overlay=ContentSpec(
            brokers=brokers,
            clients=clients,
            config=config,
            regular=regular,
            transactions=transactions,
            crash_after_frames=() if calm else _crashes(random, nodes),
            silent_crashes=not calm and random.random() < 0.3,
        ),
        network=NetworkConfig(default=Uniform(0, random.randrange(1, 20 * MS)))
        if calm
        else draw_network(random),
        disk=DiskConfig(sync=random.choice((Constant(0), Uniform(0, 5 * MS), draw_delay(random))))
        if not calm
        else DiskConfig(),
        link=_link(random),
        clocks=draw_clocks(random, nodes),
        faults=_slow_links(random, list(brokers), people.close_ns)
        if calm
        else _later(draw_faults(random, nodes, duration_ns - QUIET_NS)),
        vanish=vanish,
        encode=random.random() < 0.05,
    )
    return draw_round_trips(_with_readers(seed, scenario), seed)


def _with_readers(seed: int, scenario: Scenario) -> Scenario:
    """Have clients read a durable subscription in turn, in a few seeds.

    Drawn by a generator of its own: all else is as it was drawn. Readers don't crash, but may
    vanish; the last one stays until the end.
    """
    random = Random(f"swarm/transactions/durable/{seed}")
    if random.random() >= DURABLE_RATE:
        return scenario
    overlay, end_ns = scenario.overlay, scenario.duration_ns
    names = [f"r{number}" for number in range(random.randint(2, 3))]
    home, where = random.choice(list(overlay.brokers)), random.choice(FILTERS)

    def step(client: str, at_ns: int, action: str = "attach", window: int = 1_000) -> ReaderSpec:
        return ReaderSpec(
            client=client,
            at_ns=at_ns,
            action=action,
            name="d",
            where=where,
            window=window,
            wait_ns=random.choice((0, 0, 5 * MS, 100 * MS)),
            handles=1_000_000 if window < 1_000 else random.choice((1, 5, 1_000_000)),
        )

    steps = [step(names[0], 600 * MS, window=random.choice((1, 3, 1_000)))]
    for _ in range(random.randint(1, 6)):
        action = random.choice(("attach", "attach", "attach", "release", "release", "forget"))
        if action == "forget" and random.random() < 0.7:
            action = "release"
        at_ns = random.randrange(QUIET_NS, end_ns)
        client, window = random.choice(names[:-1]), random.choice((1, 3, 1_000))
        steps.append(step(client, at_ns, action, window))
    steps.append(step(names[-1], end_ns))
    vanish = scenario.vanish
    if not vanish and random.random() < 0.3:
        vanish = (Vanish(publisher=names[0], at_ns=random.randrange(QUIET_NS, end_ns)),)
    return msgspec.structs.replace(
        scenario,
        overlay=msgspec.structs.replace(
            overlay,
            clients={**overlay.clients, **dict.fromkeys(names, home)},
            readers=tuple(steps),
        ),
        vanish=vanish,
    )


def _by_content(
    seed: int,
    clients: Sequence[str],
    kinds: Sequence[str],
    regular: tuple[RegularSpec, ...],
    transactions: tuple[TransactionSpec, ...],
    close_ns: int,
) -> tuple[tuple[RegularSpec, ...], tuple[TransactionSpec, ...]]:
    """Add transactions that invite by content to some seeds, drawn by a generator of its own."""
    random = Random(f"swarm/transactions/recipients/{seed}")
    isolations = [kind for kind in kinds if kind != PLANNED]
    if not isolations or random.random() < 0.6:
        return regular, transactions
    takers: list[RegularSpec] = []
    for number, client in enumerate(clients):
        # Some come, and some go, while invitations are under way.
        late_ns = close_ns + random.randrange(300 * MS)
        at_ns = 600 * MS if random.random() < 0.7 else late_ns
        label, where = f"take-{number}", random.choice(("x exists", "x <= 1", "x = 2"))
        take = Act(action="take", label=label, where=where)
        takers.append(RegularSpec(client=client, at_ns=at_ns, act=take))
        if random.random() < 0.2:
            leave = Act(action="usub", label=label)
            takers.append(RegularSpec(client=client, at_ns=late_ns, act=leave))
    inviting = []
    for number in range(random.randint(1, 3)):
        x = random.randint(0, 2)
        acts = [
            Act(action="pub", attributes={"x": random.randint(0, 3), "z": 1}),
            Act(action="sub", label=f"taken-{number}", where=random.choice(FILTERS)),
        ]
        if random.random() < 0.3:
            other = random.choice(clients)
            inner = (Act(action="pub", attributes={"x": 1, "z": 0}),)
            acts.append(Act(action="invite", client=other, acts=inner))
        random.shuffle(acts)
        invitation = Act(
            action="invite",
            client=ANYONE,
            attributes={"x": x},
            acts=tuple(acts[: random.randint(0, len(acts))]),
        )
        inviting.append(
            TransactionSpec(
                client=random.choice(clients),
                at_ns=close_ns + random.randrange(400 * MS),
                acts=(
                    Act(action="pub", attributes={"x": x, "z": 0}),
                    invitation,
                    Act(action="pub", attributes={"x": x, "z": 1}),
                ),
                isolation=random.choice(isolations),
                timeout_ns=random.choice((300 * MS, 2 * SECOND, 20 * SECOND)),
                commit=random.random() < 0.8,
                attempts=random.choice((1, 3)),
            )
        )
    return (*regular, *takers), (*transactions, *inviting)


def _decided_later(
    seed: int, transactions: tuple[TransactionSpec, ...]
) -> tuple[TransactionSpec, ...]:
    """Have applications wait before they decide about some of the plans that they hold.

    Drawn by a generator of its own: all else is as it was drawn.
    """
    random = Random(f"swarm/transactions/held/{seed}")
    if random.random() < 0.6:
        return transactions
    return tuple(
        msgspec.structs.replace(spec, wait_ns=random.choice((20 * MS, 200 * MS, 3 * SECOND)))
        if spec.hold
        else spec
        for spec in transactions
    )


def _link(random: Random) -> LinkConfig:
    """Draw waits of links.

    With bursts as on servers, acknowledgements wait and frames are grouped as they are there.
    """
    retry_ns = random.randrange(20 * MS, 200 * MS)
    burst = random.choice((4, 64))
    link = LinkConfig(retry_ns=retry_ns, retry_ns_max=500 * MS, burst=burst)
    if burst != LinkConfig().burst:
        return link
    group_bytes = (1, 200, CONNECTED.group_bytes)[retry_ns % 3]
    return msgspec.structs.replace(link, acknowledge_ns=retry_ns // 2, group_bytes=group_bytes)


def _slow_links(random: Random, brokers: Sequence[str], close_ns: int) -> Faults:
    """Hold some links between brokers up for a while.

    So commits and publications meet everywhere.
    """
    clogs = []
    for _ in range(random.randint(0, 10) if len(brokers) > 1 else 0):
        start_ns = close_ns + random.randrange(500 * MS)
        source, target = random.sample(brokers, 2)
        until_ns = start_ns + random.randrange(10 * MS, 150 * MS)
        clogs.append(
            Clog(sources=(source,), targets=(target,), from_ns=start_ns, until_ns=until_ns)
        )
    return Faults(clogs=tuple(clogs))


def _tree(random: Random, count: int) -> dict[str, tuple[str, ...]]:
    links: dict[str, list[str]] = {f"b{number}": [] for number in range(count)}
    for number in range(1, count):
        other = f"b{random.randrange(number)}"
        links[f"b{number}"].append(other)
        links[other].append(f"b{number}")
    return {name: tuple(others) for name, others in links.items()}


def _config(random: Random) -> ContentConfig:
    lease_ns = random.choice((2 * SECOND, 20 * SECOND, 20 * SECOND))
    return ContentConfig(
        lease_ns=lease_ns,
        beat_ns=lease_ns // 8,
        hello_ns=50 * MS,
        retry_ns=random.choice((5 * MS, 50 * MS)),
        journal_bytes_min=(journal_bytes_min := random.choice((1, 2000, 50_000))),
        # Most have brokers away that are merely slow, or down for a moment.
        away_ns={1: 60 * MS, 2000: 300 * MS}.get(journal_bytes_min, 20 * SECOND),
    )


def _crashes(random: Random, nodes: Sequence[str]) -> tuple[tuple[str, int], ...]:
    if random.random() < 0.3:
        return ()
    return tuple(
        (random.choice(nodes), random.randrange(5, 150)) for _ in range(random.randint(1, 3))
    )


def _later(faults: Faults) -> Faults:
    """Let faults strike after the quiet time."""
    moved: dict[str, tuple[object, ...]] = {}
    for field in faults.__struct_fields__:
        moved[field] = tuple(_moved(fault) for fault in getattr(faults, field))
    return Faults(**moved)  # type: ignore[arg-type]


def _moved(fault: object) -> object:
    values = {name: getattr(fault, name) for name in fault.__struct_fields__}  # type: ignore[attr-defined]
    for name in ("at_ns", "from_ns", "until_ns"):
        if values.get(name) is not None:
            values[name] += QUIET_NS
    return type(fault)(**values)


class _People:
    """What clients do."""

    def __init__(
        self,
        random: Random,
        clients: Sequence[str],
        duration_ns: int,
        *,
        load: str,
        calm: bool,
    ) -> None:
        self._random = random
        self._load = load
        self._calm = calm
        self.close_ns = random.randrange(QUIET_NS, duration_ns)
        """When most happens."""
        self._clients = clients
        self._duration_ns = duration_ns
        self._labels = 0
        self._held: list[tuple[str, str]] = []
        """Labels of subscriptions and their clients, as far as they are known in advance."""
        self._promised: list[tuple[str, str]] = []
        """Labels of advertisements in transactions, and their clients."""
        self._withdrawable = self._promised
        """Those of them that the transaction which is drawn may withdraw."""

    def _label(self) -> str:
        self._labels += 1
        return f"l{self._labels}"

    def _when(self) -> int:
        if self._load != "mixed" or self._random.random() < 0.6:
            return self.close_ns + self._random.randrange(400 * MS)
        return self._random.randrange(QUIET_NS, self._duration_ns)

    def regular(self, *, churn: bool) -> tuple[RegularSpec, ...]:
        """Advertise and subscribe first; publish, and perhaps change subscriptions, later."""
        random = self._random
        found: list[RegularSpec] = []

        def add(client: str, at_ns: int, act: Act) -> None:
            found.append(RegularSpec(client=client, at_ns=at_ns, act=act))

        for client in self._clients:
            add(client, 100 * MS, Act(action="adv", label=self._label(), where=USUAL))
            for _ in range(random.randint(0, 2)):
                label = self._label()
                self._held.append((client, label))
                where = random.choice((*FILTERS, SELDOM, SELDOM, SELDOM))
                add(client, 500 * MS, Act(action="sub", label=label, where=where))
        for _ in range(random.randint(60, 120) if self._load == "move" else random.randint(5, 30)):
            add(random.choice(self._clients), self._when(), self._pub())
        if churn:
            for _ in range(random.randint(1, 6)):
                client, at_ns = random.choice(self._clients), self._when()
                if self._held and random.random() < 0.4:
                    client, label = random.choice(self._held)
                    add(client, at_ns, Act(action="usub", label=label))
                else:
                    where = random.choice(FILTERS)
                    add(client, at_ns, Act(action="sub", label=self._label(), where=where))
        return tuple(found)

    def transactions(self, kinds: Sequence[str]) -> tuple[TransactionSpec, ...]:
        """Return a few transactions at random times, some close together."""
        random = self._random
        found = []
        count = {"mixed": random.randint(1, 7), "move": random.randint(1, 3)}
        for _ in range(count.get(self._load, random.randint(5, 10))):
            client = random.choice(self._clients)
            isolation = random.choice(kinds)
            short_ns = 2 * SECOND if self._calm else 300 * MS
            # Plans are not isolated: one that withdrew what another transaction has just advertised
            # would take away whom that one's publications go to.
            self._withdrawable = [] if isolation == PLANNED else self._promised
            if self._load == "move" or random.random() < 0.2:
                acts = self._move(client)
            else:
                acts = self._acts(client, depth=0 if self._load == "dense" else 2)
            found.append(
                TransactionSpec(
                    client=client,
                    at_ns=self.close_ns + random.randrange(40 * MS)
                    if self._load == "dense"
                    else self._when(),
                    acts=acts,
                    isolation=isolation,
                    timeout_ns=random.choice((short_ns, 2 * SECOND, 20 * SECOND)),
                    commit=random.random() < (0.85 if isolation == SERIALIZABLE else 0.6),
                    hold=isolation == PLANNED and random.random() < 0.6,
                    attempts=random.choice((1, 3)),
                )
            )
        return tuple(
            spec if spec.isolation != PLANNED or spec.commit or spec.hold else _held(spec)
            for spec in found
        )

    def _move(self, client: str) -> tuple[Act, ...]:
        """Move a subscription from another client to this one."""
        if not self._held:
            return self._acts(client, depth=1)
        owner, label = self._random.choice(self._held)
        gone = Act(action="usub", label=label)
        if owner != client:
            gone = Act(action="invite", client=owner, acts=(gone,))
        return (self._sub(client), gone)

    def _acts(self, client: str, *, depth: int) -> tuple[Act, ...]:
        random = self._random
        acts: list[Act] = []
        for _ in range(random.randint(1, 4 if depth == 2 else 3)):
            roll = random.random()
            mine = [label for owner, label in self._held if owner == client]
            if roll < 0.3:
                acts.append(self._pub())
            elif roll < 0.5:
                acts.append(self._sub(client))
                if random.random() < 0.2:
                    acts.append(Act(action="usub", label=acts[-1].label))
            elif roll < 0.65 and mine:
                acts.append(Act(action="usub", label=random.choice(mine)))
            elif roll < 0.75:
                acts.extend(self._promise(client))
            elif depth:
                others = [other for other in self._clients if other != client]
                other = random.choice(others)
                inner = self._acts(other, depth=depth - 1)
                acts.append(Act(action="invite", client=other, acts=inner))
            else:
                acts.append(self._pub())
        return tuple(acts)

    def _pub(self) -> Act:
        attributes = {"x": self._random.randint(0, 3), "z": self._random.randint(0, 1)}
        return Act(action="pub", attributes=dict(attributes))

    def _sub(self, client: str) -> Act:
        label = self._label()
        self._held.append((client, label))
        where = self._random.choice((*FILTERS, SELDOM))
        return Act(action="sub", label=label, where=where)

    def _promise(self, client: str) -> list[Act]:
        """Advertise `y` and publish it, or withdraw an advertisement."""
        mine = [label for owner, label in self._withdrawable if owner == client]
        if mine and self._random.random() < 0.5:
            return [Act(action="uadv", label=self._random.choice(mine))]
        label = self._label()
        self._promised.append((client, label))
        if self._withdrawable is not self._promised:
            self._withdrawable.append((client, label))
        return [
            Act(action="adv", label=label, where=SELDOM),
            Act(action="pub", attributes={"x": 7, "y": self._random.randint(0, 3)}),
        ]


def _halved(seed: int, specs: tuple[TransactionSpec, ...]) -> tuple[TransactionSpec, ...]:
    """Have some seeds advertise less in each transaction than one subscription spans.

    So transactions conflict by a subscription that neither of them changes.
    """
    if Random(f"swarm/halves/{seed}").random() >= 0.3:
        return specs
    return tuple(msgspec.structs.replace(spec, acts=_half_promised(spec.acts)) for spec in specs)


def _half_promised(acts: tuple[Act, ...]) -> tuple[Act, ...]:
    found: list[Act] = []
    for number, act in enumerate(acts):
        if act.action == "adv":  # The event that follows is published under it.
            half = "y <= 1" if int(acts[number + 1].attributes["y"]) <= 1 else "y > 1"
            found.append(msgspec.structs.replace(act, where=f"x = 7 and {half}"))
        else:
            found.append(msgspec.structs.replace(act, acts=_half_promised(act.acts)))
    return tuple(found)


def _held(spec: TransactionSpec) -> TransactionSpec:
    """Return a plan about which is decided at the end."""
    return TransactionSpec(
        client=spec.client,
        at_ns=spec.at_ns,
        acts=spec.acts,
        isolation=PLANNED,
        timeout_ns=spec.timeout_ns,
        commit=spec.commit,
        hold=True,
    )

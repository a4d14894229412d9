"""Instance dispatching (section VII): brokers, clients and what a message costs, for the paper's three schemes and its baseline.

One *instantiation* has four clients: an environment E, which coordinates, a dispatcher D and two agents. A transaction dispatches one instance of a workflow, in turn to
one agent and the other: E invites D, D invites the agent, which subscribes to the instance, D withdraws its own subscription, E publishes an update. All of that must
reach the agent, and nothing D.

What the paper says: every broker and client on a machine of its own, a network of less than a millisecond, clients put on brokers at random and evenly, one to ten
transactions at once at a coordinator, one to ten instantiations with workflows of their own.

What it does not say, and was chosen here. *Overlays* (Figure 4 is a drawing): 1; a line of 3; a line of 5; a middle with four arms of two, 9. *Costs*: a message is under way for
`HOP_NS` on average (from none to twice that), then takes whoever gets it `SERVICE_NS`; an operation takes a client `ISSUE_NS` before it is sent. The paper's machines have two cores: the next message or operation begins when half of that time is over. Costs stand for the Java RMI and the threads of PADRES, and are fixed
once for all figures, so that D-TX takes about 410 ms on one broker and 570 ms on three, as it does in the paper: everything else follows. *Regular events* are far cheaper (`REGULAR_NS`), for the
paper sends 20,000 of them between two dispatches; so are answers. *Subscriptions of D*: an unsubscription names an earlier subscription (the errata say why), so D has subscribed to each
instance before the load begins. *End*: a transaction is over when its coordinator was told and the agent was given the update; the baseline, when the agent was given it.

The nodes are driven without links, since nothing is lost here: no message but the protocols' own.
"""

from collections.abc import Callable, Mapping
from random import Random
from statistics import fmean
from typing import Any

import msgspec

from ensue.protocols.content.client import Notified
from ensue.protocols.content.config import ContentConfig
from ensue.protocols.content.frames import Done, Notify, Operate, Routed
from ensue.protocols.interface import Frame, Node, Notification, Outcome
from ensue.protocols.transactions.broker import TransactionBroker
from ensue.protocols.transactions.client import TransactionClient
from ensue.protocols.transactions.frames import ATOMIC, PLANNED, SERIALIZABLE
from ensue.simulation import NetworkConfig, QueueConfig, Uniform, World
from ensue.simulation.deployments.transaction_clients import (
    Act,
    Application,
    RegularSpec,
    TransactionSpec,
)
from experiments.transactions.wait_baseline import Waiting

__all__ = ["BL_WAIT", "OVERLAYS", "SCHEMES", "Dispatching", "Figures", "Setting", "play"]

MS = 1_000_000
SECOND = 1_000_000_000
HOP_NS = 4 * MS
SERVICE_NS = 4 * MS
ISSUE_NS = 30 * MS
CORES = 2
"""Of a machine: whatever takes it a time occupies it for a half of that."""
AT_ONCE_NS = SERVICE_NS - SERVICE_NS // CORES
"""How much of serving a message does not keep others waiting; it counts as time under way, before the rest."""
REGULAR_NS = MS // 10
READY_NS = 10**13
"""When everybody has come, advertised and subscribed, however many they are."""
NEVER_NS = 10**15
PATIENCE_NS = 10 * SECOND
"""An update that the baseline published so long ago, and nobody was given, is lost."""
BL_WAIT = "BL-WAIT"
SCHEMES = {BL_WAIT: "", "S-TX": PLANNED, "D-TX": SERIALIZABLE, "D-TX_NI": ATOMIC}
OVERLAYS: Mapping[int, tuple[tuple[int, int], ...]] = {
    1: (),
    3: ((0, 1), (1, 2)),
    5: ((0, 1), (1, 2), (2, 3), (3, 4)),
    9: ((0, 1), (0, 2), (0, 3), (0, 4), (1, 5), (2, 6), (3, 7), (4, 8)),
}
"""By the number of brokers: which are neighbours."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement."""

    scheme: str
    brokers: int = 3
    concurrent: int = 1
    """Transactions that a coordinator has under way at once."""
    instances: int = 1
    """Instantiations of the scenario, four clients each."""
    transactions: int = 50
    """Of each instantiation."""
    wait_ns: int = 0
    """Of the baseline: between operations 1 and 5."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    latency_ms: float
    """Mean time of a transaction."""
    per_second: float
    """Transactions that were over, a second."""
    messages: float
    """For each transaction."""
    wrong: int
    """Transactions whose update did not reach its agent alone."""
    repeated: int
    """Transactions that had to be begun again by the application."""
    client_busy: float
    """The share of the time that issuing operations occupied the busiest client."""
    broker_busy: float
    """The share of the time that messages occupied the busiest broker."""


class Dispatching:
    """One world, with all its clients and what they have to do."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting = setting
        self.seed = seed
        self.messages = 0
        self._counts = False
        self.world = World(
            seed,
            network=NetworkConfig(default=Uniform(AT_ONCE_NS, AT_ONCE_NS + 2 * HOP_NS), fifo=True),
            queueing=QueueConfig(service_of=self._cost_ns),
            on_outcome=self._outcome,
        )
        self._free_ns: dict[str, int] = {}
        """By client: until when it is occupied with operations."""
        self._issued_ns: dict[str, int] = {}
        """By client: how long operations occupied it."""
        self.application = Application(self.call)
        self.waiting = Waiting(self.call, self._later, setting.wait_ns)
        self.config = ContentConfig(
            durable=False, lease_ns=NEVER_NS, beat_ns=NEVER_NS // 10, away_ns=NEVER_NS
        )
        self.homes = self._place()
        self.started_ns: dict[str, int] = {}
        """By instance."""
        self.latencies_ns: list[int] = []
        self.received: dict[str, list[str]] = {}
        """By instance: who was given its update."""
        self.outcomes: dict[str, str] = {}
        """By instance: empty when its coordinator was told that it is committed."""
        self.repeated = 0
        self._over: set[str] = set()
        self._next = dict.fromkeys(range(setting.instances), 0)
        self.released = dict.fromkeys(range(setting.instances), setting.transactions)
        """By instantiation: how many instances may be dispatched by now."""
        self._seen = 0
        self.on_delivery: Callable[[str, Notified], None] = lambda _client, _notified: None
        self._build()

    # -- Who there is -----------------------------------------------------------------------------

    def _place(self) -> dict[str, str]:
        """Put clients on brokers at random and evenly."""
        random = Random(f"placing/{self.setting.brokers}/{self.setting.instances}/{self.seed}")
        clients = [
            f"{role}{number}"
            for number in range(self.setting.instances)
            for role in ("E", "D", "A", "B")
        ]
        brokers = [f"b{at % self.setting.brokers}" for at in range(len(clients))]
        if self.setting.brokers > len(clients):
            brokers = [f"b{at}" for at in random.sample(range(self.setting.brokers), len(clients))]
        random.shuffle(brokers)
        return dict(zip(clients, brokers, strict=True))

    def _build(self) -> None:
        neighbours: dict[str, list[str]] = {f"b{at}": [] for at in range(self.setting.brokers)}
        for one, other in OVERLAYS[self.setting.brokers]:
            neighbours[f"b{one}"].append(f"b{other}")
            neighbours[f"b{other}"].append(f"b{one}")

        def broker(name: str) -> Callable[[object, int], Node]:
            return lambda _records, now: TransactionBroker(
                name=name, neighbors=neighbours[name], config=self.config, now_ns=now
            )

        def client(name: str) -> Callable[[object, int], Node]:
            return lambda _records, now: TransactionClient(
                name=name, home=self.homes[name], config=self.config, now_ns=now
            )

        for name in neighbours:
            self.world.add(name, broker(name))
        for name in self.homes:
            self.world.add(name, client(name))
        self.world.run(until_ns=READY_NS // 2)
        for number in range(self.setting.instances):
            self._prepare(number)
        self.world.run(until_ns=READY_NS)

    def _prepare(self, number: int) -> None:
        """Advertise what is published; have the dispatcher subscribe to each instance that will be dispatched."""
        regular = self.application.regular

        def do(client: str, action: str, where: str, label: str) -> None:
            act = Act(action=action, where=where, label=label)
            regular(RegularSpec(client=client, at_ns=0, act=act))

        do(f"E{number}", "adv", f"workflow = {number}", f"E{number}")
        do(f"D{number}", "adv", f"assign = {number}", f"assign{number}")
        do(f"D{number}", "sub", f"workflow = {number} and new exists", f"new{number}")
        for agent in ("A", "B"):
            where = f"assign = {number} and agent = '{agent}'"
            do(f"{agent}{number}", "sub", where, f"assigned{agent}{number}")
        for at in range(self.setting.transactions):
            do(f"D{number}", "sub", where_of(number, at), f"D{number}/{at}")

    @property
    def under_way(self) -> int:
        """How many transactions have begun and are not over."""
        return len(self.started_ns) - len(self._over)

    # -- What they do -----------------------------------------------------------------------------

    def run(self) -> Figures:
        """Dispatch everything."""
        self._counts, start_ns = True, self.world.now_ns
        before_ns = self._busy_ns()
        for number in range(self.setting.instances):
            for _ in range(self.setting.concurrent):
                self.begin(number)
        wanted = self.setting.instances * self.setting.transactions
        self.world.run(condition=lambda: len(self._over) == wanted)
        seconds = (self.world.now_ns - start_ns) / SECOND
        busy = {
            name: (busy_ns - before_ns[name]) / SECOND / seconds
            for name, busy_ns in self._busy_ns().items()
        }
        # Whatever is still under way may reach somebody whom it should not.
        self.world.run(until_ns=self.world.now_ns + 10 * SECOND)
        return Figures(
            latency_ms=fmean(self.latencies_ns) / MS,
            per_second=wanted / seconds,
            messages=self.messages / wanted,
            wrong=sum(self._is_wrong(instance) for instance in self._over),
            repeated=self.repeated,
            client_busy=max(share for name, share in busy.items() if name in self.homes),
            broker_busy=max(share for name, share in busy.items() if name not in self.homes),
        )

    def _busy_ns(self) -> dict[str, int]:
        """Return how long operations have occupied each client, and messages each broker."""
        found = {name: self._issued_ns.get(name, 0) for name in self.homes}
        for name in self.world.names():
            queue = self.world.queue(name)
            if name not in found and queue is not None:
                found[name] = queue.busy_ns
        return found

    def begin(self, number: int) -> None:
        """Dispatch the next instance of an instantiation, if there is one."""
        at = self._next[number]
        if at == self.released[number]:
            return
        self._next[number] = at + 1
        instance = f"{number}/{at}"
        self.started_ns[instance] = self.world.now_ns
        if self.setting.scheme == BL_WAIT:
            subscribed = self.application.names[f"D{instance}"]
            self.waiting.start(number, at, agent_of(number, at), subscribed)
            self._later(
                self.setting.wait_ns + PATIENCE_NS, lambda: self._check(instance, lost=True)
            )
        else:
            self.application.start(self._transaction(number, at))

    def _transaction(self, number: int, at: int) -> TransactionSpec:
        instance, agent = f"{number}/{at}", agent_of(number, at)
        subscribing = Act(action="sub", where=where_of(number, at), label=f"{agent}/{at}")
        withdrawing = Act(action="usub", label=f"D{instance}")
        inviting = Act(action="invite", client=agent, acts=(subscribing,))
        return TransactionSpec(
            client=f"E{number}",
            at_ns=0,
            acts=(
                Act(action="invite", client=f"D{number}", acts=(inviting, withdrawing)),
                Act(
                    action="pub",
                    attributes={"workflow": number, "instance": at},
                    payload=instance.encode(),
                ),
            ),
            isolation=SCHEMES[self.setting.scheme],
            timeout_ns=300 * SECOND,
        )

    # -- What comes of it ---------------------------------------------------------------------------

    def call(self, client: str, command: Callable[[TransactionClient, int], None]) -> None:
        """Have a client issue an operation, behind those that it is about to."""

        def run(node: Node, now_ns: int) -> None:
            assert isinstance(node, TransactionClient)
            command(node, now_ns)

        start_ns = max(self.world.now_ns, self._free_ns.get(client, 0))
        self._free_ns[client] = start_ns + ISSUE_NS // CORES
        self._issued_ns[client] = self._issued_ns.get(client, 0) + ISSUE_NS // CORES
        self.world.call(client, run, at_ns=start_ns + ISSUE_NS)

    def _later(self, delay_ns: int, function: Callable[[], None]) -> None:
        self.world.schedule(self.world.now_ns + delay_ns, function, ())

    def _cost_ns(self, frame: Frame) -> int:
        self.messages += self._counts
        cheap = isinstance(frame, Routed | Notify | Done) or (
            isinstance(frame, Operate) and frame.publication is not None and not frame.transaction
        )
        return REGULAR_NS if cheap else SERVICE_NS // CORES

    def _outcome(self, client: str, outcome: Outcome) -> None:
        if not isinstance(outcome, Notification) or outcome.value is None:
            return
        value: Any = outcome.value
        if isinstance(value, Notified):
            self._notified(client, value)
        self.application.take(client, value)
        for spec, refused in self.application.outcomes[self._seen :]:
            self._seen += 1
            self._told(spec, refused)

    def _notified(self, client: str, notified: Notified) -> None:
        attributes = notified.publication.attributes
        self.on_delivery(client, notified)
        if "new" in attributes or "assign" in attributes:
            self.waiting.notified(client, attributes)
        elif "instance" in attributes:
            instance = f"{attributes['workflow']}/{attributes['instance']}"
            self.received.setdefault(instance, []).append(client)
            self._check(instance)

    def _told(self, spec: TransactionSpec, refused: str) -> None:
        instance = spec.acts[-1].payload.decode()
        if refused:
            self.repeated += 1
            self.application.start(spec)
            return
        self.outcomes[instance] = ""
        self._check(instance)

    def _check(self, instance: str, *, lost: bool = False) -> None:
        """See whether a transaction is over."""
        known = self.setting.scheme == BL_WAIT or instance in self.outcomes
        given = instance in self.received
        if instance in self._over or not (lost or (known and given)):
            return
        self._over.add(instance)
        self.latencies_ns.append(self.world.now_ns - self.started_ns[instance])
        self.begin(int(instance.partition("/")[0]))

    def _is_wrong(self, instance: str) -> bool:
        number, _, at = instance.partition("/")
        return self.received.get(instance) != [agent_of(int(number), int(at))]


def agent_of(number: int, at: int) -> str:
    """Return the agent that is given an instance: one and the other in turn."""
    return f"{'AB'[at % 2]}{number}"


def where_of(number: int, at: int) -> str:
    """Return the filter of what concerns one instance."""
    return f"workflow = {number} and instance = {at}"


def play(setting: Setting, seed: int) -> Figures:
    """Measure one setting."""
    return Dispatching(setting, seed).run()

"""Instance dispatching (section VII): brokers, clients and costs of messages.

One *instantiation* has four clients: an environment E, which coordinates, a dispatcher D and two
agents. A transaction dispatches one instance of a workflow, to the two agents in turn: E invites D,
D invites the agent, which subscribes to the instance, D withdraws its own subscription, E publishes
an update. The update must reach the agent and not D. The schemes are the paper's three and its
baseline.

Given by the paper: every broker and client has its own machine; the network takes less than a
millisecond; clients are assigned to brokers at random and evenly; a coordinator has one to ten
transactions at once; there are one to ten instantiations, each with its own workflow.

Chosen here:

- *Overlays* (Figure 4 is a drawing): 1 broker; a line of 3; a line of 5; a center with four arms of
  two, 9 brokers.
- *Costs*: a message takes `HOP_NS` to arrive on average (from zero to twice that), then
  `SERVICE_NS` at its receiver; an operation takes a client `ISSUE_NS` before it is sent. The
  paper's machines have two cores, so the next message or operation starts after half of that time.
  Costs stand for the Java RMI and the threads of PADRES. They are the same in all figures, and
  chosen so that D-TX takes about 410 ms on one broker and 570 ms on three, as in the paper, if
  each operation waits for all brokers, as there.
- *Regular events* are far cheaper (`REGULAR_NS`), because the paper sends 20,000 of them between
  two dispatches; so are answers.
- *Subscriptions of D*: an unsubscription names an earlier subscription (the errata say why), so D
  subscribes to each instance before the load begins.
- *End*: a transaction ends when its coordinator is notified and the agent has the update; in the
  baseline, when the agent has the update.

No message is lost, so nodes run without links: all messages are those of the protocols.
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

__all__ = ["BL_WAIT", "OVERLAYS", "SCHEMES", "Dispatching", "Figures", "Setting", "measure"]

MS = 1_000_000
SECOND = 1_000_000_000
HOP_NS = 4 * MS
SERVICE_NS = 4 * MS
ISSUE_NS = 30 * MS
CORES = 2
"""Cores per machine: a task occupies the machine for its time divided by this."""
AT_ONCE_NS = SERVICE_NS - SERVICE_NS // CORES
"""The part of the service time that does not delay other messages: added to the network delay."""
REGULAR_NS = MS // 10
READY_NS = 10**13
"""When all clients, however many, have connected, advertised and subscribed."""
NEVER_NS = 10**15
PATIENCE_NS = 10 * SECOND
"""After this time, an undelivered update of the baseline counts as lost."""
BL_WAIT = "BL-WAIT"
SCHEMES = {BL_WAIT: "", "S-TX": PLANNED, "D-TX": SERIALIZABLE, "D-TX_NI": ATOMIC}
OVERLAYS: Mapping[int, tuple[tuple[int, int], ...]] = {
    1: (),
    3: ((0, 1), (1, 2)),
    5: ((0, 1), (1, 2), (2, 3), (3, 4)),
    9: ((0, 1), (0, 2), (0, 3), (0, 4), (1, 5), (2, 6), (3, 7), (4, 8)),
}
"""By number of brokers: the pairs of neighbors."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement."""

    scheme: str
    brokers: int = 3
    concurrent: int = 1
    """Transactions in progress at once per coordinator."""
    instances: int = 1
    """Instantiations of the scenario, with four clients each."""
    transactions: int = 50
    """Transactions per instantiation."""
    wait_ns: int = 0
    """The baseline's wait between operations 1 and 5."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one setting."""

    latency_ms: float
    """Mean time of a transaction."""
    per_second: float
    """Rate of finished transactions."""
    messages: float
    """Messages per transaction."""
    wrong: int
    """Transactions whose update did not reach its agent alone."""
    repeated: int
    """Transactions that the application had to retry."""
    client_busy: float
    """Share of the time that operations occupied the busiest client."""
    broker_busy: float
    """Share of the time that messages occupied the busiest broker."""


class Dispatching:
    """A simulation of brokers, clients and their transactions."""

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
        """By client: when it can issue the next operation."""
        self._issued_ns: dict[str, int] = {}
        """By client: the time that operations occupied it."""
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
        """By instance: the clients that received its update."""
        self.outcomes: dict[str, str] = {}
        """By instance: empty once its coordinator knows that it committed."""
        self.repeated = 0
        self._over: set[str] = set()
        self._next = dict.fromkeys(range(setting.instances), 0)
        self.released = dict.fromkeys(range(setting.instances), setting.transactions)
        """By instantiation: the number of instances that may be dispatched so far."""
        self._seen = 0
        self.on_delivery: Callable[[str, Notified], None] = lambda _client, _notified: None
        self._build()

    # -- Setup ------------------------------------------------------------------------------------

    def _place(self) -> dict[str, str]:
        """Assign clients to brokers at random and evenly."""
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
        neighbors: dict[str, list[str]] = {f"b{at}": [] for at in range(self.setting.brokers)}
        for one, other in OVERLAYS[self.setting.brokers]:
            neighbors[f"b{one}"].append(f"b{other}")
            neighbors[f"b{other}"].append(f"b{one}")

        def broker(name: str) -> Callable[[object, int], Node]:
            return lambda _records, now: TransactionBroker(
                name=name, neighbors=neighbors[name], config=self.config, now_ns=now
            )

        def client(name: str) -> Callable[[object, int], Node]:
            return lambda _records, now: TransactionClient(
                name=name, home=self.homes[name], config=self.config, now_ns=now
            )

        for name in neighbors:
            self.world.add(name, broker(name))
        for name in self.homes:
            self.world.add(name, client(name))
        self.world.run(until_ns=READY_NS // 2)
        for number in range(self.setting.instances):
            self._prepare(number)
        self.world.run(until_ns=READY_NS)

    def _prepare(self, number: int) -> None:
        """Advertise publications, and subscribe the dispatcher to each instance."""
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
        """The number of transactions in progress."""
        return len(self.started_ns) - len(self._over)

    # -- Dispatching ------------------------------------------------------------------------------

    def run(self) -> Figures:
        """Dispatch all instances, and measure."""
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
        # A message that is still in flight may reach a wrong client.
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
        """Return the time that operations occupied each client, and messages each broker."""
        found = {name: self._issued_ns.get(name, 0) for name in self.homes}
        for name in self.world.names():
            queue = self.world.queue(name)
            if name not in found and queue is not None:
                found[name] = queue.busy_ns
        return found

    def begin(self, number: int) -> None:
        """Dispatch the next instance of an instantiation, if any."""
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

    # -- Operations and outcomes ------------------------------------------------------------------

    def call(self, client: str, command: Callable[[TransactionClient, int], None]) -> None:
        """Have a client issue an operation, after those it has queued."""

        def run(node: Node, now_ns: int) -> None:
            assert isinstance(node, TransactionClient)
            command(node, now_ns)

        start_ns = max(self.world.now_ns, self._free_ns.get(client, 0))
        self._free_ns[client] = start_ns + ISSUE_NS // CORES
        self._issued_ns[client] = self._issued_ns.get(client, 0) + ISSUE_NS // CORES
        self.world.call(client, run, at_ns=start_ns + ISSUE_NS)

    def _later(self, delay_ns: int, function: Callable[[], None]) -> None:
        self.world.schedule(self.world.now_ns + delay_ns, function, ())

    def _cost_ns(self, _node: str, frame: Frame) -> int:
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
            self._finished(spec, refused)

    def _notified(self, client: str, notified: Notified) -> None:
        attributes = notified.publication.attributes
        self.on_delivery(client, notified)
        if "new" in attributes or "assign" in attributes:
            self.waiting.notified(client, attributes)
        elif "instance" in attributes:
            instance = f"{attributes['workflow']}/{attributes['instance']}"
            self.received.setdefault(instance, []).append(client)
            self._check(instance)

    def _finished(self, spec: TransactionSpec, refused: str) -> None:
        instance = spec.acts[-1].payload.decode()
        if refused:
            self.repeated += 1
            self.application.start(spec)
            return
        self.outcomes[instance] = ""
        self._check(instance)

    def _check(self, instance: str, *, lost: bool = False) -> None:
        """End a transaction if its outcome is known and its update arrived, or is lost."""
        known = self.setting.scheme == BL_WAIT or instance in self.outcomes
        arrived = instance in self.received
        if instance in self._over or not (lost or (known and arrived)):
            return
        self._over.add(instance)
        self.latencies_ns.append(self.world.now_ns - self.started_ns[instance])
        self.begin(int(instance.partition("/")[0]))

    def _is_wrong(self, instance: str) -> bool:
        number, _, at = instance.partition("/")
        return self.received.get(instance) != [agent_of(int(number), int(at))]


def agent_of(number: int, at: int) -> str:
    """Return the agent of an instance: the two agents take turns."""
    return f"{'AB'[at % 2]}{number}"


def where_of(number: int, at: int) -> str:
    """Return the filter of one instance."""
    return f"workflow = {number} and instance = {at}"


def measure(setting: Setting, seed: int) -> Figures:
    """Measure one setting."""
    return Dispatching(setting, seed).run()

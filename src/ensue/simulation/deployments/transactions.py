"""Transactions in a world: a tree of brokers, clients, and their applications.

Applications run programs of operations.

`crash_after_frames` crashes a node right after it has received its n-th frame, before or after the
effects were synced, as the disk decides: so a swarm, over its seeds, crashes every node at every
message. The records of a broker match the trace, except with `silent_crashes`: then only the final
state is judged.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from ensue.checkers import Report, Verdict, check
from ensue.checkers.verdict import Collector, Subscriber
from ensue.core.event import Event
from ensue.core.trace import Row
from ensue.core.wire import Codec
from ensue.protocols.content.filters.parser import parse
from ensue.protocols.interface import Frame, Node, Notification, Outcome
from ensue.protocols.shared.link import FRAMES as LINK_FRAMES
from ensue.protocols.transactions.broker import TransactionBroker
from ensue.protocols.transactions.client import TransactionClient
from ensue.protocols.transactions.frames import FRAMES
from ensue.protocols.transactions.nodes import BrokerNode, ClientNode
from ensue.simulation.content_spec import ContentSpec
from ensue.simulation.deployments.base import Deployment
from ensue.simulation.deployments.durable_readers import DurableReaders
from ensue.simulation.deployments.transaction_clients import Act, Application, RegularSpec
from ensue.simulation.scenario import Scenario
from ensue.simulation.text import duration, listed
from ensue.simulation.world.process import Factory

__all__ = ["TransactionDeployment", "table_faults"]

Records = Mapping[str, bytes]
CRASH_NS = 30_000_000
"""How long a node that crashed at a frame is down."""


class TransactionDeployment(Deployment):
    """An overlay with its clients and their applications."""

    def _prepare(self) -> Codec:
        self.application = Application(self._call, self._later)
        self.readers = DurableReaders(self._call, self._later)
        self._counts: dict[str, int] = {}
        self._crashes: dict[str, list[int]] = {}
        for name, count in self.scenario.overlay.crash_after_frames:
            self._crashes.setdefault(name, []).append(count)
        return Codec((*LINK_FRAMES, *FRAMES))

    def _add_nodes(self) -> None:
        overlay, clocks = self.scenario.overlay, self.scenario.clocks
        for name in overlay.brokers:
            disk = None if overlay.silent_crashes else self._client_disk
            factory = self._broker_factory(name)
            site = overlay.sites.get(name, "")
            self.world.add(name, factory, site=site, clock=clocks.get(name), disk=disk)
        for name in overlay.clients:
            factory = self._client_factory(name)
            site, disk = overlay.sites.get(name, ""), self._client_disk
            self.world.add(name, factory, site=site, clock=clocks.get(name), disk=disk)

    def _broker_factory(self, name: str) -> Factory:
        overlay, link, role = self.scenario.overlay, self.scenario.link, self.roles.broker
        neighbors = overlay.brokers[name]

        def build(records: Records, now_ns: int) -> Node:
            node = BrokerNode(
                lambda own: role(
                    name=name,
                    neighbors=neighbors,
                    config=overlay.config,
                    records=own,
                    now_ns=now_ns,
                ),
                neighbors=neighbors,
                codec=role.codec,
                link=link,
                records=records,
                now_ns=now_ns,
            )
            return self._counted(node)

        return build

    def _client_factory(self, name: str) -> Factory:
        overlay, link, role = self.scenario.overlay, self.scenario.link, self.roles.content_client
        home = overlay.clients[name]

        def build(records: Records, now_ns: int) -> Node:
            node = ClientNode(
                lambda own: role(
                    name=name, home=home, config=overlay.config, records=own, now_ns=now_ns
                ),
                home=home,
                codec=role.codec,
                link=link,
                records=records,
                now_ns=now_ns,
            )
            return self._counted(node)

        return build

    def _counted(self, node: BrokerNode | ClientNode) -> Node:
        """Crash a node after the scenario's number of frames."""
        if node.name not in self._crashes:
            return node
        receive, name = node.receive, node.name

        def counting(frame: Frame, *, source: str, now_ns: int) -> None:
            receive(frame, source=source, now_ns=now_ns)
            self._counts[name] = self._counts.get(name, 0) + 1
            if self._counts[name] in self._crashes[name]:
                self.world.schedule(self.world.now_ns, self._crash, (name,))

        node.receive = counting  # type: ignore[method-assign]
        return node

    def _crash(self, name: str) -> None:
        self.world.crash(name, restart_after_ns=CRASH_NS)

    def _schedule(self) -> None:
        overlay, world = self.scenario.overlay, self.world
        for transaction in overlay.transactions:
            world.schedule(transaction.at_ns, self.application.start, (transaction,))
        for regular in overlay.regular:
            world.schedule(regular.at_ns, self.application.regular, (regular,))
        for reader in overlay.readers:
            world.schedule(reader.at_ns, self.readers.play, (reader,))
        for rate in overlay.rates:
            for at_ns in self._arrivals(rate.per_second, rate.from_ns, rate.until_ns):
                attributes = self._workload.choice(rate.attributes)
                act = Act(action="pub", attributes=attributes, payload=bytes(rate.size))
                published = RegularSpec(client=rate.client, at_ns=at_ns, act=act)
                world.schedule(at_ns, self.application.regular, (published,))
        world.inject(self.scenario.faults)
        for vanish in self.scenario.vanish:
            world.schedule(vanish.at_ns, world.remove, (vanish.publisher,))
            world.schedule(vanish.at_ns, self._lose_connection, (vanish.publisher,))

    def _lose_connection(self, client: str) -> None:
        """Notify a client's home that its connection is lost, if the home is up."""

        def lose(node: Node, now_ns: int) -> None:
            assert isinstance(node, BrokerNode)
            node.lose_connection(client, now_ns=now_ns)

        self.world.call(self.scenario.overlay.clients[client], lose)

    def _call(self, client: str, command: Callable[[TransactionClient, int], None]) -> None:
        def run(node: Node, now_ns: int) -> None:
            assert isinstance(node, ClientNode)
            inner = node.client
            assert isinstance(inner, TransactionClient)
            if not inner.ended:
                command(inner, now_ns)

        self.world.call(client, run)

    def _later(self, wait_ns: int, call: Callable[[], None]) -> None:
        self.world.schedule(self.world.now_ns + wait_ns, call, ())

    def _outcome(self, name: str, outcome: Outcome) -> None:
        if isinstance(outcome, Notification) and outcome.value is not None:
            self.application.take(name, outcome.value)
            self.readers.take(name, outcome.value)

    # -- What came of it ------------------------------------------------------------------------

    def brokers(self) -> dict[str, TransactionBroker]:
        """Return the brokers that are up."""
        found: dict[str, TransactionBroker] = {}
        for name in self.scenario.overlay.brokers:
            node = self.world.node(name)
            if isinstance(node, BrokerNode):
                assert isinstance(node.broker, TransactionBroker)
                found[name] = node.broker
        return found

    def judge(self, rows: list[Row]) -> Report:
        """Judge the trace, and the tables that brokers have at the end."""
        whole = not self.scenario.overlay.silent_crashes
        self._record_tables()
        report = check(rows if whole else rows[:0], order="transactions")
        if not whole:  # The trace has gaps: only the final state can be judged.
            report = msgspec.structs.replace(report, verdict=Verdict.VALID, reasons=())
        collector = Collector("tables", violations_max=20)
        brokers = self.brokers()
        nodes = (self.world.node(name) for name in self.scenario.overlay.clients)
        clients = [node.client for node in nodes if isinstance(node, ClientNode)]
        faults = [
            *table_faults(brokers),
            *client_faults(brokers, clients),
            *(outcome_faults(brokers, rows) if whole else ()),
        ]
        for node, fault in faults:
            where = (Subscriber(self.scenario.name, node, ""),)
            collector.violation("tables", where, (node,), lambda fault=fault: fault)  # type: ignore[misc]
        finding = collector.finding()
        return msgspec.structs.replace(
            report,
            findings=(*report.findings, finding),
            verdict=Verdict.worst([report.verdict, finding.verdict]),
        )

    def _record_tables(self) -> None:
        """Write the tables that brokers have at the end into the trace."""
        recorder, now_ns = self.world.recorder, self.world.now_ns
        if recorder is None:
            return
        for name, broker in self.brokers().items():
            summary: dict[str, Any] = {
                "action": "held",
                "verdict": "tables",
                "publisher_seq": broker.version,
            }
            clients = [
                {"action": "held", "verdict": "client", "publisher": client}
                for client in broker.clients
            ]
            for columns in (summary, *clients, *broker.tables.rows()):
                table = Notification(None, columns)
                recorder.outcome(name, None, table, self.world.clock_ns(name), now_ns)

    @classmethod
    def describe_nodes(cls, scenario: Scenario) -> Iterator[str]:
        """Describe the nodes besides publishers and subscribers."""
        yield from _overlay(scenario.overlay)

    @classmethod
    def describe_settings(cls, scenario: Scenario) -> Iterator[str]:
        """Describe the configuration of the protocol."""
        yield f"  a client is gone after {duration(scenario.overlay.config.lease_ns)} of silence"

    def events(self) -> Iterator[tuple[int, Event]]:
        """Yield nothing: there is no log, and no slots in one."""
        return iter(())

    def waits(self) -> Iterator[str]:
        """Yield open transactions, and nodes that wait for an answer."""
        yield from super().waits()
        for name, broker in self.brokers().items():
            for what, some in (
                ("transactions open", broker.open_transactions),
                ("steps that wait", broker.waiting_count),
                ("old versions of its tables", broker.versions_kept),
                ("answers to come", broker.unanswered_count),
            ):
                if some:
                    yield f"{name} has {what}: {some}"
        for name in self.scenario.overlay.brokers:
            node = self.world.node(name)
            if isinstance(node, BrokerNode) and node.under_way_count:
                yield f"{name} has {node.under_way_count} frames in flight"
        for name in self.scenario.overlay.clients:
            node = self.world.node(name)
            if isinstance(node, ClientNode) and node.client.unanswered_count:
                yield f"{name} has {node.client.unanswered_count} unanswered requests"
        if (
            self.world.now_ns
            < self.scenario.duration_ns + 2 * self.scenario.overlay.config.lease_ns
        ):
            yield "clients that are gone may not be missed yet"


def table_faults(brokers: Mapping[str, TransactionBroker]) -> Iterator[tuple[str, str]]:
    """Yield where the tables of brokers at rest differ from the clients' homes."""
    promised: dict[str, str] = {}
    for broker in brokers.values():
        for name, entry in broker.tables.advertisements.items():
            if entry.hop in broker.clients:
                promised[name] = entry.where
    if len({broker.version for broker in brokers.values()}) > 1:
        yield min(brokers), "brokers have committed different numbers of transactions"
    for name, broker in brokers.items():
        if sorted(broker.tables.advertisements) != sorted(promised):
            yield name, f"{name} does not have the advertisements that there are"
        for each, entry in broker.tables.subscriptions.items():
            if entry.hop not in broker.clients and entry.hop not in brokers:
                yield name, f"{name} has {each} of {entry.hop}, who is gone"
        for neighbor in broker.neighbors:
            yield from _different(name, broker, neighbor, brokers)
            yield from _unneeded(name, broker, neighbor)


def client_faults(
    brokers: Mapping[str, TransactionBroker], clients: Iterable[TransactionClient]
) -> Iterator[tuple[str, str]]:
    """Yield subscriptions that have ended at the home, and that the client counts events of."""
    for client in clients:
        home = brokers.get(client.home)
        if home is None or client.ended or client.name not in home.clients:
            continue
        for name in client.subscriptions:
            if name not in home.tables.subscriptions:
                yield client.name, f"{client.name} has {name}, and {home.name} does not"


def outcome_faults(
    brokers: Mapping[str, TransactionBroker], rows: list[Row]
) -> Iterator[tuple[str, str]]:
    """Yield subscriptions that are missing at their homes, or should not be there.

    Judged are those which one operation made, and at most one withdrew.
    """
    over = {row.transaction for row in rows if row.action == "committed"}
    doubtful = {row.subscription for row in rows if row.action == "discarded"}
    gone = {row.publisher for row in rows if row.verdict == "gone"}
    there = {
        name: broker.name
        for broker in brokers.values()
        for name, entry in broker.tables.subscriptions.items()
        if entry.hop in broker.clients
    }
    plans = {row.transaction for row in rows if row.action == "began" and row.topic == "planned"}
    planned_away = {
        row.subscription
        for row in rows
        if row.action == "unsubscribed" and row.transaction in plans & over
    }
    made: dict[str, list[bool]] = {}
    ended: dict[str, list[bool]] = {}
    for row in rows:
        if row.verdict in ("closed", "detached"):
            continue  # A reader left a durable subscription, which stays.
        if row.subscription and row.action in ("subscribed", "unsubscribed"):
            took_effect = row.transaction is None or row.transaction in over
            among = made if row.action == "subscribed" else ended
            among.setdefault(row.subscription, []).append(took_effect)
    for name in sorted(made):
        withdrawn = ended.get(name, [])
        owner = name.rpartition(".")[0]
        if len(made[name]) + len(withdrawn) > 2 or name in doubtful or owner in gone:
            continue
        if name.startswith("durable/") and len(made[name]) + len(withdrawn) > 1:
            continue  # Readers come and go, and each records that it has subscribed.
        if name in planned_away and made[name] == [True]:
            continue  # Perhaps before it was there.
        expected = made[name] == [True] and withdrawn != [True]
        if expected != (name in there):
            where = there.get(name, "no broker")
            yield where, f"{name} is at {where}, and should {'' if expected else 'not '}be there"


def _different(
    name: str,
    broker: TransactionBroker,
    neighbor: str,
    brokers: Mapping[str, TransactionBroker],
) -> Iterator[tuple[str, str]]:
    if neighbor in brokers:
        theirs = brokers[neighbor].tables.subscriptions
        held = sorted(each for each, entry in theirs.items() if entry.hop == name)
        if broker.tables.sent(neighbor) != held:
            yield name, f"{name} and {neighbor} differ about what {name} sent"


def _unneeded(name: str, broker: TransactionBroker, neighbor: str) -> Iterator[tuple[str, str]]:
    tables = broker.tables
    promised = [
        parse(entry.where) for entry in tables.advertisements.values() if entry.hop == neighbor
    ]
    sent = tables.sent(neighbor)
    for each, entry in tables.subscriptions.items():
        where = parse(entry.where)
        needed = entry.hop != neighbor and any(one.overlaps(where) for one in promised)
        covered = any(parse(tables.subscriptions[one].where).covers(where) for one in sent)
        if needed and each not in sent and not covered:
            yield name, f"{name} did not send {each} to {neighbor}, where it is needed"
        if not needed and each in sent:
            yield name, f"{name} sent {each} to {neighbor}, where no client needs it"


def _overlay(overlay: ContentSpec) -> Iterator[str]:
    for broker, neighbors in overlay.brokers.items():
        clients = [client for client, home in overlay.clients.items() if home == broker]
        homed = listed(clients, "no client")
        yield f"  broker {broker} next to {listed(neighbors)}, home of {homed}"
    for one in sorted(overlay.regular, key=lambda spec: spec.at_ns):
        yield f"  at {duration(one.at_ns)} {one.client}: {_act(one.act)}"
    for rate in overlay.rates:
        yield f"  {rate.client} publishes {rate.per_second:g} events per second"
    for spec in sorted(overlay.transactions, key=lambda spec: spec.at_ns):
        acts = ", ".join(_act(act) for act in spec.acts)
        end = "" if spec.commit else ", then abort"
        yield f"  at {duration(spec.at_ns)} {spec.client}, {spec.isolation}: {acts}{end}"
    for step in sorted(overlay.readers, key=lambda step: step.at_ns):
        yield f"  at {duration(step.at_ns)} {step.client}: {step.action} {step.name}"
    for node, count in overlay.crash_after_frames:
        yield f"  {node} crashes after {count} frames"


def _act(act: Act) -> str:
    if act.action == "invite":
        values = " and ".join(f"{name} = {value}" for name, value in act.attributes.items())
        return f"{values or act.client} ({', '.join(_act(each) for each in act.acts) or 'nothing'})"
    if act.action == "pub":
        values = " and ".join(f"{name} = {value}" for name, value in act.attributes.items())
        return f"pub {values}"
    return f"{act.action} {act.label}{' ' if act.where else ''}{act.where}"

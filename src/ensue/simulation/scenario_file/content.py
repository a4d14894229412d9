"""Turn the tables of `order = "transactions"` into brokers, clients and their operations.

Names of subscriptions and advertisements belong to a client: those of a table with `count` are of
each of its clients. An operation may withdraw what its client has under that name at the time.
"""

from collections.abc import Iterable, Iterator, Sequence

from ensue import orders
from ensue.core.errors import BadInput
from ensue.protocols.content.config import ContentConfig
from ensue.protocols.content.filters.filter import event_of
from ensue.protocols.content.filters.parser import parse
from ensue.protocols.content.topology import tree_of
from ensue.simulation.content_spec import ContentRate, ContentSpec
from ensue.simulation.deployments.transaction_clients import Act, RegularSpec, TransactionSpec
from ensue.simulation.scenario_file.names import Directory, placed, unknown
from ensue.simulation.scenario_file.tables import (
    ContentEntry,
    File,
    OperationTable,
    TransactionTable,
)

__all__ = ["ContentBuilder"]

OWN = ("brokers", "clients", "transactions")
"""Lists of tables that only this order has."""
FOREIGN = {
    "topics": "events have attributes, see [[clients]]",
    "publishers": "clients publish, see [[clients]]",
    "subscribers": "clients subscribe, see [[clients]]",
}
"""Lists of tables that this order does not have, and what it has instead."""
KINDS = ("publish", "subscribe", "unsubscribe", "advertise", "unadvertise", "invite")
ATTEMPTS_MAX = 100
"""Maximum attempts of a transaction."""


class ContentBuilder:
    """Builds the overlay of one file."""

    def __init__(self, file: File, names: Directory) -> None:
        self._file = file
        self._names = names
        self._held: set[str] = set()
        """Labels of all subscriptions and advertisements of the file."""

    def overlay(self) -> ContentSpec:
        """Return the brokers and clients; none in another order."""
        file, names = self._file, self._names
        if not orders.named(file.order).has_content_brokers:
            for key in OWN:
                if getattr(file, key):
                    raise BadInput(
                        f'{key}: this table is for order = "transactions", not for order = '
                        f'"{file.order}"; leave it out'
                    )
            return ContentSpec()
        for key, instead in FOREIGN.items():
            if getattr(file, key):
                raise BadInput(f'{key}: there are none with order = "{file.order}"; {instead}')
        if not file.brokers:
            raise BadInput(
                f'brokers: order = "{file.order}" needs at least 1 broker; add [[brokers]]'
            )
        brokers, clients = self._tree(), self._homes()
        self._held = set(self._labels())
        with placed("brokers"):
            return ContentSpec(
                brokers=brokers,
                clients=clients,
                config=self._config(),
                regular=tuple(self._regular()),
                rates=tuple(self._rates()),
                transactions=tuple(self._transactions()),
                sites={
                    name: site
                    for table in (*names.brokers, *names.clients)
                    for name, site in table
                    if site
                },
            )

    def _config(self) -> ContentConfig:
        table = self._file.content
        with placed("content"):
            return ContentConfig(
                lease_ns=table.lease,
                grace_ns=table.grace,
                away_ns=table.away,
                beat_ns=table.beat,
                hello_ns=table.hello,
                retry_ns=table.retry,
                retry_ns_max=table.retry_max,
                timeout_ns_max=table.timeout_max,
                subscriptions_max=table.subscriptions_max,
                advertisements_max=table.advertisements_max,
                requests_max=table.requests_max,
                transactions_max=table.transactions_max,
                operations_max=table.operations_max,
                journal_bytes_min=table.journal_bytes_min,
            )

    def _tree(self) -> dict[str, tuple[str, ...]]:
        parents = {}
        for index, table in enumerate(self._file.brokers):
            if not table.parent:
                continue
            place = f"brokers[{index}].parent"
            parent = self._one(place, "broker", self._names.brokers, table.parent)
            parents.update({name: parent for name, _ in self._names.brokers[index]})
        ranked = [name for table in self._names.brokers for name, _ in table]
        if ranked[0] in parents:
            raise BadInput("brokers[0].parent: the first broker has no parent; leave it out")
        with placed("brokers"):
            return {name: tuple(others) for name, others in tree_of(ranked, parents).items()}

    def _homes(self) -> dict[str, str]:
        clients = {}
        for index, table in enumerate(self._file.clients):
            place = f"clients[{index}].home"
            homes = self._names.members(place, "broker", self._names.brokers, table.home)
            if not homes:
                raise BadInput(f"{place}: must name a broker, got none")
            for number, (name, _) in enumerate(self._names.clients[index]):
                clients[name] = homes[number % len(homes)]
        return clients

    def _one(
        self, place: str, what: str, tables: Sequence[Sequence[tuple[str, str]]], name: str
    ) -> str:
        found = self._names.members(place, what, tables, (name,))
        if len(found) != 1:
            raise BadInput(f"{place}: {name!r} stands for {len(found)} nodes; name one of them")
        return found[0]

    # -- Operations outside of transactions -------------------------------------------------------

    def _regular(self) -> Iterator[RegularSpec]:
        for index, table in enumerate(self._file.clients):
            place = f"clients[{index}]"
            acts = [
                *self._entries(f"{place}.advertisements", "adv", table.advertisements),
                *self._entries(f"{place}.subscriptions", "sub", table.subscriptions),
            ]
            for number, event in enumerate(table.events):
                at = f"{place}.events[{number}]"
                attributes = _attributes(f"{at}.publish", event.publish)
                act = Act(
                    action="pub",
                    attributes=attributes,
                    payload=bytes(self._names.size(at, event.size)),
                )
                acts.append((self._names.within(f"{at}.at", event.at), act))
            for name, _ in self._names.clients[index]:
                for at_ns, act in acts:
                    yield RegularSpec(client=name, at_ns=at_ns, act=_owned(act, name))

    def _entries(
        self, where: str, action: str, tables: tuple[ContentEntry, ...]
    ) -> Iterator[tuple[int, Act]]:
        for number, table in enumerate(tables):
            place = f"{where}[{number}]"
            label = table.name or f"{action}-{number + 1}"
            self._names.span(place, table.at, table.until)
            made = Act(action=action, label=label, where=_filter(f"{place}.where", table.where))
            yield self._names.within(f"{place}.at", table.at), made
            if table.until is not None:
                until_ns = self._names.within(f"{place}.until", table.until)
                yield until_ns, Act(action=f"u{action}", label=label)

    def _rates(self) -> Iterator[ContentRate]:
        for index, table in enumerate(self._file.clients):
            for number, rate in enumerate(table.rates):
                place = f"clients[{index}].rates[{number}]"
                self._names.span(place, rate.from_, rate.until)
                if rate.until is not None:
                    self._names.within(f"{place}.until", rate.until)
                choices = tuple(
                    _attributes(f"{place}.publish[{which}]", each)
                    for which, each in enumerate(rate.publish)
                )
                size = self._names.size(place, rate.size)
                for name, _ in self._names.clients[index]:
                    self._names.count_events(place, rate.per_second, rate.from_, rate.until)
                    with placed(place):
                        yield ContentRate(
                            client=name,
                            attributes=choices,
                            per_second=rate.per_second,
                            from_ns=rate.from_,
                            until_ns=rate.until,
                            size=size,
                        )

    # -- Transactions -----------------------------------------------------------------------------

    def _transactions(self) -> Iterator[TransactionSpec]:
        for index, table in enumerate(self._file.transactions):
            place = f"transactions[{index}]"
            client = self._client(f"{place}.client", table.client)
            self._check(place, table)
            yield TransactionSpec(
                client=client,
                at_ns=self._names.within(f"{place}.at", table.at),
                acts=tuple(self._acts(place, client, table.operations)),
                isolation=table.isolation,
                timeout_ns=int(table.timeout),
                commit=table.commit,
                hold=table.hold,
                attempts=table.attempts,
            )

    def _check(self, place: str, table: TransactionTable) -> None:
        if not table.operations:
            raise BadInput(f"{place}.operations: needs at least 1 operation")
        planned = table.isolation == "planned"
        if table.hold and not planned:
            raise BadInput(
                f'{place}.hold: is for isolation = "planned", got "{table.isolation}"; leave it out'
            )
        if planned and not table.commit and not table.hold:
            raise BadInput(f"{place}.commit: only a held plan can abort; add hold = true")
        if not 1 <= table.attempts <= ATTEMPTS_MAX:
            raise BadInput(
                f"{place}.attempts: must be from 1 to {ATTEMPTS_MAX}, got {table.attempts}"
            )
        if not 1 <= table.timeout <= self._file.content.timeout_max:
            limit = self._file.content.timeout_max / 1e9
            raise BadInput(f"{place}.timeout: must be above 0 and at most {limit:g}s")

    def _acts(self, where: str, client: str, tables: tuple[OperationTable, ...]) -> Iterator[Act]:
        for number, table in enumerate(tables):
            place = f"{where}.operations[{number}]"
            kind = _kind(place, table)
            if kind == "publish":
                attributes = _attributes(f"{place}.publish", table.publish or {})
                payload = bytes(self._names.size(place, table.size))
                yield Act(action="pub", attributes=attributes, payload=payload)
            elif kind == "invite":
                invited = self._client(f"{place}.invite", table.invite or "")
                if invited == client:
                    raise BadInput(f"{place}.invite: {client!r} can't invite itself; name another")
                acts = tuple(self._acts(place, invited, table.operations))
                yield Act(action="invite", client=invited, acts=acts)
            elif kind in ("subscribe", "advertise"):
                action = kind[:3]
                text = _filter(f"{place}.{kind}", getattr(table, kind))
                label = table.name or f"{place}/{action}"
                yield _owned(Act(action=action, label=label, where=text), client)
            else:
                name = getattr(table, kind)
                act = _owned(Act(action=f"u{kind[2:5]}", label=name), client)
                if act.label not in self._held:
                    what = "subscription" if kind == "unsubscribe" else "advertisement"
                    own = f"{client}/{act.action[1:]}/"
                    known = (
                        one.removeprefix(own)
                        for one in sorted(self._held)
                        if one[: len(own)] == own
                    )
                    raise unknown(f"{place}.{kind}", f"{what} of {client}", name, known)
                yield act

    def _client(self, place: str, name: str) -> str:
        return self._one(place, "client", self._names.clients, name)

    def _labels(self) -> Iterator[str]:
        """Yield the labels of everything with a name, of all clients."""
        for index, table in enumerate(self._file.clients):
            named = [("sub", one.name) for one in table.subscriptions if one.name]
            named += [("adv", one.name) for one in table.advertisements if one.name]
            for client, _ in self._names.clients[index]:
                repeated = {each for each in named if named.count(each) > 1}
                if repeated:
                    _, name = min(repeated)
                    raise BadInput(
                        f"clients[{index}]: the name {name!r} is used twice; choose another"
                    )
                yield from (f"{client}/{action}/{name}" for action, name in named)
        for index, transaction in enumerate(self._file.transactions):
            client = self._client(f"transactions[{index}].client", transaction.client)
            yield from self._made(f"transactions[{index}]", client, transaction.operations)

    def _made(self, where: str, client: str, tables: Iterable[OperationTable]) -> Iterator[str]:
        for number, table in enumerate(tables):
            place = f"{where}.operations[{number}]"
            if table.invite is not None:
                invited = self._client(f"{place}.invite", table.invite)
                yield from self._made(place, invited, table.operations)
            elif table.name:
                action = "sub" if table.subscribe is not None else "adv"
                yield f"{client}/{action}/{table.name}"


def _owned(act: Act, client: str) -> Act:
    """Return an operation of one client: names are the client's own."""
    if not act.label:
        return act
    label = f"{client}/{act.action.removeprefix('u')}/{act.label}"
    return Act(action=act.action, label=label, where=act.where)


def _kind(place: str, table: OperationTable) -> str:
    given = [each for each in KINDS if getattr(table, each) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise BadInput(f"{place}: needs exactly one of {', '.join(KINDS)}; got {found}")
    kind = given[0]
    if table.operations and kind != "invite":
        raise BadInput(f"{place}.operations: is for invite only; leave it out")
    if table.name and kind not in ("subscribe", "advertise"):
        raise BadInput(f"{place}.name: is for subscribe and advertise only; leave it out")
    if table.size and kind != "publish":
        raise BadInput(f"{place}.size: is for publish only; leave it out")
    return kind


def _filter(place: str, text: str) -> str:
    try:
        parse(text)
    except BadInput as error:
        raise BadInput(f"{place}: {error}") from None
    return text


def _attributes(
    place: str, attributes: dict[str, bool | int | float | str]
) -> dict[str, bool | int | float | str]:
    try:
        event_of(attributes)
    except BadInput as error:
        raise BadInput(f"{place}: {error}") from None
    return attributes

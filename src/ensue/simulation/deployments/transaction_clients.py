"""Applications of transactions: programs of clients, and their interpreter.

`Act` is one operation; an invitation has its own acts, for the invited client. `Application` runs
the programs of all clients: it issues the next command when the last was answered, finishes
invitations, commits, or aborts if an operation was refused.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from ensue.protocols.content.client import Answered
from ensue.protocols.content.frames import Change
from ensue.protocols.transactions import frames as t
from ensue.protocols.transactions.client import Invitation, TransactionClient

__all__ = ["Act", "Application", "RegularSpec", "TransactionSpec", "plan_of"]


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """One operation."""

    action: str
    """`pub`, `sub`, `usub`, `adv`, `uadv`, `invite`, or `take`: subscribe to invitations."""
    where: str = ""
    """The filter of what is subscribed or advertised."""
    label: str = ""
    """What the scenario calls a subscription or advertisement, to withdraw it by."""
    attributes: dict[str, bool | int | float | str] = {}
    payload: bytes = b""
    client: str = ""
    """Who is invited; `ANYONE`: all that take invitations with the attributes."""
    acts: tuple["Act", ...] = ()
    """What the invited client does."""


class TransactionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One transaction."""

    client: str
    """Who coordinates it."""
    at_ns: int
    acts: tuple[Act, ...]
    isolation: str = t.SERIALIZABLE
    timeout_ns: int = 2_000_000_000
    commit: bool = True
    """False: the application changes its mind at the end."""
    hold: bool = False
    """Of a planned one: whether the decision comes after the operations."""
    wait_ns: int = 0
    """How long the application waits before it decides about a plan that is held."""
    attempts: int = 1
    """How often the application tries, if it is not to be blamed for an abort."""


class RegularSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One operation outside of transactions."""

    client: str
    at_ns: int
    act: Act


Call = Callable[[str, Callable[[TransactionClient, int], None]], None]
Later = Callable[[int, Callable[[], None]], None]


class _Thread:
    """Acts of one client, one after the other."""

    def __init__(self, client: str, transaction: str, within: str, acts: tuple[Act, ...]) -> None:
        self.client, self.transaction, self.within, self.acts = client, transaction, within, acts
        self.next = 0


class Application:
    """Plays the programs of all clients.

    `call` gives a client a command, `later` calls back after so many nanoseconds.
    """

    def __init__(self, call: Call, later: Later | None = None) -> None:
        self._call = call
        self._later = later
        self.names: dict[str, str] = {}
        """By label: the name of a subscription or advertisement."""
        self._waiting: dict[tuple[str, int], Callable[[str, str], None]] = {}
        self._invited: dict[str, tuple[Act, ...]] = {}
        """By invitation: the acts of the invited client."""
        self.outcomes: list[tuple[TransactionSpec, str]] = []
        """How transactions ended, for their coordinators: empty if committed, else why not."""
        self.names_of: list[str] = []
        """Transactions that began."""

    # -- From outside ---------------------------------------------------------------------------

    def start(self, spec: TransactionSpec, attempt: int = 1) -> None:
        """Begin a transaction."""
        if spec.isolation == t.PLANNED:
            self._submit(spec)
            return

        def begin(client: TransactionClient, now_ns: int) -> None:
            number = client.begin(spec.isolation, spec.timeout_ns * attempt, now_ns=now_ns)
            self._waiting[spec.client, number] = begun

        def begun(refused: str, name: str) -> None:
            if refused:
                self._over(spec, attempt, refused)
                return
            self.names_of.append(name)
            thread = _Thread(spec.client, name, "", spec.acts)
            self._go_on(thread, lambda wrong: self._end(spec, attempt, name, wrong))

        self._call(spec.client, begin)

    def regular(self, spec: RegularSpec) -> None:
        """Do an operation outside of transactions."""
        act = spec.act

        def do(client: TransactionClient, now_ns: int) -> None:
            if act.action == "pub":
                number = client.publish(act.attributes, act.payload, now_ns=now_ns)
            elif act.action == "sub":
                number, self.names[act.label] = client.subscribe(act.where, now_ns=now_ns)
            elif act.action == "take":
                number, self.names[act.label] = client.take_invitations(act.where, now_ns=now_ns)
            elif act.action == "adv":
                number, self.names[act.label] = client.advertise(act.where, now_ns=now_ns)
            elif act.label in self.names:
                withdraw = client.unsubscribe if act.action == "usub" else client.unadvertise
                number = withdraw(self.names[act.label], now_ns=now_ns)
            else:
                return
            self._ignore(spec.client, number)

        self._call(spec.client, do)

    def take(self, client: str, value: object) -> None:
        """Take an answer or an invitation that a client got."""
        if isinstance(value, Answered):
            waiting = self._waiting.pop((client, value.number), None)
            if waiting is not None:
                waiting(value.refused, value.transaction)
        elif isinstance(value, Invitation):
            acts = self._invited.get(value.publication.payload.decode(), ())
            thread = _Thread(client, value.transaction, value.path, acts)
            self._go_on(thread, lambda wrong: self._finish(client, value, wrong))

    def _ignore(self, client: str, number: int) -> None:
        """Drop the callback for an answer.

        A request of the same number may have left one: it was lost in a crash before it was
        persisted.
        """
        self._waiting.pop((client, number), None)

    # -- Threads --------------------------------------------------------------------------------

    def _go_on(self, thread: _Thread, done: Callable[[str], None]) -> None:
        """Do the next act of a thread, or what comes after the last."""
        if thread.next == len(thread.acts):
            done("")
            return
        act = thread.acts[thread.next]
        thread.next += 1

        def answered(refused: str, _name: str) -> None:
            if refused:
                done(refused)
            else:
                self._go_on(thread, done)

        def do(client: TransactionClient, now_ns: int) -> None:
            number = self._do(client, thread, act, now_ns)
            self._waiting[thread.client, number] = answered

        self._call(thread.client, do)

    def _do(self, client: TransactionClient, thread: _Thread, act: Act, now_ns: int) -> int:
        if act.action == "invite":
            label = f"{thread.transaction}/{thread.within}/{thread.next}"
            self._invited[label] = act.acts
            return client.invite(
                thread.transaction,
                act.client,
                act.attributes,
                payload=label.encode(),
                now_ns=now_ns,
                within=thread.within,
            )
        number, name = client.act(
            thread.transaction,
            act.action,
            now_ns=now_ns,
            within=thread.within,
            where=act.where,
            name=self.names.get(act.label, "none.such") if act.action in ("usub", "uadv") else "",
            attributes=act.attributes,
            payload=act.payload,
        )
        if act.action in ("sub", "adv"):
            self.names[act.label] = name
        return number

    def _finish(self, client: str, invitation: Invitation, wrong: str) -> None:
        def finish(node: TransactionClient, now_ns: int) -> None:
            number = node.finish(invitation.transaction, invitation.path, wrong, now_ns=now_ns)
            self._ignore(client, number)

        self._call(client, finish)

    def _end(self, spec: TransactionSpec, attempt: int, name: str, wrong: str) -> None:
        def end(client: TransactionClient, now_ns: int) -> None:
            commit = spec.commit and not wrong
            number = client.end(name, commit=commit, now_ns=now_ns)
            self._waiting[spec.client, number] = lambda refused, _: self._over(
                spec, attempt, refused or wrong
            )

        self._call(spec.client, end)

    def _over(self, spec: TransactionSpec, attempt: int, refused: str) -> None:
        if refused and spec.commit and attempt < spec.attempts:
            self.start(spec, attempt + 1)
        else:
            self.outcomes.append((spec, refused))

    # -- Plans ----------------------------------------------------------------------------------

    def _submit(self, spec: TransactionSpec) -> None:
        def submit(client: TransactionClient, now_ns: int) -> None:
            operations = plan_of(spec, client, self.names, now_ns)
            number = client.submit(operations, spec.timeout_ns, now_ns=now_ns, hold=spec.hold)
            self._waiting[spec.client, number] = handed_in

        def handed_in(refused: str, name: str) -> None:
            if spec.hold and not refused:
                if spec.wait_ns and self._later is not None:
                    self._later(spec.wait_ns, lambda: self._end(spec, spec.attempts, name, ""))
                else:
                    self._end(spec, spec.attempts, name, "")
            else:
                self._over(spec, spec.attempts, refused)

        self._call(spec.client, submit)


def plan_of(
    spec: TransactionSpec, client: TransactionClient, names: dict[str, str], now_ns: int
) -> list[t.Operation]:
    """Return the plan of a transaction: its operations in sequential order."""
    operations: list[t.Operation] = []
    _plan(spec.client, spec.acts, client, names, now_ns, operations)
    return operations


def _plan(
    actor: str,
    acts: tuple[Act, ...],
    client: TransactionClient,
    names: dict[str, str],
    now_ns: int,
    operations: list[t.Operation],
) -> None:
    for act in acts:
        if act.action == "invite":
            _plan(act.client, act.acts, client, names, now_ns, operations)
            continue
        options: dict[str, Any] = {}
        number = len(operations) + 1
        if act.action == "pub":
            made = client.planned_publication(actor, act.attributes, act.payload, now_ns=now_ns)
            options["publication"] = made
        elif act.action in ("sub", "adv"):
            name = client.planned_name(actor, number)
            names[act.label] = name
            options["change"] = Change(act.action, name, act.where)
        else:
            options["change"] = Change(act.action, names.get(act.label, f"{actor}.none"))
        after = (str(number - 1),) if number > 1 else ()
        operations.append(t.Operation(path=str(number), client=actor, after=after, **options))

"""Planned transactions: all operations go to the brokers in one message.

    async with bus.transaction(isolation="planned") as plan:
        await plan.unsubscribe(mine)
        await plan.client("agent").subscribe("instance = 'x1'")
        await plan.publish({"instance": "x1"})

The calls only record operations, in the order in which all clients carry them out, and must be
awaited like all others. Operations `with plan.together():` may happen in any order.
An exception in the block drops the plan: nothing has happened. Leaving the block submits the plan,
and returns when it is committed. A bus gets the subscriptions that plans of others make for it
from its handler (`bus.on_subscription`).

`await plan.hold()` submits the plan and leaves the decision to this bus: brokers carry the
operations out, subscribers get its events with `await plan.commit()`, and `await plan.abort()`
undoes it. Without a decision within `timeout` seconds it is aborted, and so it is if this process
dies.

Any other plan that the bus's server has is carried out even if this process dies. It is aborted
(`TransactionAborted`) only if a client that has a part in it is gone, or has withdrawn the
advertisement that it publishes under. If the server or a broker that has to take part is away, the
plan is carried out when it is back: after `timeout` seconds `TransactionPending` is raised, and the
plan must not be repeated.
"""

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from ensue.client.content.error_text import (
    RefusedRequest,
    display_name,
    explained,
    undecided_plan,
)
from ensue.client.content.reader import ContentRequest, ReadOptions
from ensue.client.content.session import CONTENT, ContentSession
from ensue.client.content.transaction import Operations, Subscribe, end_here, share_of
from ensue.client.subscription import Subscription
from ensue.client.validation import (
    PENDING_MAX,
    Acknowledge,
    Payload,
    check_broker_name,
    check_payload,
)
from ensue.core.errors import (
    EnsueError,
    LocalProtocolError,
    TransactionAborted,
    TransactionPending,
    aborted_transaction,
    limit_reason,
)
from ensue.protocols.content.client import Answered
from ensue.protocols.content.filters.filter import event_of
from ensue.protocols.content.frames import ADVERTISE, SUBSCRIBE, UNADVERTISE, UNSUBSCRIBE, Change
from ensue.protocols.transactions.client import TransactionClient
from ensue.protocols.transactions.frames import Operation
from ensue.protocols.transactions.invitations import parse_unreserved
from ensue.protocols.transactions.operations import OVER, TIMEOUT, lost_connection
from ensue.runtime.names import check_text

__all__ = ["PlannedClient", "PlannedTransaction"]

T = TypeVar("T")

_encode = msgspec.msgpack.Encoder().encode

_CALLED = {
    ADVERTISE: "advertise",
    UNADVERTISE: "unadvertise",
    SUBSCRIBE: "subscribe",
    UNSUBSCRIBE: "unsubscribe",
}
_NAMED_BY = {UNADVERTISE: "advertise()", UNSUBSCRIBE: "bus.content_name(subscription)"}


class _Step(msgspec.Struct):
    """One recorded operation."""

    client: str
    path: str
    after: tuple[str, ...]
    action: str = ""
    """Empty: it publishes."""
    name: str = ""
    where: str = ""
    attributes: Mapping[str, object] = {}
    payload: bytes = b""


class PlannedClient:
    """Operations of another client within a plan. Made by `PlannedTransaction.client`."""

    def __init__(self, plan: "PlannedTransaction", name: str) -> None:
        self._plan = plan
        self._name = name

    def publish(
        self, attributes: Mapping[str, object], payload: Payload = b""
    ) -> Coroutine[Any, Any, None]:
        """Plan that it publishes an event, which it has advertised."""
        return self._plan.note_event(self._name, attributes, payload)

    def advertise(self, where: str) -> Coroutine[Any, Any, str]:
        """Plan that it advertises; return the advertisement's name."""
        return self._plan.note_new(self._name, ADVERTISE, where)

    def unadvertise(self, name: str) -> Coroutine[Any, Any, None]:
        """Plan that it withdraws an advertisement."""
        return self._plan.note_end(self._name, UNADVERTISE, name)

    def subscribe(self, where: str) -> Coroutine[Any, Any, str]:
        """Plan that it subscribes; return the subscription's name.

        The handler of its bus gets the subscription (`bus.on_subscription`).
        """
        return self._plan.note_new(self._name, SUBSCRIBE, where)

    def unsubscribe(self, name: str) -> Coroutine[Any, Any, None]:
        """Plan that it withdraws a subscription, by its name among brokers.

        Its bus knows that name (`bus.content_name`).
        """
        return self._plan.note_end(self._name, UNSUBSCRIBE, name)


class PlannedTransaction:
    """A plan. Made by `Bus.transaction(isolation="planned")`; enter it with `async with`."""

    isolation = "planned"

    def __init__(self, session: ContentSession, subscribe: Subscribe, timeout: float) -> None:
        self._session = session
        self._subscribe = subscribe
        self._timeout_s = timeout
        self._entered = self._open = False
        self._steps: list[_Step] = []
        self._before: tuple[str, ...] = ()
        """Operations that the next one follows."""
        self._group: list[str] | None = None
        """Operations of the block `together` that is open."""
        self._groups = 0
        self._operations = Operations()
        self._made: list[Subscription] = []
        self._held_s: float | None = None
        """When it was held, on the clock of the event loop."""
        self.name = ""
        """The transaction's name, once it is held or committed."""

    def publish(
        self, attributes: Mapping[str, object], payload: Payload = b""
    ) -> Coroutine[Any, Any, None]:
        """Publish an event: delivered when the transaction is committed."""
        return self.note_event(self._session.name, attributes, payload)

    def advertise(self, where: str) -> Coroutine[Any, Any, str]:
        """Advertise what will be published; return the advertisement's name."""
        return self.note_new(self._session.name, ADVERTISE, where)

    def unadvertise(self, name: str) -> Coroutine[Any, Any, None]:
        """Withdraw an advertisement."""
        return self.note_end(self._session.name, UNADVERTISE, name)

    def subscribe(
        self,
        where: str,
        *,
        name: str | None = None,
        pending_max: int = PENDING_MAX,
        acknowledge: Acknowledge = "auto",
    ) -> Coroutine[Any, Any, Subscription]:
        """Subscribe; return the subscription, open.

        Events arrive when the transaction commits; an abort ends the subscription. The options
        are those of `bus.subscribe`.
        """
        options = ReadOptions(name=name, pending_max=pending_max, acknowledge=acknowledge)
        made = self._note_made(self._session.name, SUBSCRIBE, where)
        wanted = ContentRequest(where=where, session=self._session, made=made, options=options)
        return self._operations.begin("subscribe", lambda: self._enter(wanted))

    def unsubscribe(self, subscription: Subscription) -> Coroutine[Any, Any, None]:
        """Withdraw a subscription of this bus: it continues if the transaction is aborted."""
        share = share_of(subscription)
        return self.note_end(self._session.name, UNSUBSCRIBE, share.subscription)

    def invite(
        self, client: str | Mapping[str, object], *_: object, **__: object
    ) -> Coroutine[Any, Any, int]:
        """Raise: a plan has no invitations; use `client` instead."""
        if isinstance(client, Mapping):
            raise LocalProtocolError(
                "a plan names its clients: use another isolation to invite by content, or "
                "plan.client(NAME)"
            )
        raise LocalProtocolError(
            f"a plan has no invitations: plan what {client!r} does with plan.client({client!r})"
        )

    def client(self, name: str) -> PlannedClient:
        """Return the operations of another bus, by its short or complete `bus.name`."""
        self._check_open()
        check_text(name, "a client's name")
        return PlannedClient(self, f"{name}.{CONTENT}")

    @contextmanager
    def together(self) -> Iterator[None]:
        """Let the operations of a block happen in any order among themselves.

        They happen after all operations before the block, and before all after it.
        """
        self._check_open()
        if self._group is not None:
            raise LocalProtocolError("`together` blocks can't be nested: leave the open one first")
        self._groups += 1
        group = self._group = []
        try:
            yield
        finally:
            self._group = None
            self._before = tuple(group) or self._before

    # -- Deciding -------------------------------------------------------------------------------

    async def hold(self) -> None:
        """Submit the plan, and decide later: with `commit` or `abort`, or by leaving the block.

        Returns when the bus's server has it. Brokers carry its operations out meanwhile, as far as
        those can be; its events are delivered with the commit. After `timeout` seconds without a
        decision it is aborted. No operation can be added.
        """
        self._check_open()
        self._check_awaited()
        if not self._steps:
            raise LocalProtocolError("the plan has no operations: add some before plan.hold()")
        self._open = False
        self._held_s = asyncio.get_running_loop().time()
        holding = self._ask_to_submit(hold=True)
        try:
            done, _ = await asyncio.wait((holding,), timeout=self._timeout_s)
        except asyncio.CancelledError:
            self._give_up(holding)
            raise
        if not done:
            self._give_up(holding)
            raise TransactionAborted(
                f"the plan has no answer after {self._timeout_s:g} s: a server is away or busy; it "
                "is not committed",
                reason=TIMEOUT,
            )
        answer = holding.result()
        if answer.refused:
            self._undo()
            self._held_s = None
            raise self._not_done(answer.refused)
        self.name = answer.transaction

    async def commit(self) -> None:
        """Commit now, not when the block is left; no operation can be added.

        Raises `TransactionAborted` as leaving the block does, and if a held plan was not decided
        in time.
        """
        if self._held_s is None:
            self._check_open()
            self._check_awaited()
            self._open = False
            if self._steps:
                await self._submit()
        else:
            await self._commit_held()

    async def abort(self) -> None:
        """Drop the plan, or undo it if it is held; no operation can be added.

        A held plan is undone when all brokers have its operations: this does not wait for that.
        """
        if self._held_s is None:
            self._check_open()
            self._open = False
            self._undo()
        else:
            await self._abort_held()

    def _check_awaited(self) -> None:
        unawaited = self._operations.unawaited
        if unawaited:
            self._open = False
            self._undo()
            raise TransactionAborted(f"the plan was dropped: {unawaited}", reason=unawaited)

    def _give_up(self, holding: "asyncio.Future[Answered]") -> None:
        """Abort a plan when it is known to be held: no call waits for that."""
        holding.add_done_callback(self._session.abort)
        self._held_s = None
        self._undo()

    def _decide(self, *, commit: bool) -> "asyncio.Future[Answered]":
        name, self._held_s = self.name, None
        return self._session.ask(lambda node, now: node.end(name, commit=commit, now_ns=now))

    async def _commit_held(self) -> None:
        assert self._held_s is not None
        since_s = self._held_s
        deciding = self._decide(commit=True)
        deciding.add_done_callback(self._answered)
        answer = await self._outcome_of(deciding)
        if answer.refused == OVER:
            waited_s = asyncio.get_running_loop().time() - since_s
            late = waited_s >= self._timeout_s
            raise self._not_done(TIMEOUT if late else lost_connection(self._session.name))
        if answer.refused:
            raise self._not_done(answer.refused)

    async def _abort_held(self) -> None:
        deciding = self._decide(commit=False)
        self._undo()
        # Its server aborts it at its deadline, too, if it does not get this.
        await asyncio.wait((deciding,), timeout=self._session.close_timeout_s)

    # -- Writing it down ------------------------------------------------------------------------

    def note_event(
        self, client: str, attributes: Mapping[str, object], payload: Payload
    ) -> Coroutine[Any, Any, None]:
        """Record a publication."""
        checked = check_payload(payload, self._session.payload_bytes_max)
        self._note(client, attributes=event_of(attributes), payload=checked)
        return self._operations.begin("publish", lambda: _value(None))

    def note_new(self, client: str, action: str, where: str) -> Coroutine[Any, Any, str]:
        """Record an advertisement or a subscription; return its name."""
        name = self._note_made(client, action, where)
        return self._operations.begin(_CALLED[action], lambda: _value(name))

    def note_end(self, client: str, action: str, name: str) -> Coroutine[Any, Any, None]:
        """Record the withdrawal of an advertisement or a subscription."""
        check_broker_name(name, _NAMED_BY[action])
        self._note(client, action=action, name=name)
        return self._operations.begin(_CALLED[action], lambda: _value(None))

    def _note_made(self, client: str, action: str, where: str) -> str:
        text = parse_unreserved(where).to_text()
        name = f"{client}.plan-{self._session.unique()}"
        self._note(client, action=action, name=name, where=text)
        return name

    async def _enter(self, wanted: ContentRequest) -> Subscription:
        self._check_open()
        made = await self._subscribe(wanted).__aenter__()
        self._made.append(made)
        if not self._open:
            self._undo()  # It was not awaited, so there is no plan.
        return made

    def _note(self, client: str, **what: Any) -> None:
        self._check_open()
        number = len(self._steps) + 1
        # Numbers after a zero do not count for the sequence.
        path = str(number) if self._group is None else f"{number - len(self._group)}.0.{number}"
        self._steps.append(_Step(client, path, self._before, **what))
        if self._group is None:
            self._before = (path,)
        else:
            self._group.append(path)

    def _check_open(self) -> None:
        if self._held_s is not None:
            raise LocalProtocolError("the plan is held: commit or abort it, and add nothing")
        if not self._open:
            raise LocalProtocolError(
                'use it inside `async with bus.transaction(isolation="planned") as plan`, and not '
                "after commit or abort"
            )

    # -- Submitting -----------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._entered:
            raise LocalProtocolError(
                "a transaction is entered once: make another with bus.transaction(…)"
            )
        self._entered = self._open = True
        await self._session.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._held_s is not None:
            await self._decide_on_leaving(kind)
        elif self._open:
            if kind is None:
                await self.commit()
            else:
                self._open = False
                self._undo()

    async def _decide_on_leaving(self, kind: type[BaseException] | None) -> None:
        """Commit a plan that is still held, or abort it because its block raised."""
        if kind is None:
            await self._commit_held()
        elif issubclass(kind, Exception):
            with suppress(EnsueError):  # The exception of the block matters more.
                await self._abort_held()
        else:
            self._decide(commit=False)
            self._undo()

    def _ask_to_submit(self, *, hold: bool = False) -> "asyncio.Future[Answered]":
        timeout_ns = int(self._timeout_s * 1_000_000_000)

        def submit(client: TransactionClient, now_ns: int) -> int:
            operations = [_operation(client, step, now_ns) for step in self._steps]
            self._check_size(operations)
            return client.submit(operations, timeout_ns, now_ns=now_ns, hold=hold)

        try:
            return self._session.ask(submit)
        except BaseException:
            self._held_s = None
            self._undo()  # It was not submitted.
            raise

    async def _submit(self) -> None:
        answering = self._ask_to_submit()
        answering.add_done_callback(self._answered)  # Even after the timeout.
        answer = await self._outcome_of(answering)
        if answer.refused:
            raise self._not_done(answer.refused)

    async def _outcome_of(self, answering: "asyncio.Future[Answered]") -> "Answered":
        """Wait for the outcome; raise `TransactionPending` if it takes too long."""
        done, _ = await asyncio.wait((answering,), timeout=self._timeout_s)
        if not done:
            raise TransactionPending(
                f"the plan was submitted and has no result after {self._timeout_s:g} s: a server "
                "or broker is away or busy; it may still be carried out, so do not repeat it"
            )
        return answering.result()

    def _not_done(self, refused: str) -> TransactionAborted:
        why = self._explained(refused)
        text = undecided_plan(self._timeout_s) if why == TIMEOUT else why
        return aborted_transaction(
            f"the plan can't be carried out: {text}", reason=why, transaction=self.name
        )

    def _answered(self, answering: "asyncio.Future[Answered]") -> None:
        """Note the advertisements of a committed plan; undo one that was refused."""
        if answering.cancelled() or answering.exception() is not None:
            return
        answer = answering.result()
        if answer.refused:
            self._undo()
            return
        self.name = answer.transaction
        for step in self._steps:
            if step.client == self._session.name and step.action == ADVERTISE:
                self._session.advertised[step.name] = step.where
            elif step.action == UNADVERTISE:
                self._session.advertised.pop(step.name, None)

    def _check_size(self, operations: list[Operation]) -> None:
        """Refuse a plan that is too large for one message."""
        size, bytes_max = len(_encode(operations)), self._session.plan_bytes_max
        if size > bytes_max:
            what, how = f"it has {size} bytes in one message", "do it in several plans"
            why = limit_reason(what, "plan_bytes_max", bytes_max, how)
            raise aborted_transaction(f"the plan was dropped: {why}", reason=why)

    def _explained(self, refused: str) -> str:
        """Return why a plan was refused, with the operation that caused it."""
        asked = RefusedRequest(own=self._session.bus, join="await bus.on_subscription(…)")
        path = refused.removeprefix("operation ").partition(":")[0]
        step = next((each for each in self._steps if each.path == path and not each.action), None)
        if step is not None:
            its_own = step.client == self._session.name
            known = tuple(self._session.advertised.values()) if its_own else ()
            planned = (one for one in self._steps if one.action == ADVERTISE)
            asked.event = step.attributes
            asked.advertised = (
                *known,
                *(one.where for one in planned if one.client == step.client),
            )
            plan = "plan" if its_own else f"plan.client({display_name(step.client)!r})"
            asked.advertise = f"await {plan}.advertise(where=…)"
        return explained(refused, asked)

    def _undo(self) -> None:
        """End subscriptions that the brokers don't have."""
        made, self._made = self._made, []
        for subscription in made:
            end_here(subscription)


async def _value(of: T) -> T:
    """Return a value, as an awaitable."""
    return of


def _operation(client: TransactionClient, step: _Step, now_ns: int) -> Operation:
    if step.action:
        change = Change(step.action, step.name, step.where)
        return Operation(path=step.path, client=step.client, after=step.after, change=change)
    made = client.planned_publication(step.client, step.attributes, step.payload, now_ns=now_ns)
    return Operation(path=step.path, client=step.client, after=step.after, publication=made)

"""Submission of plans: a client's home checks a plan, names it, and decides about it.

`plans` carries it out.
"""

from collections.abc import Callable, Iterator

import msgspec

from ensue.core.errors import BadInput, limit_reason
from ensue.protocols.content import frames as f
from ensue.protocols.content.filters.filter import event_of
from ensue.protocols.content.filters.parser import parse
from ensue.protocols.content.frames import Change, Publication
from ensue.protocols.content.mailboxes import transactional_refusal
from ensue.protocols.content.refusals import (
    INVERSE,
    SPLIT,
    no_such,
    reserved,
    too_long,
    too_many_transactions,
)
from ensue.protocols.content.state import BrokerState
from ensue.protocols.transactions import frames as t
from ensue.protocols.transactions.operations import ABORTED, TIMEOUT, whole_name
from ensue.protocols.transactions.plans import Plans, numbered
from ensue.protocols.transactions.records import Submission

__all__ = ["Submissions"]


class Submissions:
    """Plans that clients of one broker submit."""

    def __init__(self, state: BrokerState, plans: Plans, new_name: Callable[[], str]) -> None:
        self._state = state
        self._plans = plans
        self._new_name = new_name

    def count_of(self, client: str) -> int:
        """Return how many open plans a client has submitted."""
        return sum(one.client == client for one in self._plans.submissions.values())

    def submit(self, frame: t.Submit, client: str, now_ns: int, *, coordinated: int) -> None:
        """Begin the plan of a client that coordinates `coordinated` other transactions.

        Decide about it at once, unless the client holds the decision.
        """
        state = self._state
        named = tuple(self._with_whole_name(one) for one in frame.operations)
        frame = msgspec.structs.replace(frame, operations=named)
        refused = next(self._faults(frame), "")
        if not refused and coordinated >= state.config.transactions_max:
            refused = too_many_transactions(client, state.config)
        if refused:
            state.send(client, f.Done(number=frame.number, refused=refused))
            return
        name = self._new_name()
        # Only its home knows which numbers a client's publications have.
        operations = tuple(
            msgspec.structs.replace(
                one if one.client == client else numbered(one, 0), home=state.members[one.client][0]
            )
            for one in frame.operations
        )
        deadline_ns = now_ns + frame.timeout_ns
        submission = Submission(client, frame.number, deadline_ns, decided=not frame.hold)
        self._plans.submissions[name] = submission
        state.record(action="began", topic=t.PLANNED, transaction=name)
        self._plans.start(t.Planned(transaction=name, operations=operations), "", now_ns)
        if frame.hold:
            submission.number = 0
            state.send(client, f.Done(number=frame.number, transaction=name))
        else:
            self._plans.close(t.Close(transaction=name, commit=True), "")

    def _with_whole_name(self, one: t.Operation) -> t.Operation:
        """Return an operation with the whole name of its client (`operations.whole_name`)."""
        whole = whole_name(self._state, one.client)
        if whole == one.client:
            return one
        change, publication = one.change, one.publication
        if change is not None and change.name.startswith(f"{one.client}."):
            own = change.name.removeprefix(one.client)
            change = Change(change.action, f"{whole}{own}", change.where)
        if publication is not None and publication.publisher == one.client:
            publication = msgspec.structs.replace(publication, publisher=whole)
        return msgspec.structs.replace(one, client=whole, change=change, publication=publication)

    # -- Decisions about plans that are held ----------------------------------------------------

    def is_held_by(self, name: str, client: str) -> bool:
        """Return whether a client has to decide about a plan."""
        submission = self._plans.submissions.get(name)
        return submission is not None and submission.client == client and not submission.decided

    def end(self, frame: t.End) -> None:
        """Carry out a client's decision about a plan that it holds."""
        self._plans.submissions[frame.transaction].number = frame.number
        reason = "" if frame.commit else ABORTED
        self._decide(frame.transaction, commit=frame.commit, reason=reason)

    def due_ns(self) -> int | None:
        """Return when the next deadline of a held plan is due."""
        dues = (one.deadline_ns for one in self._plans.submissions.values() if not one.decided)
        return min(dues, default=None)

    def tick(self, now_ns: int) -> None:
        """Abort held plans at their deadlines."""
        for name, submission in list(self._plans.submissions.items()):
            if not submission.decided and submission.deadline_ns <= now_ns:
                self._decide(name, commit=False, reason=TIMEOUT)

    def abort_all_of(self, client: str, reason: str) -> None:
        """Abort the plans that a client holds."""
        for name, submission in list(self._plans.submissions.items()):
            if not submission.decided and submission.client == client:
                self._decide(name, commit=False, reason=reason)

    def _decide(self, name: str, *, commit: bool, reason: str) -> None:
        submission = self._plans.submissions[name]
        submission.decided = True
        if not commit and submission.number:
            # The client does not wait for compensation, which may take long.
            self._plans.answer_submission(name, reason)
        self._plans.close(t.Close(transaction=name, commit=commit, reason=reason), "")

    # -- Checks ---------------------------------------------------------------------------------

    def _faults(self, plan: t.Submit) -> Iterator[str]:
        """Yield what is wrong with a plan."""
        config, members = self._state.config, self._state.members
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
                yield f"no client is called {one.client!r}"
            try:
                wrong = transactional_refusal(one.client) or self._fault_of(one, plan)
            except BadInput as error:
                wrong = str(error)
            if wrong:
                yield f"operation {one.path}: {wrong}"
            seen[one.path] = None

    def _fault_of(self, one: t.Operation, plan: t.Submit) -> str:
        """Return what is wrong with one operation of a plan, or nothing."""
        if (one.change is None) == (one.publication is None):
            return "it needs exactly one of change, publication"
        if one.change is not None:
            if not one.change.name.startswith(f"{one.client}."):
                return f"{one.change.name!r} does not belong to {one.client}"
            if one.change.action in INVERSE:
                parse(one.change.where)
            return no_such(one.change)
        assert one.publication is not None
        return reserved(one.publication) or self._uncovered(one, one.publication, plan)

    def _uncovered(self, one: t.Operation, publication: Publication, plan: t.Submit) -> str:
        """Return the refusal if neither the client nor the plan has advertised it, or nothing."""
        event = event_of(publication.attributes)
        _, hop = self._state.members.get(one.client, ("", ""))
        covering = self._state.tables.advertised(event, hop)
        planned = [
            its.change.where
            for its in plan.operations
            if its.client == one.client
            and its.change is not None
            and its.change.action == f.ADVERTISE
        ]
        if any(name.startswith(f"{one.client}.") for name in covering):
            return ""
        if any(parse(where).matches(event) for where in planned):
            return ""
        return f"no advertisement of {one.client} covers it"

"""The content half of a broker: its clients, their regular operations, and publications.

`transactions.broker.TransactionBroker` is the node that owns it. See the package for the theory.
"""

from collections.abc import Sequence

from ensue.core.errors import BadInput
from ensue.core.event import NAME_LENGTH_MAX
from ensue.protocols.content import frames as f
from ensue.protocols.content.filters.parser import parse
from ensue.protocols.content.frames import Change, Publication, Routed, Step
from ensue.protocols.content.mailboxes import mailbox_of
from ensue.protocols.content.refusals import overfull, refusal, reserved_name
from ensue.protocols.content.state import BrokerState
from ensue.protocols.content.steps import Pending, Steps
from ensue.protocols.content.tables import Outputs
from ensue.protocols.content.versions import route_back, unseen

__all__ = ["ContentBroker"]


class ContentBroker:
    """Regular operations, outside of transactions, at one broker."""

    def __init__(self, state: BrokerState, steps: Steps) -> None:
        self._state = state
        self._steps = steps

    # -- Clients --------------------------------------------------------------------------------

    def welcome(self, client: str) -> None:
        """Admit a client; answer it when every broker has a route to it."""
        self._state.clients[client] = None
        self._state.members[client] = (self._state.name, client)
        self._introduce(Pending(client), client, self._state.name, but="")

    def depart(self, client: str) -> None:
        """Withdraw all entries of a departed client."""
        state = self._state
        del state.clients[client]
        state.disconnected.pop(client, None)
        state.members.pop(client, None)
        state.record(action="unsubscribed", publisher=client, verdict="gone")
        self._steps.disown(client)
        for action, table in (
            (f.UNSUBSCRIBE, state.tables.subscriptions),
            (f.UNADVERTISE, state.tables.advertisements),
        ):
            for name in [name for name, entry in table.items() if entry.hop == client]:
                self.change((Change(action, name),), client)
        self._introduce(Pending(), client, "", but="")
        if client in state.mailboxes:
            state.mailboxes.remove(client)
        else:
            state.mailboxes.detach_all_of(client)
            state.departed.append(client)

    # -- Durable subscriptions ------------------------------------------------------------------

    def attach(self, frame: f.Attach, client: str) -> None:
        """Make a client the reader of a durable subscription; make that if it is new."""
        state, mailboxes = self._state, self._state.mailboxes
        name = mailbox_of(frame.name)
        refused = mailboxes.refusal(name, frame)
        if not refused and name not in mailboxes:
            refused = self._refuse_new(frame, name)
        if refused:
            state.send(client, f.Done(number=frame.number, refused=refused))
            return
        if name in mailboxes:
            mailboxes.attach(name, frame, client)
            return
        change = Change(f.SUBSCRIBE, mailboxes.make(name, frame).subscription, frame.where)
        self.welcome(name)
        mailboxes.attach(name, frame, client)
        # The mailbox takes the answer, and passes it on to its reader.
        self.change((change,), name, frame.number)

    def _refuse_new(self, frame: f.Attach, name: str) -> str:
        """Return why a durable subscription can't be made here, or nothing."""
        state = self._state
        if name in state.members:
            return f"the durable subscription {frame.name!r} is kept at {state.members[name][0]}"
        try:
            wanted = parse(frame.where)
        except BadInput as error:
            return str(error)
        if any(each == f.INVITATION for box in wanted.boxes for each, _ in box):
            return reserved_name(f.INVITATION)
        if len(frame.name) > NAME_LENGTH_MAX:
            return f"a durable name has at most {NAME_LENGTH_MAX} characters, got {len(frame.name)}"
        change = Change(f.SUBSCRIBE, name, frame.where)
        return overfull(change, name, state.tables, state.config)

    def acknowledge(self, frame: f.Acknowledge, client: str) -> None:
        """Drop the events that a reader has handled."""
        mailboxes = self._state.mailboxes
        refused = mailboxes.refuse_reader(frame.mailbox, frame.epoch, client)
        if not refused:
            mailboxes.acknowledge(frame.mailbox, frame.position)
        self._state.send(client, f.Done(number=frame.number, refused=refused))
        if not refused:
            mailboxes.detach_overfull(frame.mailbox)

    def release(self, frame: f.Release, client: str) -> bool:
        """Detach a reader; return whether its durable subscription is to be forgotten."""
        mailboxes = self._state.mailboxes
        refused = mailboxes.refuse_reader(frame.mailbox, frame.epoch, client)
        if not refused:
            mailboxes.release(frame.mailbox)
        self._state.send(client, f.Done(number=frame.number, refused=refused))
        return frame.forget and not refused

    def dismiss(self, frame: f.Dismiss, client: str) -> str:
        """End a durable subscription for a client that need not read it; return its mailbox."""
        mailboxes, name = self._state.mailboxes, mailbox_of(frame.name)
        refused = mailboxes.refuse_dismissal(name, frame)
        self._state.send(client, f.Done(number=frame.number, refused=refused))
        return name if not refused and mailboxes.dismiss(name) else ""

    def _introduce(self, pending: Pending, client: str, home: str, *, but: str) -> None:
        """Announce to neighbors that a client joined or left."""
        for neighbor in self._state.neighbors:
            if neighbor != but:
                self._steps.cause(pending, neighbor, member=client, home=home)
        self._steps.settle(pending)

    # -- Operations -----------------------------------------------------------------------------

    def operate(self, frame: f.Operate, client: str) -> None:
        """Carry out a client's operation outside of transactions."""
        state = self._state
        refused = refusal(frame, client, state.tables, state.config)
        if refused:
            state.send(client, f.Done(number=frame.number, refused=refused))
        elif frame.publication is not None:
            self.publish(frame.publication, client, state.seen())
            state.send(client, f.Done(number=frame.number))
        elif frame.change is not None:
            self.change((frame.change,), client, frame.number)

    def step(self, frame: Step, source: str) -> None:
        """Carry out a neighbor's step outside of transactions."""
        if not frame.member:
            self.change(frame.changes, source, frame.number)
            return
        members = self._state.members
        if frame.home:
            members[frame.member] = (frame.home, source)
        elif members.get(frame.member, ("", ""))[1] == source:
            del members[frame.member]  # Otherwise it has joined again at another broker.
        self._introduce(Pending(source, frame.number), frame.member, frame.home, but=source)

    def change(self, changes: Sequence[Change], hop: str, number: int | None = None) -> None:
        """Change the tables; answer request `number`, if any, when all brokers have the change."""
        state, outputs = self._state, Outputs()
        for change in changes:
            for neighbor, following in state.tables.apply(change, hop).items():
                outputs.setdefault(neighbor, []).extend(following)
        pending = Pending("" if number is None else hop, number or 0)
        if hop in state.clients:
            pending.advertised = [each.name for each in changes if each.action == f.ADVERTISE]
        self._steps.wait_for_coverers(pending, changes, state.tables)
        self._steps.pass_on(outputs, pending)

    def publish(self, publication: Publication, hop: str, seen: dict[str, int]) -> None:
        """Route a publication by the version of the tables that it has seen."""
        state, event = self._state, publication.attributes
        for home, number in seen.items():
            kept = sum(undo.home == home and undo.number > number for undo in state.undos)
            assert number + kept == state.commits.get(home), "the version was forgotten"
        later = unseen(state.undos, seen)
        if later:
            neighbors, clients = route_back(state.tables, later, event, hop)
        else:
            neighbors, clients = state.tables.route(event, hop)
        for neighbor in sorted({*neighbors, *self._steps.unknowing(publication, hop)}):
            state.send(neighbor, Routed(publication=publication, seen=seen))
        for client, names in clients.items():
            state.send(client, f.Notify(publication=publication, subscriptions=tuple(names)))

"""Clients that act within each other's transactions, and the judge of what they get.

- An invited client gets the attributes and the payload of the invitation, and who sent it. It may
  advertise, publish and subscribe, and invite others, who do the same. All of that happens if the
  transaction is committed, and nothing of it if not.
- Subscriptions that transactions make have the options that `tx.subscribe` got.
- An invitation by content that finds fewer clients than `at_least` aborts, and says so.
- `on_invitation(None)` takes no more invitations.
- `tx.unsubscribe` of the coordinator ends a subscription behind the events before it; if the
  transaction is aborted, the subscription continues.
"""

from collections.abc import Awaitable, Callable

import ensue
from ensue.client.validation import Acknowledge
from ensue.core.errors import TransactionAborted
from ensue.testing.swarm.content_caller import (
    ANSWER_S,
    KINDS,
    ContentCaller,
    Round,
)

__all__ = ["InvitationCalls"]

Attributes = dict[str, object]
HOW: tuple[Acknowledge, ...] = ("auto", "manual")


class InvitationCalls(ContentCaller):
    """Three buses of one process: one invites the second, which invites the third."""

    process = "inviter"
    names = ("inviter", "invitee", "third")
    generator = "invitation calls"

    def rounds(self) -> list[Round]:
        """Return the rounds."""
        return [self._invite_in_turn, self._invite_enough, self._take_no_more, self._unsubscribe]

    def _where(self) -> tuple[str, Attributes]:
        """Return a filter that no other round uses, and the attributes that match it."""
        number = next(self._numbers)
        return f"q = {number}", {"q": number}

    # -- Invitations by name --------------------------------------------------------------------

    async def _invite_in_turn(
        self, inviter: ensue.Bus, invitee: ensue.Bus, third: ensue.Bus
    ) -> None:
        """Have two clients advertise, publish and subscribe, one invited by the other."""
        random, (where, attributes) = self._random, self._where()
        limit, how = random.choice((3, 50)), random.choice(HOW)
        name, made, taken = f"invited {attributes['q']}", [], []
        undone = random.random() < 0.3

        async def act_first(tx: ensue.InvitedTransaction) -> None:
            self._check_invitation(tx, attributes, b"to the first", inviter)
            taken.append(await tx.advertise(where))
            await tx.publish(attributes, b"from the first")
            await tx.invite(third.name, attributes, b"to the second")

        async def act_second(tx: ensue.InvitedTransaction) -> None:
            self._check_invitation(tx, attributes, b"to the second", invitee)
            made.append(await tx.subscribe(where, name=name, pending_max=limit, acknowledge=how))
            await tx.unadvertise(await tx.advertise(where))
            taken.append(await tx.advertise(where))
            await tx.publish(attributes, b"from the second")

        async def invite(tx: ensue.Transaction) -> None:
            await tx.invite(invitee.name, attributes, b"to the first")
            if len(taken) != 2:
                self._problems.append(f"invited: {tx.name} went on after {len(taken)} of 2")

        await invitee.on_invitation(act_first)
        await third.on_invitation(act_second)
        async with inviter.subscribe(where=where) as watch:
            if not await self._commit(inviter, invite, undone=undone):
                await self._check_nothing(inviter, where, attributes, watch, *made)
                await self._check_refused(attributes, invitee, third)
                return
            await self._expect(watch, b"from the first", b"from the second")
            (own,) = made
            await self._expect(own, b"from the second")
            for bus in (invitee, third):
                await self._await_advertisement(bus, attributes)
            await self._expect(own, b"tried", b"tried")
            self._check_options(own, pending_max=limit, name=name)
            self._check_pending(own, manual=how == "manual", read=3)
            own.close()
        await self._withdraw(invitee, taken[0])
        await self._withdraw(third, taken[1])

    def _check_invitation(
        self,
        tx: ensue.InvitedTransaction,
        attributes: Attributes,
        payload: bytes,
        inviter: ensue.Bus,
    ) -> None:
        got = (dict(tx.attributes), tx.payload, tx.inviter)
        if got != (attributes, payload, inviter.name):
            self._problems.append(f"invited: {tx.name} has {got}, sent {attributes}, {payload!r}")

    async def _check_nothing(
        self,
        bus: ensue.Bus,
        where: str,
        attributes: Attributes,
        watch: ensue.Subscription,
        *made: ensue.Subscription,
    ) -> None:
        """Check that of an aborted transaction there is no event, and no subscription."""
        name = await bus.advertise(where=where)
        await bus.publish(attributes, b"after", timeout=ANSWER_S)
        await self._expect(watch, b"after")
        for each in made:
            await self._check_end(each)
        await self._withdraw(bus, name)

    async def _check_refused(self, attributes: Attributes, *buses: ensue.Bus) -> None:
        """Check that an aborted transaction has advertised nothing.

        One that is not isolated has, until its abort reaches the servers of these buses.
        """
        for bus in buses:
            if self._isolation == "serializable":
                await self._try(bus, attributes, allowed=False)

    # -- Invitations by content -----------------------------------------------------------------

    async def _invite_enough(
        self, inviter: ensue.Bus, invitee: ensue.Bus, third: ensue.Bus
    ) -> None:
        """Invite two clients by content, and ask for up to three."""
        where, attributes = self._where()
        at_least, taken = self._random.randint(1, 3), []

        def taker(bus: ensue.Bus) -> Callable[[ensue.InvitedTransaction], Awaitable[None]]:
            async def take(tx: ensue.InvitedTransaction) -> None:
                self._check_invitation(tx, attributes, b"to all", inviter)
                name = await tx.advertise(where)
                await tx.publish(attributes, b"taken")
                taken.append((bus, name))

            return take

        for bus in (invitee, third):
            await bus.on_invitation(taker(bus), where=where)
        name = await inviter.advertise(where=where)
        async with inviter.subscribe(where=where) as watch:
            count, is_decided = await self._invite_all(inviter, attributes, at_least)
            await inviter.publish(attributes, b"after", timeout=ANSWER_S)
            await self._expect(watch, *[b"taken"] * (count or 0), b"after")
            if count is not None and count < at_least:
                self._problems.append(f"invited: {count} of at_least={at_least} were enough")
            if self._settled and is_decided and count != (2 if at_least <= 2 else None):
                self._problems.append(f"invited: {count} of 2 clients, at_least={at_least}")
        for bus, advertised in taken:
            if count is None:
                await self._check_refused(attributes, bus)
            else:
                await self._await_advertisement(bus, attributes)
                await self._withdraw(bus, advertised)
        await self._withdraw(inviter, name)
        for bus in (invitee, third):
            await bus.on_invitation(None, where=where)

    async def _invite_all(
        self, inviter: ensue.Bus, attributes: Attributes, at_least: int
    ) -> tuple[int | None, bool]:
        """Return how many clients took part, and whether that decided about the transaction.

        None: it was aborted.
        """
        count, self._isolation = None, self._random.choice(KINDS)
        try:
            async with inviter.transaction(isolation=self._isolation, timeout=10.0) as tx:
                count = await tx.invite(attributes, payload=b"to all", at_least=at_least)
        except TransactionAborted as error:
            is_decided = count is None and f"of at_least={at_least}" in str(error)
            if not is_decided:
                self._aborted(error)
            return None, is_decided
        return count, True

    # -- No more invitations --------------------------------------------------------------------

    async def _take_no_more(self, inviter: ensue.Bus, invitee: ensue.Bus, third: ensue.Bus) -> None:
        """Invite clients that no longer take invitations, by content and by name."""
        where, attributes = self._where()

        async def take(tx: ensue.InvitedTransaction) -> None:
            self._problems.append(f"invited: {tx.name} reached a client that takes no more")

        await third.on_invitation(take, where=where)
        await third.on_invitation(None, where=where)
        await invitee.on_invitation(take)
        await invitee.on_invitation(None)
        name = await inviter.advertise(where=where)
        at_least = self._random.choice((0, 1))
        count, is_decided = await self._invite_all(inviter, attributes, at_least)
        if count or (self._settled and is_decided and count != (0 if at_least == 0 else None)):
            self._problems.append(f"invited: {count} clients take no more, {at_least=}")
        try:
            async with inviter.transaction(timeout=10.0) as tx:
                await tx.invite(invitee.name)
        except TransactionAborted as error:
            if "takes no invitations" not in str(error):
                self._aborted(error)
        else:
            self._problems.append(f"invited: {invitee.name} takes no invitations, and took one")
        await self._withdraw(inviter, name)

    # -- Withdrawals ----------------------------------------------------------------------------

    async def _unsubscribe(self, inviter: ensue.Bus, invitee: ensue.Bus, _: ensue.Bus) -> None:
        """Withdraw a subscription between two events of a transaction."""
        where, attributes = self._where()
        undone = self._random.random() < 0.4
        name = await inviter.advertise(where=where)
        async with inviter.subscribe(where=where) as own, invitee.subscribe(where=where) as watch:

            async def withdraw(tx: ensue.Transaction) -> None:
                await tx.publish(attributes, b"early")
                await tx.unsubscribe(own)
                await tx.publish(attributes, b"late")

            await inviter.publish(attributes, b"before", timeout=ANSWER_S)
            done = await self._commit(inviter, withdraw, undone=undone)
            await inviter.publish(attributes, b"after", timeout=ANSWER_S)
            if done:
                await self._expect(watch, b"before", b"early", b"late", b"after")
                await self._expect(own, b"before", b"early")
                await self._check_end(own)
            else:
                await self._expect(watch, b"before", b"after")
                await self._expect(own, b"before", b"after")
        await self._withdraw(inviter, name)

"""A client with durable subscriptions by content, and the judge of what these keep.

- With automatic acknowledgement the next reader begins with the first event that the last one did
  not acknowledge: the one that it read last, if its block raised.
- A name has one filter until the subscription is forgotten; entered again it is a new one, without
  events of the old one.
- Where users log in, a name belongs to the first one that enters it, and one has no more than
  `mailboxes_per_user` on a server. An operator changes that limit whenever a server starts again:
  none of those that there are ends by that, and none appears.
- One that had no reader for `mailbox_expire` is refused, until a client accepts the loss.
"""

import asyncio
from contextlib import suppress
from typing import Any

import msgspec

import ensue
from ensue.client.content.dismissal import forget_durable
from ensue.core.errors import (
    BadInput,
    LimitReached,
    SubscriptionRefused,
)
from ensue.server.config import Limits, ServerConfig
from ensue.testing.swarm.content_caller import (
    ANSWER_S,
    ContentCaller,
    Round,
    UndoError,
    undo_if,
)
from ensue.testing.swarm.rare_calls import KEPT, draw_calls
from ensue.testing.swarm.rare_faults import rarely

__all__ = ["DurableCalls", "DurableTerms", "draw_terms"]

MAILBOXES_MAX = 4
"""Durable subscriptions of a user on one server."""
FEWER_MAX = 2
"""The same in every other life of a server."""
EXPIRE_S = 60.0
"""How long they last without a reader: the shortest that servers allow."""
MARGIN_S = 3.0
END_S = 45
"""How long after the end of a run there is time for a round."""
FOUND = "d exists"


class DurableTerms(msgspec.Struct, frozen=True):
    """How servers treat the durable subscriptions of a run."""

    logins: bool = False
    """Whether clients log in: then a user may have few of them."""
    expires: bool = False
    """Whether they end without a reader."""

    def server_options(self) -> dict[str, Any]:
        """Return fields of `ServerConfig`."""
        options: dict[str, Any] = {}
        if self.logins:
            options["limits"] = Limits(mailboxes_per_user=MAILBOXES_MAX)
        if self.expires:
            options["mailbox_expire_s"] = EXPIRE_S
        return options

    def in_life(self, config: ServerConfig, life: int) -> ServerConfig:
        """Return the configuration of a server in its first, second, … life."""
        if not self.logins or life % 2:
            return config
        limits = msgspec.structs.replace(config.limits, mailboxes_per_user=FEWER_MAX)
        return msgspec.structs.replace(config, limits=limits)


def draw_terms(seed: int) -> DurableTerms:
    """Draw the terms of a seed; the usual ones unless it makes calls for them."""
    if KEPT not in draw_calls(seed, "transactions"):
        return DurableTerms()
    logins = rarely("durable terms", 0, seed, "transactions", every=2) is not None
    return DurableTerms(logins=logins, expires=not logins)


class DurableCalls(ContentCaller):
    """A client that enters durable subscriptions again and again."""

    process = "keeper"
    names = ("keeper",)
    generator = "durable calls"
    _terms: DurableTerms
    _reader_url: str
    """Where another user logs in, who may subscribe."""
    _servers: int
    _left: dict[str, None]
    """Names of subscriptions that may be left."""

    def expect(self, terms: DurableTerms, *, reader_url: str, servers: int) -> None:
        """Say how servers treat durable subscriptions."""
        self._terms, self._reader_url, self._servers = terms, reader_url, servers
        self._left = {}

    def rounds(self) -> list[Round]:
        """Return the rounds, which the terms decide."""
        rounds: list[Round] = [self._read_in_turns, self._forget]
        if self._terms.logins:
            rounds += [self._trespass, self._reach_the_limit]
        if self._terms.expires:
            rounds.append(self._expire)
        return rounds

    async def _begin(self, *buses: ensue.Bus) -> None:
        """Forget what earlier rounds have left."""
        (bus,) = buses
        await bus.advertise(where=FOUND)
        for name in [*self._left]:
            with suppress(BadInput):
                await forget_durable(bus, name)
            del self._left[name]

    def _new(self) -> tuple[str, int]:
        """Return a new name, and the number by which its filter finds events."""
        number = next(self._numbers)
        self._left[f"kept-{number}"] = None
        return f"kept-{number}", number

    def _enter(
        self, bus: ensue.Bus, name: str, number: int, *, accept_loss: bool = False
    ) -> ensue.Subscription:
        return bus.subscribe(
            where=f"d = {number}", name=name, durable=True, accept_loss=accept_loss
        )

    async def _publish(self, bus: ensue.Bus, number: int, *payloads: bytes) -> None:
        for each in payloads:
            await bus.publish({"d": number}, each, timeout=ANSWER_S)

    async def _end(self, events: ensue.Subscription, name: str) -> None:
        await events.forget()
        self._left.pop(name, None)

    async def _expect_anew(self, events: ensue.Subscription, payload: bytes) -> None:
        """Check that a subscription begins with an event."""
        event = await self._next(events)
        if (event.payload, event.position) != (payload, 1):
            self._problems.append(
                f"durable: {events.name} was made anew, and got {event.payload!r} as number "
                f"{event.position}"
            )

    # -- Rounds -----------------------------------------------------------------------------------

    async def _read_in_turns(self, bus: ensue.Bus) -> None:
        """Read events in several turns; each begins with the first that was not acknowledged."""
        name, number = self._new()
        payloads, accepts = [b"%d" % each for each in range(8)], self._random.random() < 0.5
        async with self._enter(bus, name, number, accept_loss=accepts):
            pass
        await self._publish(bus, number, *payloads)
        first = 0
        for _ in range(2):
            raises = self._random.random() < 0.5
            with suppress(UndoError):
                async with self._enter(bus, name, number, accept_loss=accepts) as events:
                    got = [await self._next(events) for _ in range(self._random.randint(1, 3))]
                    self._check_pending(events, manual=False, read=len(got))
                    undo_if(raises)
            # The last one counts as handled, unless the block raised.
            first = self._check_turn(name, got, first) - raises
        async with self._enter(bus, name, number, accept_loss=accepts) as events:
            self._check_turn(name, [await self._next(events)], first)
            await self._end(events, name)

    def _check_turn(self, name: str, got: list[ensue.ReceivedEvent], first: int) -> int:
        """Check what one reader got; return what follows."""
        found = [(event.position, int(event.payload)) for event in got]
        begins = found[0][0] - 1
        if found != [(begins + each + 1, begins + each) for each in range(len(found))]:
            # A server that was away did not know the subscription: it missed first events.
            is_late = not self._settled and self._servers > 1 and found == sorted({*found})
            positions = [position for position, _ in found]
            if not is_late or positions != [*range(begins + 1, begins + len(found) + 1)]:
                self._problems.append(f"durable: a reader of {name} got {found}")
        # An acknowledgement in the background may be lost, but never runs ahead.
        if begins > first or (self._settled and begins != first):
            self._problems.append(f"durable: a reader of {name} begins at {begins}, not {first}")
        return begins + len(found)

    async def _forget(self, bus: ensue.Bus) -> None:
        """Enter a name with another filter, before and after it is forgotten."""
        name, number = self._new()
        other = next(self._numbers)
        async with self._enter(bus, name, number) as events:
            await self._publish(bus, number, b"old")
            await self._expect(events, b"old")
            await self._publish(bus, number, b"older")
        await self._refuse(bus, name, other, "has the filter")
        async with self._enter(bus, name, number) as events:
            await self._end(events, name)
        for again in (other, number):
            self._left[name] = None
            async with self._enter(bus, name, again) as events:
                await self._publish(bus, again, b"new")
                await self._expect_anew(events, b"new")
                await self._end(events, name)

    async def _refuse(self, bus: ensue.Bus, name: str, number: int, why: str) -> None:
        """Check that a subscription is refused."""
        try:
            async with self._enter(bus, name, number):
                self._problems.append(f"durable: {name} was entered, although it {why}")
        except SubscriptionRefused as error:
            if why not in str(error):
                self._problems.append(f"durable: {name} {why}, and is refused as {error}")

    async def _trespass(self, bus: ensue.Bus) -> None:
        """Have another user enter the same name."""
        name, number = self._new()
        async with (
            self._enter(bus, name, number) as events,
            ensue.connect(self._reader_url, order=None, name="reader") as other,
        ):
            await self._publish(bus, number, b"mine")
            await self._refuse(other, name, number, "belongs to another user")
            try:
                await forget_durable(other, name)
            except BadInput as error:
                if "belongs to another user" not in str(error):
                    self._problems.append(f"durable: {error}")
            else:
                self._problems.append(f"durable: another user could forget {name}")
            await self._expect(events, b"mine")
            await self._end(events, name)

    async def _reach_the_limit(self, bus: ensue.Bus) -> None:
        """Make more than one server keeps, and forget them all."""
        made: list[tuple[str, int]] = []
        try:
            for _ in range(MAILBOXES_MAX * self._servers + 1):
                made.append(self._new())
                async with self._enter(bus, *made[-1]):
                    pass
        except LimitReached as error:
            self._left.pop(made.pop()[0])
            if error.limit != "mailboxes_per_user" or error.value not in (MAILBOXES_MAX, FEWER_MAX):
                self._problems.append(f"durable: the limit is {error}")
        else:
            self._problems.append(f"durable: a user has {len(made)} on {self._servers} servers")
        for name, number in made:
            async with self._enter(bus, name, number) as events:
                await self._end(events, name)

    async def _expire(self, bus: ensue.Bus) -> None:
        """Come back too late, once faults are over."""
        if not self._settled:
            await self._read_in_turns(bus)
            return
        name, number = self._new()
        for payload in (b"early", b"in time"):
            async with self._enter(bus, name, number) as events:
                await self._publish(bus, number, payload)
                await self._expect(events, payload)
            await asyncio.sleep(1.0)
        await self._publish(bus, number, b"unread")
        if not await self._stay_away():
            return
        await self._refuse(bus, name, number, "has expired")
        async with self._enter(bus, name, number, accept_loss=True) as events:
            await self._publish(bus, number, b"new")
            await self._expect_anew(events, b"new")
            await self._end(events, name)

    async def _stay_away(self) -> bool:
        """Wait until subscriptions expire; return whether the run lasts so long."""
        over_s = 0
        for _ in range(int(EXPIRE_S + MARGIN_S)):
            await asyncio.sleep(1.0)
            over_s += self._phase.over
            if over_s > END_S:
                return False
        return True

"""The status of a chain: ask every server, and merge the answers.

A server that does not answer is part of the result, with its error: operators look for it first.

Merging adds up the lag of a durable subscription whose topics are on several servers: no single
server knows it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec

from ensue import orders
from ensue.core import platform
from ensue.core.errors import AccessDenied, BadInput, RemoteProtocolError, TransportError
from ensue.core.wire import Codec
from ensue.protocols.interface import Frame
from ensue.protocols.topic_log.frames import topic_of
from ensue.protocols.total.placement import Parts, Placement
from ensue.protocols.total.station import EPHEMERAL
from ensue.protocols.total.status import TOPICS_MAX, StatusReply, StatusRequest
from ensue.runtime.hub_remote import discover
from ensue.runtime.request import request
from ensue.transports.carrier import Carrier
from ensue.transports.framed import FramedTransport
from ensue.transports.memory import MemoryOptions
from ensue.transports.schemes import SERVED, BrokerOptions, parse_url
from ensue.transports.tcp.carrier import TcpCarrier
from ensue.transports.tcp.messages import Member
from ensue.transports.tcp.options import TcpOptions, parse_address, write_address
from ensue.transports.url_options import hide

__all__ = ["ANSWER_S", "chain_status"]

ANSWER_S = 5.0
"""How long a server may take to answer."""
AGAIN_S = 0.5

Json = dict[str, Any]
Failure = (TransportError, AccessDenied, RemoteProtocolError, OSError, TimeoutError)
Bounds = Mapping[str, tuple[int, int]]


async def chain_status(url: str, *, answer_s: float = ANSWER_S) -> Json:
    """Return the status of the chain at a URL; raise if no server lists its members."""
    options = parse_url(url, expected=SERVED)
    if isinstance(options, MemoryOptions):
        raise BadInput(f"{url} is within one process; expected ensue://HOST:PORT or a broker")
    async with AsyncExitStack() as stack:
        if isinstance(options, TcpOptions):
            chain = await _servers(options, stack, answer_s)
        else:
            chain = await _stations(options, stack, answer_s)
        states = await chain.ask_all()
        place = hide(url).partition("?")[0]
        try:
            bounds = await chain.ask_bounds(states)
            return chain.merged(place, states, bounds)
        except (KeyError, TypeError, AttributeError) as error:
            raise RemoteProtocolError(
                f"the status of a server of {place} can't be read ({error!r}): check that it has "
                "this version"
            ) from None


class _StatusClient:
    """A client that sends status requests to stations, under its own name."""

    def __init__(self, transport: FramedTransport, answer_s: float) -> None:
        self.transport = transport
        self._answer_s = answer_s
        self._name = f"status{EPHEMERAL}{platform.current().token_hex(6)}"
        self._number = 0
        self._waiting: dict[int, asyncio.Future[StatusReply]] = {}

    async def enter(self) -> None:
        """Enter the name."""
        await self.transport.enter(self._name)
        self._port = self.transport.open(self._name, self._receive)

    async def ask(self, station: str, topics: Sequence[str] = ()) -> StatusReply:
        """Ask one station; retransmit until the timeout."""
        self._number += 1
        question = StatusRequest(number=self._number, topics=tuple(topics))
        answer: asyncio.Future[StatusReply] = asyncio.get_running_loop().create_future()
        self._waiting[question.number] = answer
        if not await request(
            self._port,
            lambda: [(station, question)],
            answer,
            every_s=AGAIN_S,
            within_s=self._answer_s,
        ):
            raise TransportError(f"no answer within {self._answer_s:g} s")
        return answer.result()

    def _receive(self, frames: Sequence[Frame], _source: str) -> None:
        for frame in frames:
            if isinstance(frame, StatusReply):
                answer = self._waiting.get(frame.number)
                if answer is not None and not answer.done():
                    answer.set_result(frame)


class _Chain:
    """The servers of a chain, and the client that asks each of them."""

    def __init__(
        self,
        members: Sequence[Member],
        *,
        closed: bool,
        moves: Mapping[str, Parts] | None = None,
    ) -> None:
        self.members = members
        self.placement = Placement(
            [member.name for member in members],
            topics={member.name: member.topics for member in members},
            closed=closed,
        )
        for topic, parts in (moves or {}).items():
            self.placement.learn(topic, parts)
        self.askers: dict[str, _StatusClient] = {}
        self.errors: dict[str, str] = {}
        """Why a server could not be asked."""

    async def ask_all(self) -> dict[str, Json]:
        """Return the state of each server that answers; note the errors of the others."""
        names = [member.name for member in self.members if member.name in self.askers]
        answers = await asyncio.gather(
            *(self.askers[name].ask(name) for name in names), return_exceptions=True
        )
        states: dict[str, Json] = {}
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, StatusReply):
                states[name] = _read(answer.state)
            elif isinstance(answer, Failure):
                self.errors[name] = str(answer)
            else:
                raise answer
        return states

    async def ask_bounds(self, states: Mapping[str, Json]) -> Bounds:
        """Return the bounds of topics that are not on the node of their state store."""
        wanted: dict[str, dict[str, None]] = {}
        for state in states.values():
            for one in state["subscriptions"]:
                for topic in one.get("elsewhere", ()):
                    if self.placement.knows(topic):
                        wanted.setdefault(self.placement.node(topic), {})[topic] = None
        asked = [name for name in wanted if name in states]
        answers = await asyncio.gather(
            *(self.askers[name].ask(name, list(wanted[name])[:TOPICS_MAX]) for name in asked),
            return_exceptions=True,
        )
        bounds: dict[str, tuple[int, int]] = {}
        for answer in answers:
            if isinstance(answer, StatusReply):
                bounds |= answer.bounds
            elif not isinstance(answer, Failure):
                raise answer
        return bounds

    def merged(self, url: str, states: Mapping[str, Json], bounds: Bounds) -> Json:
        """Merge the states of all servers."""
        servers: list[Json] = []
        for rank, member in enumerate(self.members, 1):
            state = states.get(member.name)
            if state is None:
                error = self.errors.get(member.name, "not asked")
                servers.append(
                    {"server": member.name, "rank": rank, "address": member.address, "error": error}
                )
            else:
                apart = (
                    "topics",
                    "topics_count",
                    "subscriptions",
                    "subscriptions_count",
                    "mailboxes",
                    "mailboxes_count",
                    "relayed_orders",
                )
                servers.append({key: each for key, each in state.items() if key not in apart})
        whole = [state for state in states.values() if state["everything"]]
        subscriptions = _subscriptions(states.values(), bounds)
        found: Json = {
            "url": url,
            "complete": not self.errors,
            "everything": len(whole) == len(states),
            "servers": servers,
            "topics_count": sum(state["topics_count"] for state in states.values()),
            "topics": [
                {**topic, "server": state["server"]}
                for state in states.values()
                for topic in state["topics"]
            ],
            "subscriptions_count": max(
                (state["subscriptions_count"] for state in states.values()), default=0
            ),
            "subscriptions": subscriptions,
            "mailboxes_count": sum(state["mailboxes_count"] for state in states.values()),
            "mailboxes": sorted(
                (one for state in states.values() for one in state["mailboxes"]),
                key=lambda one: (str(one["name"]), str(one["server"])),
            ),
        }
        found["subscriptions_count"] = max(found["subscriptions_count"], len(subscriptions))
        if whole:
            found |= _sums(whole)
        return found


async def _servers(options: TcpOptions, stack: AsyncExitStack, answer_s: float) -> _Chain:
    """Connect to each server of a chain."""
    first = TcpCarrier(options, client="status")
    stack.push_async_callback(first.close)
    own = write_address(options.host, options.port)
    async with _in_time(own, answer_s):
        welcome = await first.start_one()
    members = [Member(each.name, each.address or own, each.topics) for each in welcome.chain]
    chain = _Chain(members, closed=welcome.closed, moves=welcome.moves)

    async def reach(member: Member) -> None:
        carrier = first
        try:
            if member.name != welcome.server:
                host, port = parse_address(member.address, what="a server's address")
                carrier = TcpCarrier(
                    msgspec.structs.replace(options, host=host, port=port), client="status"
                )
                stack.push_async_callback(carrier.close)
                async with asyncio.timeout(answer_s):
                    there = await carrier.start_one()
                if there.server != member.name:
                    raise TransportError(f"at {member.address} is {there.server!r}")
            chain.askers[member.name] = await _asker(carrier, answer_s)
        except Failure as error:
            chain.errors[member.name] = str(error) or f"no answer within {answer_s:g} s"

    await asyncio.gather(*(reach(member) for member in members))
    return chain


async def _stations(options: BrokerOptions, stack: AsyncExitStack, answer_s: float) -> _Chain:
    """Find the stations on a broker."""
    carrier = options.make()
    stack.push_async_callback(carrier.close)
    async with _in_time(options.url, answer_s):
        await carrier.start()
        asker = await _asker(carrier, answer_s)
    described = await discover(asker.transport, options.url, within_s=answer_s)
    members = [Member(name, "", topics) for name, topics in described.nodes]
    chain = _Chain(members, closed=described.closed, moves=described.moves)
    chain.askers = dict.fromkeys((member.name for member in members), asker)
    return chain


@asynccontextmanager
async def _in_time(where: str, answer_s: float) -> AsyncIterator[None]:
    """Raise `TransportError` if the block takes too long."""
    try:
        async with asyncio.timeout(answer_s):
            yield
    except TimeoutError:
        raise TransportError(f"no answer from {where} within {answer_s:g} s") from None


async def _asker(carrier: Carrier, answer_s: float) -> _StatusClient:
    asker = _StatusClient(
        FramedTransport(carrier, Codec(orders.wire_frames()), home=_nowhere, topic_of=topic_of),
        answer_s,
    )
    async with asyncio.timeout(answer_s):
        await asker.enter()
    return asker


def _read(state: bytes) -> Json:
    try:
        found: Json = msgspec.json.decode(state, type=Json)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"the status of a server can't be read: {error}") from None
    return found


def _subscriptions(states: Iterable[Json], bounds: Bounds) -> list[Json]:
    """Merge the subscriptions of all servers: one of them has the position."""
    found: dict[str, Json] = {}
    for state in states:
        for known_here in state["subscriptions"]:
            one = dict(known_here)
            _add_up(one, bounds)
            known = found.setdefault(one["name"], one)
            if known is one:
                continue
            heard = [each["heard_s"] for each in (known, one) if each["heard_s"] is not None]
            if known["position"] is None:
                known |= {key: one[key] for key in ("position", "lag", "lag_is_least")}
            if one["topics_count"] > known["topics_count"]:
                known |= {key: one[key] for key in ("topics", "topics_count")}
            known["heard_s"] = min(heard, default=None)
    return sorted(found.values(), key=lambda each: (-(each["lag"] or 0), each["name"]))


def _add_up(one: Json, bounds: Bounds) -> None:
    """Add the lag of topics at other servers."""
    least = bool(one.get("lag_is_least"))
    for topic, slot in one.pop("elsewhere", {}).items():
        if topic in bounds:
            first, following = bounds[topic]
            one["lag"] += max(0, following - max(first, slot + 1))
        else:
            least = True
    one["lag_is_least"] = least


def _sums(states: Sequence[Json]) -> Json:
    """Add up the totals of servers."""
    groups = [state["groups"] for state in states]
    together = sum(each["topics"] for each in groups)
    pairs = sum((each["mean"] - 1) * each["topics"] for each in groups)
    errors: dict[str, int] = {}
    for state in states:
        for kind, count in state["errors"].items():
            errors[kind] = errors.get(kind, 0) + count
    return {
        "groups": {
            "topics": together,
            "largest": max(each["largest"] for each in groups),
            "mean": 1 + pairs / together if together else 1.0,
            "merged_by": _merges(groups),
        },
        "moves": [state["move"] for state in states if state["move"]],
        "holding": {state["server"]: state["holds_for"] for state in states if state["holds_for"]},
        "open_stamps": sum(state["open_stamps"] for state in states),
        "early_requests": sum(state["early_requests"] for state in states),
        "connections": sum(state["connections"] or 0 for state in states),
        "relayed_orders": [
            {**relayed, "server": state["server"]}
            for state in states
            for relayed in state["relayed_orders"]
        ],
        "errors": errors,
    }


def _merges(groups: Sequence[Json]) -> list[Json]:
    """Return each subscription that merges all groups of a server, once."""
    found: dict[str, Json] = {}
    for each in (one for state in groups for one in state.get("merged_by", ())):
        known = found.get(each["name"])
        if known is None or known["groups"] < each["groups"]:
            found[each["name"]] = each
    return sorted(found.values(), key=lambda each: (-each["topics"], each["name"]))


def _nowhere(topic: str) -> str:
    raise AssertionError(f"status has no home for {topic!r}")

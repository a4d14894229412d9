"""What clients that left may not leave behind, in their own process and at servers.

After a run all clients have ended. A process that ended by itself has closed its buses: no task,
timer, connection or asynchronous generator of it may be left. Servers keep nothing of any client,
but for its durable subscriptions, once it has expired (`expire`): no connection, name, place,
subscription, open lease, membership, attachment or content session. They keep the session of a
publisher that was killed, had no time to close or closed while the server was away, with the
outcomes of its requests, and none of another one. So publishers close when all servers are back.

Before that, when no transaction is open any more, no content session keeps events of a subscription
that its bus does not read: they were for a plan that is over, or came after the subscription ended.
"""

import asyncio
from collections.abc import Iterable, Iterator

from ensue import Bus
from ensue.client.content.session import _Buffer
from ensue.protocols.total.station import EPHEMERAL
from ensue.runtime.hub_memory import CLOSE_TIMEOUT_S
from ensue.server import Server
from ensue.server.listener import Listener
from ensue.server.station_server import StationServer
from ensue.testing.cluster import Cluster
from ensue.testing.network import NetworkOptions
from ensue.testing.process import Process

__all__ = ["judge_buffers", "judge_leaks"]

HASTY = ("closer", "guest", "leaver", "outsider")
"""Clients that wait for servers no longer than a second or two when they close.

If no server answers by then, its registry has the bus until it expires.
"""
MILLISECONDS = 1_000
QUEUED_BYTES = 200_000
"""So much may wait in the queue of a link when a bus closes."""
END_S = 2.0
"""How soon after all clients have ended nothing of their processes is left."""
LEAVE_S = 80.0
"""How soon servers have forgotten clients: after `expire`, a sweep, and a margin."""


async def judge_leaks(
    cluster: Cluster,
    clients: Iterable[Process],
    closed: Iterable[str] = (),
    *,
    hasty: tuple[str, ...] = HASTY,
    forgotten: tuple[str, ...] = (),
    refused: bool = False,
) -> list[str]:
    """Wait, and return what clients left behind, if all have ended.

    `hasty` are how the names of clients begin that may close while a server is away; `closed` are
    buses of theirs that were closed when all servers were back; `forgotten` are names of durable
    subscriptions that have no topics at any server. Where a server refuses its log (`refused`), the
    others keep the sessions of publishers whose events wait for it.
    """
    clients = list(clients)
    if any(each.alive for each in clients):
        return []
    await asyncio.sleep(END_S)
    ended = [each for each in clients if each.task.done() and not each.killed]
    found = [f"leak: {each.name} has {what}" for each in ended for what in _in_process(each)]
    # The last bus of each: earlier ones may have been closed while a server was away.
    settled = [each for each in ended if each.error() is None and not each.name.startswith(hasty)]
    if _outlasts_closing(cluster.world.network.options):
        settled = []
    left = [*(each.last_bus for each in settled if each.last_bus), *closed]
    for name, server in cluster.servers.items():
        # Stations on a broker may miss that a client leaves: they forget clients that are silent.
        if cluster.processes[name].alive and isinstance(server, Server):
            for registry in server._registries:  # noqa: SLF001 - no API lists them
                known = registry.node._present  # noqa: SLF001 - as above
                found += [f"leak: {name} has the member {each}" for each in left if each in known]
    waited = [] if refused else left
    await asyncio.sleep(LEAVE_S)
    for name, server in cluster.servers.items():
        process = cluster.processes[name]
        if not process.alive or process.stopped:
            continue
        if isinstance(server, Server):
            if server.listener is None:
                continue
            found += [f"leak: {name} has {what}" for what in _connected(server.listener)]
        found += [f"leak: {name} has {what}" for what in _kept(server, waited, forgotten)]
    return found


def _outlasts_closing(network: NetworkOptions) -> bool:
    """Return whether a bus may give up closing before a server has its farewell.

    The bus may have to connect again for it, or the farewell queues behind other messages.
    """
    if network.accept_ms[1] > CLOSE_TIMEOUT_S * MILLISECONDS:
        return True
    return network.queues and network.bytes_per_s < QUEUED_BYTES / CLOSE_TIMEOUT_S


def judge_buffers(buses: Iterable[Bus]) -> list[str]:
    """Return the subscriptions whose events are kept for no reader, once all is settled."""
    sessions = [bus._content._session for bus in buses]  # noqa: SLF001 - no API lists them
    return [
        f"leak: {session.bus} keeps events of {name}, which it does not read"
        for session in sessions
        if session is not None
        for name, reader in session._readers.items()  # noqa: SLF001 - as above
        if isinstance(reader, _Buffer)
    ]


def _in_process(process: Process) -> Iterator[str]:
    loop = process.loop
    yield from (f"a task that {each}" for each in process.waits())
    yield from (f"a timer: {each}" for each in loop.timers()[:1])
    if connections := process.network.connections(process.host):
        yield f"{connections} connections"
    for each in sorted(loop.generators, key=lambda generator: generator.__qualname__):
        if each.ag_frame is not None:
            yield f"an asynchronous generator: {each.__qualname__}"


def _connected(listener: Listener) -> Iterator[str]:
    # One that is being closed waits for its network to take what was written.
    closing = sum(each.closing for each in listener.connections)
    own = [each for each in listener.connections if not each.station and not each.closing]
    if own:
        yield f"{len(own)} connections of clients"
    stray = [name for name, owner in listener.routes.items() if not owner.station]
    if stray:
        yield f"names of clients: {', '.join(stray[:3])}"
    admission = listener.admission
    places = len(admission._clients) + admission.waiting  # noqa: SLF001 - no API counts them
    if places > closing:
        yield f"{places - closing} places of clients"


def _kept(server: StationServer, left: list[str], forgotten: tuple[str, ...]) -> Iterator[str]:
    for kind, names in _memory(server):
        yield from (f"{kind} {name}" for name in names if EPHEMERAL in name)
    if server.station is not None:
        node = server.station.node
        # The number of its last change may stay: the farewell of a durable name is sent once.
        stray = [name for name, (_, topics) in node.subscribers().items() if topics]
        yield from (f"the subscriber {name}" for name in stray if name in forgotten)
        if open_leases := node.leases.open_count():
            yield f"{open_leases} open leases"
        known = node.sessions.by_name
        yield from (f"the publisher session {name}" for name in left if name in known)


def _memory(server: StationServer) -> Iterator[tuple[str, list[str]]]:
    """Yield what a server remembers of clients, by kind."""
    station = server.station
    if station is not None:
        yield "the subscriber", list(station.node.subscribers())
        attached = station.log.listeners().values()
        yield "the attachment", [name for names in attached for name in names]
    for registry in server._registries:  # noqa: SLF001 - as above
        yield "the member", list(registry.node._present)  # noqa: SLF001 - as above
    if isinstance(server, Server) and server.content is not None:
        state = server.content.broker.state
        yield "the content session", [*state.clients, *state.members, *state.disconnected]
    for fanout in server._fanouts:  # noqa: SLF001 - as above
        yield "the listener", list(fanout.node._topics)  # noqa: SLF001 - as above
        yield "the party", list(fanout.node._parties)  # noqa: SLF001 - as above

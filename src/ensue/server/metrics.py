"""Metrics of a server, as OpenMetrics (1.0.0) or Prometheus text (0.0.4).

Control characters in label values, such as topics, are escaped, because the reader may be a
terminal. Counters start at 0 with the server. Every list is bounded: the help of each family says
which topics and subscriptions it lists by name.
"""

import asyncio
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nlargest
from typing import TYPE_CHECKING, Literal

from ensue.core import platform
from ensue.protocols.causal.hypercube import NODES_MAX

if TYPE_CHECKING:
    from ensue.protocols.total.sequencer import Sequencer
    from ensue.server.status import Status

__all__ = [
    "CONTENT_TYPE",
    "PLAIN_CONTENT_TYPE",
    "Exposition",
    "Histogram",
    "LoopLag",
    "Metrics",
    "TopicCounts",
]

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PLAIN_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TOPICS_MAX = 100
"""Topics with their own series."""
SUBSCRIPTIONS_MAX = 200
"""Durable subscriptions with their own series."""
LAG_EVERY_S = 0.25
LAG_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

Labels = Mapping[str, str]


class Histogram:
    """Counts of durations, by bucket."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        assert list(bounds) == sorted(set(bounds))
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        """By bucket: values up to its bound and beyond the previous one; the last is beyond all."""
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Exposition:
    """The text of metric families: OpenMetrics, or Prometheus text (`plain`)."""

    def __init__(self, *, plain: bool = False) -> None:
        self._lines: list[str] = []
        self._plain = plain

    def counter(self, name: str, text: str, value: float) -> None:
        """Add a counter without labels."""
        assert name.endswith("_total"), name
        self._family(name, text, "counter")
        self._sample(name, {}, value)

    def counters(self, name: str, text: str, values: Iterable[tuple[Labels, float]]) -> None:
        """Add a counter with labels."""
        assert name.endswith("_total"), name
        self._family(name, text, "counter")
        for labels, value in values:
            self._sample(name, labels, value)

    def info(self, name: str, text: str, labels: Labels) -> None:
        """Add constant facts, as labels of the value 1."""
        assert name.endswith("_info"), name
        self._family(name, text, "info")
        self._sample(name, labels, 1)

    def gauge(self, name: str, text: str, value: float) -> None:
        """Add a gauge without labels."""
        self.gauges(name, text, [({}, value)])

    def gauges(self, name: str, text: str, values: Iterable[tuple[Labels, float]]) -> None:
        """Add a gauge with labels."""
        assert not name.endswith("_total"), name
        self._family(name, text, "gauge")
        for labels, value in values:
            self._sample(name, labels, value)

    def histogram(self, name: str, text: str, histogram: Histogram) -> None:
        """Add a histogram."""
        self._family(name, text, "histogram")
        count = 0
        for bound, more in zip((*histogram.bounds, None), histogram.counts, strict=True):
            count += more
            le = "+Inf" if bound is None else f"{bound:g}" if self._plain else repr(float(bound))
            self._sample(f"{name}_bucket", {"le": le}, count)
        self._sample(f"{name}_sum", {}, histogram.sum)
        self._sample(f"{name}_count", {}, count)

    def text(self) -> str:
        """Return the text of all families."""
        return "\n".join((*self._lines, "") if self._plain else (*self._lines, "# EOF", ""))

    def _family(
        self, name: str, text: str, kind: Literal["counter", "gauge", "histogram", "info"]
    ) -> None:
        escaped = text.replace("\\", r"\\").replace("\n", r"\n")
        if self._plain:
            kind = "gauge" if kind == "info" else kind
        else:
            # In OpenMetrics the suffix is not part of a family's name.
            name = name.removesuffix({"counter": "_total", "info": "_info"}.get(kind, ""))
            escaped = escaped.replace('"', r"\"")
        self._lines += (f"# HELP {name} {escaped}", f"# TYPE {name} {kind}")

    def _sample(self, name: str, labels: Labels, value: float) -> None:
        given = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        self._lines.append(f"{name}{{{given}}} {value!r}" if given else f"{name} {value!r}")


_CONTROL = "\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069"
"""Terminal control and bidirectional characters; the format itself escapes newlines."""
_UNSAFE = re.compile(rf"[{_CONTROL}]|\\[xu\\]")


def _escaped(text: str) -> str:
    """Escape a label's value: safe on a terminal, and distinct for distinct values."""
    if _UNSAFE.search(text):
        text = re.sub(rf"[{_CONTROL}]", _code, text.replace("\\", r"\\"))
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _code(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class TopicCounts:
    """Counts of events by topic, for a bounded number of topics.

    The `topics_max` topics with the most events ever have their own series; all others are counted
    together, with the empty name. A topic that enters the list starts a series at 0, and one that
    leaves it loses its series. So no series ever decreases, and every event is counted once.
    """

    def __init__(self, stage: "Sequencer", *, topics_max: int = TOPICS_MAX) -> None:
        self._stage = stage
        self._topics_max = topics_max
        self._tick, _ = stage.counted_since(0)
        self._counts = stage.counts()
        """Counts at the last call of `update`."""
        self._named: dict[str, int] = {}
        self._others = 0

    def update(self) -> dict[str, int]:
        """Return the counts by topic; the empty name stands for all others."""
        self._tick, changed = self._stage.counted_since(self._tick)
        new = {topic: count - self._counts.get(topic, 0) for topic, count in changed.items()}
        self._counts |= changed
        rivals = [topic for topic in changed if topic not in self._named]
        if rivals:
            first = nlargest(
                self._topics_max,
                (*self._named, *rivals),
                key=lambda topic: (self._counts[topic], topic),
            )
            self._named = {topic: self._named.get(topic, 0) for topic in first}
        for topic, more in new.items():
            if topic in self._named:
                self._named[topic] += more
            else:
                self._others += more
        return {**self._named, "": self._others}


class LoopLag:
    """A histogram of how late the event loop runs timers."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.seconds = Histogram(LAG_BUCKETS_S)
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None
        self._arm()

    def stop(self) -> None:
        """Stop measuring."""
        if self._handle is not None:
            self._handle.cancel()

    def _arm(self) -> None:
        due_s = self._loop.time() + LAG_EVERY_S
        self._handle = self._loop.call_at(due_s, self._sample, due_s)

    def _sample(self, due_s: float) -> None:
        self.seconds.observe(max(0.0, self._loop.time() - due_s))
        self._arm()


class Metrics:
    """All metrics of one server."""

    def __init__(self, status: "Status", loop: asyncio.AbstractEventLoop) -> None:
        self._status = status
        self._topics = TopicCounts(status.station.node)
        self.lag = LoopLag(loop)

    def stop(self) -> None:
        """Stop measuring."""
        self.lag.stop()

    def text(self, *, plain: bool = False) -> str:
        """Return the text of all families."""
        out = Exposition(plain=plain)
        parts: tuple[Callable[[Exposition], None], ...] = (
            self._server,
            self._events,
            self._subscribers,
            self._relayed_orders,
            self._traffic,
            self._journal,
            self._process,
        )
        for part in parts:
            part(out)
        return out.text()

    def _server(self, out: Exposition) -> None:
        status = self._status
        state = {"server": status.config.name, "version": status.version}
        out.info("ensue_server_info", "Name and version of the server; always 1.", state)
        out.gauge(
            "ensue_uptime_seconds", "Time since the server started.", round(status.uptime_s, 3)
        )
        out.gauge(
            "ensue_healthy",
            "1 if events are accepted, as /healthz reports.",
            int(not status.unhealthy_reason()),
        )

    def _events(self, out: Exposition) -> None:
        status = self._status
        node, traffic = status.station.node, status.traffic
        out.counter("ensue_events_total", "Events published, voids included.", status.events)
        out.counters(
            "ensue_topic_events_total",
            f"Events by topic: the {TOPICS_MAX} topics with the most events ever by name, "
            'all others together as topic="".',
            [({"topic": topic}, count) for topic, count in self._topics.update().items()],
        )
        out.gauge("ensue_topics", "Topics with events.", status.journal.topic_count)
        out.counter(
            "ensue_requested_events_total",
            "Events in publishers' requests, repeated requests included.",
            traffic.requested_events,
        )
        out.counter(
            "ensue_requested_payload_bytes_total",
            "Payload bytes of requested events.",
            traffic.requested_bytes,
        )
        out.gauge("ensue_open_stamps", "Stamps whose events are not confirmed.", node.open_count)
        out.counter("ensue_voids_total", "Stamps that were voided.", node.voids)
        out.gauge(
            "ensue_early_requests",
            "Requests that wait for an earlier request of their publisher.",
            node.early_count,
        )
        together, largest = node.groups.sizes()
        mean = 1 + node.groups.pairs / together if together else 1.0
        out.gauge("ensue_grouped_topics", "Topics that are ordered together with others.", together)
        out.gauge("ensue_group_topics_max", "Topics of the largest group.", largest)
        out.gauge("ensue_group_topics_mean", "Topics of a group, on average.", mean)

    def _subscribers(self, out: Exposition) -> None:
        status = self._status
        progress = status.progress()
        out.gauge(
            "ensue_subscribers",
            "Subscriptions registered at this server.",
            len(status.station.node.groups.subscriptions),
        )
        out.gauge(
            "ensue_listeners",
            "Listeners of topics, counted once for each topic.",
            status.listeners(),
        )
        out.counter(
            "ensue_expired_subscribers_total",
            "Unnamed subscriptions that expired without their client.",
            status.station.expiries,
        )
        out.gauge(
            "ensue_durable_subscriptions",
            "Durable subscriptions whose progress this server keeps.",
            len(progress) + status.unmeasured,
        )
        named = progress[:SUBSCRIPTIONS_MAX]
        most = f"the {SUBSCRIPTIONS_MAX} furthest behind"
        out.gauges(
            "ensue_subscription_position_events",
            f"Events that a durable subscription has handled: {most}.",
            [({"subscription": each.name}, each.position) for each in named],
        )
        out.gauges(
            "ensue_subscription_lag_events",
            "Events that a durable subscription has not handled, of topics of this server: "
            f"{most}.",
            [({"subscription": each.name}, each.lag) for each in named],
        )
        out.gauge(
            "ensue_lag_events",
            "Lag of all durable subscriptions.",
            sum(each.lag for each in progress),
        )

    def _relayed_orders(self, out: Exposition) -> None:
        relayed = self._status.relayed_orders
        registries, fanouts = relayed.registries, relayed.fanouts
        members = {order: len(each.present) for order, each in registries.items()}
        members |= {order: len(each.members) for order, each in fanouts.items()}
        out.gauges(
            "ensue_relayed_order_members",
            "Registered or listening clients of relayed orders, by order.",
            [({"order": order}, count) for order, count in members.items()],
        )
        out.gauges(
            "ensue_relayed_order_numbers",
            f"Numbers assigned since an order last had no members, of {NODES_MAX}.",
            [({"order": order}, len(each.names)) for order, each in registries.items()],
        )
        out.counters(
            "ensue_relayed_order_events_total",
            "Events fanned out to listeners and not stored.",
            [({"order": order}, each.passed_on) for order, each in fanouts.items()],
        )
        if self._status.listener is not None:
            out.counters(
                "ensue_relayed_frames_total",
                "Frames relayed between clients, by kind.",
                [
                    ({"kind": kind}, count)
                    for kind, count in sorted(self._status.listener.relayed.items())
                ],
            )

    def _traffic(self, out: Exposition) -> None:
        status = self._status
        traffic, listener = status.traffic, status.listener
        if listener is not None:
            out.gauge("ensue_connections", "Open connections.", len(listener.connections))
            out.gauge(
                "ensue_unauthenticated_connections",
                "Connections without hello.",
                listener.admission.waiting,
            )
            out.counter(
                "ensue_connections_opened_total", "Connections accepted.", listener.accepted
            )
            out.gauge("ensue_names", "Names of connected clients.", len(listener.routes))
        out.counters(
            "ensue_frames_in_total",
            "Frames received and admitted, by kind.",
            [({"kind": kind}, count) for kind, count in sorted(traffic.kinds_in.items())],
        )
        out.counter("ensue_bytes_in_total", "Bytes of received bundles.", traffic.bytes_in)
        out.counter("ensue_frames_out_total", "Frames sent.", traffic.frames_out)
        out.counter("ensue_bytes_out_total", "Bytes of sent bundles.", traffic.bytes_out)
        out.counters(
            "ensue_refusals_total",
            "Rejected requests and frames, by kind of fault.",
            [({"kind": kind}, count) for kind, count in sorted(status.errors.items())],
        )
        out.counters(
            "ensue_messages_dropped_total",
            "Messages dropped: the receiver was too slow, disconnected, or not registered.",
            [({"reason": reason}, count) for reason, count in status.dropped.items()],
        )

    def _journal(self, out: Exposition) -> None:
        status = self._status
        journal, commit = status.journal, status.commit
        out.counter("ensue_journal_batches_total", "Batches written.", status.journal_batches)
        out.counter("ensue_journal_written_bytes_total", "Bytes written.", status.journal_bytes)
        out.counter("ensue_journal_syncs_total", "Completed syncs.", commit.syncs)
        out.gauge("ensue_journal_bytes", "Bytes on disk.", journal.size_bytes)
        out.gauge("ensue_journal_segments", "Segments on disk.", journal.segment_count)
        out.gauge(
            "ensue_journal_waiting_batches", "Batches that are not persisted.", commit.waiting
        )
        out.gauge(
            "ensue_journal_failed",
            "1 if the journal has failed.",
            int(commit.failed),
        )
        out.histogram("ensue_journal_sync_seconds", "Duration of syncs.", commit.sync_seconds)

    def _process(self, out: Exposition) -> None:
        out.histogram(
            "ensue_event_loop_lag_seconds",
            f"Lateness of the event loop, sampled every {LAG_EVERY_S:g} s.",
            self.lag.seconds,
        )
        used = platform.current().usage()
        out.counter("ensue_process_cpu_seconds_total", "User and system time.", used.cpu_s)
        out.gauge(
            "ensue_process_resident_memory_bytes",
            "Memory that is not swapped.",
            used.resident_bytes,
        )

"""The command `sub`: print events as they arrive."""

import asyncio
import base64
import contextlib
import re
import signal
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import typer

from ensue import Bus, ReceivedEvent, Subscription
from ensue.cli import output
from ensue.cli.order_options import (
    NO_OPTIONS,
    OrderOption,
    OrderOptions,
    WhereOption,
    check_content,
    check_kept,
    chosen_order,
)
from ensue.cli.pub import UrlOption, WaitOption, connect_with_retry
from ensue.cli.stdio import Output, as_bytes
from ensue.client.validation import PENDING_MAX, Start, check_topics
from ensue.core.errors import BadInput
from ensue.core.order import Order
from ensue.protocols.content.filters.parser import parse

__all__ = ["formatter", "sub"]

UNLIMITED = 0
"""No limit on the number of events."""

_FIELDS: dict[str, Callable[[ReceivedEvent], bytes]] = {
    "payload": lambda event: event.payload,
    "topic": lambda event: event.topic.encode(),
    "key": lambda event: event.key or b"",
    "headers": lambda event: msgspec.json.encode(dict(event.headers)),
    "attributes": lambda event: msgspec.json.encode(event.attributes),
    "position": lambda event: str(event.position).encode(),
    "place": lambda event: str(event.place).encode(),
    "publisher": lambda event: event.publisher.encode(),
    "id": lambda event: event.id.encode(),
    "verdict": lambda event: event.verdict.encode(),
}
_PLACEHOLDER = re.compile(r"\{(\w*)(\}|(?=(\W|$)))")


def formatter(template: str) -> Callable[[ReceivedEvent], bytes]:
    """Return a function that formats an event by a template like `{topic} {payload}`."""
    parts: list[bytes | Callable[[ReceivedEvent], bytes]] = []
    at = 0
    text = template.replace("\\t", "\t").replace("\\n", "\n").replace("\\0", "\0")
    for found in _PLACEHOLDER.finditer(text):
        field = _FIELDS.get(found[1])
        if not found[2]:
            if field is None:
                continue  # A literal brace.
            raise BadInput(f"--format: {{{found[1]} is not closed; write {{{found[1]}}}")
        if field is None:
            raise BadInput(
                f"--format: unknown field {{{found[1]}}}; expected one of "
                + ", ".join(f"{{{name}}}" for name in _FIELDS)
            )
        parts += (as_bytes(text[at : found.start()]), field)
        at = found.end()
    parts.append(as_bytes(text[at:]))
    return lambda event: b"".join(
        part if isinstance(part, bytes) else part(event) for part in parts
    )


def _as_json(event: ReceivedEvent) -> bytes:
    fields: dict[str, object] = {
        "topic": event.topic,
        "position": event.position,
        "place": event.place,
        "publisher": event.publisher,
        "id": event.id,
        **_text_or_base64("key", event.key),
        "headers": dict(event.headers),
        **_text_or_base64("payload", event.payload),
    }
    if event.verdict:
        fields["verdict"] = event.verdict
    return msgspec.json.encode(fields) + b"\n"


def _content_as_json(event: ReceivedEvent) -> bytes:
    fields = {
        "position": event.position,
        "publisher": event.publisher,
        "id": event.id,
        "attributes": event.attributes,
        **_text_or_base64("payload", event.payload),
    }
    return msgspec.json.encode(fields) + b"\n"


def _text_or_base64(name: str, value: bytes | None) -> dict[str, str | None]:
    """Return bytes as text under a name, or as base64 under another if not text."""
    try:
        return {name: None if value is None else value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value or b"").decode()}


DurableOption = Annotated[
    str | None,
    typer.Option(
        help="Name of a durable subscription. Run again, on any machine, it resumes after the last "
        "printed event; after a kill -9 it may print the last few again."
    ),
]
StartOption = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="earliest|latest|PLACE",
        help="Where to start: at the oldest event, at new ones, or at a place in the server's "
        "log. An existing durable subscription resumes instead.",
    ),
]
AcceptLossOption = Annotated[
    bool,
    typer.Option(
        "--accept-loss",
        help="With --name: continue, this once, if a server's log was replaced, or if too many "
        "events waited for --where.",
    ),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Exit with code 2 after this long without an event."),
]
PendingOption = Annotated[
    int,
    typer.Option(
        "--pending-max",
        metavar="EVENTS",
        min=1,
        help="Events that may wait to be printed; with --where and no --name, it exits with 2 "
        "beyond that.",
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print each event as one line of JSON. A key or payload that is not text is "
        "key_base64 or payload_base64.",
    ),
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format", help=r"How to print an event, such as '{topic} {key} {payload}\n'; \t is a tab."
    ),
]


@output.stream_command
def sub(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC…]", help="The topics to read.")
    ] = None,
    *,
    where: WhereOption = None,
    url: UrlOption = "ensue://127.0.0.1:7400",
    order: OrderOption = None,
    order_options: OrderOptions = NO_OPTIONS,
    name: DurableOption = None,
    count: Annotated[
        int,
        typer.Option("--count", "-n", min=0, help="Exit after this many events; 0 for no limit."),
    ] = UNLIMITED,
    start: StartOption = "latest",
    accept_loss: AcceptLossOption = False,
    template: FormatOption = None,
    json: JsonOption = False,
    pending: PendingOption = PENDING_MAX,
    wait: WaitOption = 10.0,
    timeout: TimeoutOption = None,
) -> int:
    """Print the events of topics as they arrive, in order, one payload per line.

    With `--where` there are no topics: it prints attributes of matching events, as JSON objects.
    Brokers route these events; `--order total` reads those that were published in total order.

    Exits after `--count` events, when the reader of its output closes the pipe, or on Ctrl-C: with
    2 before that count, or before the server has responded.

    Example: [bold]ensue sub orders payments --name billing --json[/bold]
    """
    if json and template is not None:
        raise BadInput("--json and --format exclude each other: leave one of them out")
    if timeout is not None and not timeout > 0:
        raise BadInput(f"--timeout: expected a number of seconds above 0, got {timeout:g}")
    wanted = chosen_order(order, order_options, where)
    usual, as_json = r"{payload}\n", _as_json
    if where is not None:
        usual, as_json = r"{attributes}\n", _content_as_json
    write = as_json if json else formatter(usual if template is None else template)
    what = ", ".join(topics or ()) if where is None else f"--where {where!r}"
    printer = _Printer(write, what=what, count=count, timeout_s=timeout)
    begin = _start(start)
    if where is not None:
        without_log = {"--from": begin != "latest"} if wanted is None else {}
        check_content(topics[0] if topics else None, wanted, without_log)
        with output.option("--where"):
            parse(where)
        by_content = _SubscriptionOptions((), where, wanted, name, begin, pending, accept_loss)
        following = _follow(printer, url, wanted, wait, by_content.subscribe)
    else:
        if not topics:
            raise BadInput("TOPIC is missing: name the topics to read, or use --where")
        check_topics(tuple(topics))
        check_kept(wanted, {"--name": name is not None, "--from": begin != "latest"})
        options = _SubscriptionOptions(
            tuple(topics), None, wanted, name, begin, pending, accept_loss
        )
        following = _follow(printer, url, wanted, wait, options.subscribe)
    with output.warnings_on_stderr():
        asyncio.run(following)
    if printer.interrupted and not printer.output.broken and (count or not printer.subscribed):
        raise KeyboardInterrupt
    if printer.timed_out:
        printed = output.were(printer.printed)
        raise BadInput(f"no event for {timeout:g} s (--timeout); {printed} printed")
    return output.EXIT_VALID


def _start(text: str) -> Start:
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if not text.isdecimal() or int(text) < 1:
        raise BadInput(f"--from {text!r}: expected earliest, latest or a place from 1 on")
    return int(text)


class _SubscriptionOptions(msgspec.Struct, frozen=True):
    """The options of a subscription."""

    topics: tuple[str, ...]
    where: str | None
    order: Order | None
    name: str | None
    start: Start
    pending_max: int
    accept_loss: bool

    def __post_init__(self) -> None:
        if self.accept_loss and self.name is None:
            raise BadInput("--accept-loss is for a durable subscription: add its --name")

    def subscribe(self, bus: Bus) -> Subscription:
        """Return the subscription."""
        ordered: dict[str, Any] = {}
        if self.where is not None and self.order is not None:
            ordered["order"] = self.order  # Otherwise it is that of the bus, or none.
        return bus.subscribe(
            *self.topics,
            where=self.where,
            **ordered,
            name=self.name,
            pending_max=self.pending_max,
            acknowledge="manual",
            durable=self.name is not None,
            start=self.start,
            accept_loss=self.accept_loss,
        )


class _Printer:
    """Prints events up to a count or a timeout."""

    def __init__(
        self,
        write: Callable[[ReceivedEvent], bytes],
        *,
        what: str,
        count: int,
        timeout_s: float | None,
    ) -> None:
        self.output = Output()
        self.printed = 0
        self.subscribed = False
        """Whether the server has responded."""
        self.interrupted = False
        self.timed_out = False
        self._write = write
        self._what = what
        self._count = count
        self._timeout_s = timeout_s

    async def run(self, events: Subscription) -> None:
        """Print, flush and acknowledge events, in this order, in batches."""
        self.subscribed = True
        output.print_error(f"subscribed to {self._what}")
        unacknowledged: list[int] = []
        while not self.output.broken:
            if unacknowledged and (self.output.full or not events.waiting):
                await self._settle(events, unacknowledged)
            try:
                async with asyncio.timeout(self._timeout_s):
                    event = await anext(events)
            except TimeoutError:
                self.timed_out = True
                break
            except StopAsyncIteration:
                break
            self.output.write(self._write(event))
            unacknowledged.append(event.position)
            self.printed += 1
            if self.printed == self._count:
                break
        await self._settle(events, unacknowledged)

    async def _settle(self, events: Subscription, positions: list[int]) -> None:
        await self.output.flush()
        if not self.output.broken:
            for position in positions:
                events.acknowledge(position)
        positions.clear()


async def _follow(
    printer: _Printer,
    url: str,
    order: Order | None,
    wait_s: float,
    subscribe: Callable[[Bus], Subscription],
) -> None:
    """Subscribe, and print until the count, a timeout, a signal or a closed pipe."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        printer.interrupted = True
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, interrupt)
    printer.output.on_closed(task.cancel)
    bus = None
    try:
        bus = await connect_with_retry(url, order=order, name=None, wait_s=wait_s)
        async with subscribe(bus) as events:
            await printer.run(events)
    except asyncio.CancelledError:
        if not printer.interrupted and not printer.output.broken:
            raise
    finally:
        if bus is not None:
            await _close(bus)


async def _close(bus: Bus) -> None:
    """Close the bus; a signal stops waiting for a server that does not respond."""
    closing = asyncio.ensure_future(bus.close())
    try:
        await asyncio.shield(closing)
    except asyncio.CancelledError:
        closing.cancel()
        await asyncio.wait((closing,))

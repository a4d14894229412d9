"""The command `pub`: publish each line of standard input."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
import typer

from ensue import Bus, connect
from ensue.cli import output
from ensue.cli.content_lines import ContentSource
from ensue.cli.order_options import (
    NO_OPTIONS,
    OrderOption,
    OrderOptions,
    WhereOption,
    check_content,
    chosen_order,
)
from ensue.cli.stdio import LineTooLong, as_bytes, lines_of
from ensue.client.validation import check_seconds, check_topics
from ensue.core.errors import BadInput, EnsueError, EventsInDoubt, TransportError
from ensue.core.order import Order
from ensue.core.toml_file import TableReader
from ensue.transports.memory import MemoryOptions
from ensue.transports.schemes import SERVED, BrokerOptions, parse_url
from ensue.transports.tcp.options import TcpOptions, write_address

__all__ = ["UrlOption", "connect_with_retry", "parse_headers", "pub"]

RETRY_S = 0.25
NOTICE_S = 1.0
"""How long to wait for a server before a notice is printed."""
END_S = 5.0
"""How long to wait for receipts after a signal."""
ATTEMPT_S_MIN = 2.0
"""How long a connected server may take to respond, even if --wait is shorter."""

UrlOption = Annotated[
    str,
    typer.Option(
        metavar="URL", envvar="ENSUE_URL", help="The server: ensue://HOST:PORT; or set ENSUE_URL."
    ),
]
WaitOption = Annotated[
    float,
    typer.Option(metavar="SECONDS", min=0.0, help="How long to wait for a server that is not up."),
]


TimeoutOption = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0.0,
        help="How long to wait for receipts after the end of the input, and for room for a line. "
        "Default: no limit, and 5 s after a signal.",
    ),
]


class _JsonLine(msgspec.Struct, forbid_unknown_fields=True):
    """One line of `--json`."""

    payload: Any = ""
    key: str | None = None
    headers: dict[str, str] = {}
    topic: str | None = None


_LINES = TableReader(_JsonLine)


SeparatorOption = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Separates the event's key from its payload in a line."),
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Each line is an object with payload (text, or any JSON value), key, headers and "
        "topic, all optional; with --where: attributes and payload.",
    ),
]


@output.stream_command
def pub(
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="The topic to publish on.")
    ] = None,
    *,
    where: WhereOption = None,
    url: UrlOption = "ensue://127.0.0.1:7400",
    order: OrderOption = None,
    order_options: OrderOptions = NO_OPTIONS,
    key: Annotated[str | None, typer.Option(help="The key of every event.")] = None,
    key_separator: SeparatorOption = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header of every event.")
    ] = None,
    message: Annotated[
        list[str] | None,
        typer.Option("--message", "-m", help="Publish this instead of standard input."),
    ] = None,
    json: JsonOption = False,
    name: Annotated[str | None, typer.Option(help="The name of this publisher.")] = None,
    wait: WaitOption = 10.0,
    timeout: TimeoutOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no summary.")] = False,
) -> int:
    """Publish each line of standard input as an event, in order.

    Exits when all events are durable at the server or, in orders other than total, sent to the
    subscribers. Waits if the server restarts meanwhile. With `--timeout` it gives up after that
    time, prints the events in doubt, and exits with 2; after SIGTERM or Ctrl-C, within 5 s.

    With `--where` there is no topic: each line is a JSON object with the attributes of an event,
    which must match the filter. Brokers route it; with `--order total` it has a place in the order.

    Example: [bold]seq 1000 | ensue pub numbers --url ensue://127.0.0.1:7400[/bold]
    """
    if timeout is not None:
        check_seconds(timeout, "--timeout", zero=True)
    chosen = chosen_order(order, order_options, where)
    headers = parse_headers(header or [])
    if key_separator == "":
        raise BadInput("--key-separator is empty: give the text that follows a key, such as '='")
    if json and (key is not None or key_separator is not None):
        raise BadInput("--json lines have their own keys: leave --key and --key-separator out")
    what = "line" if message is None else "message"
    source: _Source | ContentSource
    if where is not None:
        given = {"--key": key, "--key-separator": key_separator, "--header": header}
        check_content(topic, chosen, given)
        with output.option("--where"):
            source = ContentSource(where, chosen, json=json, what=what)
    else:
        if topic is None:
            raise BadInput("TOPIC is missing: name the topic to publish on, or use --where")
        check_topics((topic,))
        source = _Source(
            topic,
            key=None if key is None else as_bytes(key),
            key_separator=None if key_separator is None else as_bytes(key_separator),
            headers=headers,
            json=json,
            what=what,
        )
    with _summary(source, quiet=quiet), output.warnings_on_stderr():
        asyncio.run(_publish(source, url, chosen, name, wait, timeout, message))
    return output.EXIT_VALID


@contextmanager
def _summary(source: "_Source | ContentSource", *, quiet: bool) -> Iterator[None]:
    """Print the number of published events, on a terminal or on an interrupt."""
    shown = not quiet and sys.stderr.isatty()
    try:
        yield
    except KeyboardInterrupt:
        shown = False
        least = "" if source.settled else "at least "
        published = output.counted(source.published, "event")
        raise KeyboardInterrupt(f"{least}{published} published") from None
    finally:
        if shown:
            output.print_stderr(f"{output.counted(source.published, 'event')} published")


class _Source:
    """A source of events from lines."""

    def __init__(
        self,
        topic: str,
        *,
        key: bytes | None,
        key_separator: bytes | None,
        headers: dict[str, str],
        json: bool,
        what: str,
    ) -> None:
        self.published = 0
        """Events that the bus has accepted."""
        self.settled = True
        """Whether `published` is exact."""
        self.timeout_s: float | None = None
        """How long a line waits for room."""
        self.line = 0
        self._topic = topic
        self._key = key
        self._separator = key_separator
        self._headers = headers
        self._json = json
        self._what = what

    async def begin(self, bus: Bus) -> None:
        """Do nothing: topics need no advertisement."""

    async def settle(self) -> None:
        """Do nothing: the bus tracks receipts."""

    async def publish(self, bus: Bus, line: bytes) -> None:
        """Publish one line."""
        self.line += 1
        try:
            topic, payload, key, headers = self._read(line)
            await bus.publish(
                topic, payload, key=key, headers=headers, receipt=False, timeout=self.timeout_s
            )
        except BadInput as error:
            raise self.line_error(self.line, str(error)) from None
        self.published += 1

    def line_error(self, number: int, why: str) -> BadInput:
        """Return the error of an invalid line."""
        return BadInput(
            f"{self._what} {number}: {why}; {output.were(self.published)} published before it"
        )

    def _read(self, line: bytes) -> tuple[str, bytes, bytes | None, dict[str, str]]:
        if not self._json:
            key, payload = self._key, line
            if self._separator is not None:
                found, separator, payload = line.partition(self._separator)
                if not separator:
                    separator_text = self._separator.decode(errors="backslashreplace")
                    raise BadInput(f"has no key separator {separator_text!r}")
                key = found
            return self._topic, payload, key, self._headers
        read = _LINES.loads_json(line)
        value = read.payload
        payload = value.encode() if isinstance(value, str) else msgspec.json.encode(value)
        key = None if read.key is None else read.key.encode()
        topic = self._topic if read.topic is None else read.topic
        return topic, payload, key, {**self._headers, **read.headers}


async def _publish(
    source: _Source | ContentSource,
    url: str,
    order: Order | None,
    name: str | None,
    wait_s: float,
    timeout_s: float | None,
    messages: list[str] | None,
) -> None:
    source.timeout_s = timeout_s or None
    signals: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, signals.put_nowait, None)
    connecting = asyncio.ensure_future(
        connect_with_retry(url, order=order, name=name, wait_s=wait_s)
    )
    if not await _until_signal(signals, _until_done(connecting)):
        connecting.cancel()
        await asyncio.wait((connecting,))
        raise KeyboardInterrupt
    bus = connecting.result()
    given = _publish_lines(source, bus) if messages is None else _publish_all(source, bus, messages)
    interrupted = False
    try:
        interrupted = not await _until_signal(signals, given)
    except ValueError as error:
        raise error if isinstance(error, EnsueError) else BadInput(str(error)) from None
    finally:
        await _finish(bus, signals, timeout_s, interrupted=interrupted)
    if interrupted:
        raise KeyboardInterrupt


async def _until_done(future: "asyncio.Future[Bus]") -> None:
    await asyncio.wait((future,))


async def _finish(
    bus: Bus, signals: "asyncio.Queue[None]", timeout_s: float | None, *, interrupted: bool
) -> None:
    """Wait for all receipts, until a signal or a timeout, and close the bus."""
    if interrupted:
        timeout_s = END_S if timeout_s is None else min(timeout_s, END_S)
        if bus.unsettled:
            output.print_error(
                f"waiting up to {timeout_s:g} s for {output.counted(bus.unsettled, 'receipt')}; "
                "press Ctrl-C again to exit now"
            )
    flushed = False
    try:
        if timeout_s != 0:
            # `close` raises with the events in doubt.
            with contextlib.suppress(EventsInDoubt):
                flushed = await _until_signal(signals, bus.flush(timeout=timeout_s))
    finally:
        await bus.close(timeout=None if flushed else 0.0)


async def _publish_lines(source: _Source | ContentSource, bus: Bus) -> None:
    await source.begin(bus)
    try:
        async for lines in lines_of(sys.stdin.fileno()):
            for line in lines:
                await source.publish(bus, line)
            await source.settle()
    except LineTooLong as error:
        raise source.line_error(source.line + 1, str(error)) from None


async def _publish_all(source: _Source | ContentSource, bus: Bus, messages: list[str]) -> None:
    await source.begin(bus)
    for text in messages:
        await source.publish(bus, as_bytes(text))
    await source.settle()


async def _until_signal(signals: "asyncio.Queue[None]", work: Coroutine[Any, Any, None]) -> bool:
    """Run a coroutine until it ends or a signal arrives; return whether it ended."""
    task = asyncio.ensure_future(work)
    stop = asyncio.ensure_future(signals.get())
    try:
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        return task.done()
    finally:
        for each in (task, stop):
            each.cancel()
        await asyncio.gather(task, stop, return_exceptions=True)


async def connect_with_retry(
    url: str,
    *,
    order: Order | None,
    name: str | None,
    wait_s: float,
) -> Bus:
    """Connect a bus; retry for up to `wait_s` if the server is not up."""
    options = parse_url(url, expected=SERVED)
    if isinstance(options, MemoryOptions):
        raise BadInput(
            f"{url} is within one process, and no other program can see its events: use "
            "ensue://HOST:PORT or a broker"
        )
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    deadline_s = started_s + wait_s
    notice = _WaitNotice(options, wait_s)
    try:
        while True:
            bus = connect(url, name=name, order=order)
            try:
                async with asyncio.timeout(max(ATTEMPT_S_MIN, deadline_s - loop.time())):
                    await bus.__aenter__()
            except TimeoutError:
                raise notice.timeout_error() from None
            except TransportError as error:
                if not error.retriable or loop.time() + RETRY_S > deadline_s:
                    raise
                if loop.time() - started_s >= NOTICE_S:
                    notice.show()
                await asyncio.sleep(RETRY_S)
            else:
                return bus
    finally:
        notice.cancel()


class _WaitNotice:
    """The notice that a server does not respond, printed once."""

    def __init__(self, options: TcpOptions | BrokerOptions, wait_s: float) -> None:
        self._options = options
        self._wait_s = wait_s
        if isinstance(options, TcpOptions):
            self._where = write_address(options.host, options.port)
        else:
            self._where = options.url
        self._printed = wait_s <= NOTICE_S
        # Later than `NOTICE_S`: a server that is up may be slow to respond.
        self._timer = asyncio.get_running_loop().call_later(ATTEMPT_S_MIN, self.show)

    def show(self) -> None:
        """Print the notice, once."""
        if not self._printed:
            self._printed = True
            output.print_error(
                f"waiting up to {self._wait_s:g} s for {self._where} to answer (--wait)"
            )

    def cancel(self) -> None:
        """Cancel the notice."""
        self._timer.cancel()

    def timeout_error(self) -> TransportError:
        """Return the error of a wait without a response."""
        waited = f"within {max(self._wait_s, ATTEMPT_S_MIN):g} s"
        if isinstance(self._options, TcpOptions):
            return TransportError(f"no answer from {self._where} {waited}")
        return TransportError(
            f"no station answers on {self._where} {waited}; start one with: "
            f"ensue serve --url {self._where} --data DIR"
        )


def parse_headers(given: list[str]) -> dict[str, str]:
    """Parse headers of the form NAME=VALUE."""
    headers: dict[str, str] = {}
    for each in given:
        name, separator, value = each.partition("=")
        if not separator or not name:
            raise BadInput(f"--header {each!r}: expected NAME=VALUE")
        headers[name] = value
    return headers

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
from ensue.cli.by_content import ContentSource
from ensue.cli.ordering import (
    DeltaOption,
    EpsilonOption,
    MsOption,
    OrderOption,
    WhereOption,
    check_content,
    chosen_order,
)
from ensue.cli.streams import LineTooLong, as_bytes, lines_of
from ensue.client.checks import check_seconds, check_topics
from ensue.errors import BadInput, EnsueError, EventsInDoubt, TransportError
from ensue.order import Order
from ensue.tables import TableReader
from ensue.transports.memory import MemoryOptions
from ensue.transports.schemes import SERVED, BrokerOptions, parse_url
from ensue.transports.tcp_options import TcpOptions, write_address

__all__ = ["UrlOption", "connect_patiently", "parse_headers", "pub"]

RETRY_S = 0.25
TOLD_S = 1.0
"""How long a server that is not up is waited for in silence."""
END_S = 5.0
"""How long events may take to be safe once somebody wants the program to end."""
ATTEMPT_S_MIN = 2.0
"""How long somebody who is there may take to answer, however short the wait."""

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
        help="How long events may lack their receipts once the input has ended, and lines wait for room; "
        "unless given, for ever, and 5 s once it is told to end by a signal.",
    ),
]


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """One line of `--json`."""

    payload: Any = ""
    key: str | None = None
    headers: dict[str, str] = {}
    topic: str | None = None


_LINES = TableReader(_Line)


SeparatorOption = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="What stands before it in a line is the event's key."),
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Each line is an object: payload (text, or any other JSON as it is; nothing unless given), and if "
        "wished key, headers, topic; with --where: attributes and payload.",
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
    order: OrderOption = "total",
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    ms: MsOption = None,
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
    name: Annotated[str | None, typer.Option(help="What this publisher is called.")] = None,
    wait: WaitOption = 10.0,
    timeout: TimeoutOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing at the end.")] = False,
) -> int:
    """Publish each line of standard input as an event, in order.

    Ends when everything is durable at the server, or, where order is not total, on its way to whoever listens; a server that is
    restarted meanwhile is waited for. With `--timeout` it gives up after so long, names the events that are in doubt, and ends with 2; so it does
    within 5 s after SIGTERM or Ctrl-C.

    With `--where` there is no topic: lines are JSON objects, the attributes of events, which all match that filter.

    Example: [bold]seq 1000 | ensue pub numbers --url ensue://127.0.0.1:7400[/bold]
    """
    if timeout is not None:
        check_seconds(timeout, "--timeout", zero=True)
    chosen = chosen_order(order, epsilon=epsilon, delta=delta, ms=ms)
    headers = parse_headers(header or [])
    if key_separator == "":
        raise BadInput("--key-separator: expected what stands behind a key, such as '='; not ''")
    if json and (key is not None or key_separator is not None):
        raise BadInput(
            "--json lines say their keys themselves: leave --key and --key-separator out"
        )
    what = "line" if message is None else "message"
    source: _Source | ContentSource
    if where is not None:
        given = {"--key": key, "--key-separator": key_separator, "--header": header}
        check_content(topic, order, given)
        chosen = None
        with output.option("--where"):
            source = ContentSource(where, json=json, what=what)
    else:
        if topic is None:
            raise BadInput("say on which TOPIC to publish, or what by content with --where")
        check_topics((topic,))
        source = _Source(
            topic,
            key=None if key is None else as_bytes(key),
            key_separator=None if key_separator is None else as_bytes(key_separator),
            headers=headers,
            json=json,
            what=what,
        )
    with _telling(source, quiet=quiet), output.warnings_told():
        asyncio.run(_publish(source, url, chosen, name, wait, timeout, message))
    return output.EXIT_VALID


@contextmanager
def _telling(source: "_Source | ContentSource", *, quiet: bool) -> Iterator[None]:
    """Tell how many events were published: somebody at a terminal, and who interrupts."""
    tells = not quiet and sys.stderr.isatty()
    try:
        yield
    except KeyboardInterrupt:
        tells = False
        least = "" if source.settled else "at least "
        published = output.counted(source.published, "event")
        raise KeyboardInterrupt(f"{least}{published} published") from None
    finally:
        if tells:
            output.tell(f"{output.counted(source.published, 'event')} published")


class _Source:
    """Turns lines into events."""

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
        """Events that were taken over."""
        self.settled = True
        """Whether these are all that may be out."""
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
        """Do nothing: topics need not be announced."""

    async def settle(self) -> None:
        """Wait for nothing: the bus knows what is not safe yet."""

    async def publish(self, bus: Bus, line: bytes) -> None:
        """Publish one line."""
        self.line += 1
        try:
            topic, payload, key, headers = self._read(line)
            await bus.publish(
                topic, payload, key=key, headers=headers, receipt=False, timeout=self.timeout_s
            )
        except BadInput as error:
            raise self.wrong(self.line, str(error)) from None
        self.published += 1

    def wrong(self, number: int, why: str) -> BadInput:
        """Return what is wrong with a line."""
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
                    raise BadInput(f"there is no {separator_text!r} to part its key")
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
        connect_patiently(url, order=order, name=name, wait_s=wait_s)
    )
    if not await _before(signals, _until_done(connecting)):
        connecting.cancel()
        await asyncio.wait((connecting,))
        raise KeyboardInterrupt
    bus = connecting.result()
    given = _publish_lines(source, bus) if messages is None else _publish_all(source, bus, messages)
    interrupted = False
    try:
        interrupted = not await _before(signals, given)
    except ValueError as error:
        raise error if isinstance(error, EnsueError) else BadInput(str(error)) from None
    finally:
        await _see_through(bus, signals, timeout_s, told=interrupted)
    if interrupted:
        raise KeyboardInterrupt


async def _until_done(future: "asyncio.Future[Bus]") -> None:
    await asyncio.wait((future,))


async def _see_through(
    bus: Bus, signals: "asyncio.Queue[None]", timeout_s: float | None, *, told: bool
) -> None:
    """Wait until what was taken over is safe, whatever ended the input; or until told not to, or for too long."""
    if told:
        timeout_s = END_S if timeout_s is None else min(timeout_s, END_S)
        if bus.unsettled:
            are = "is" if bus.unsettled == 1 else "are"
            output.print_error(
                f"waiting up to {timeout_s:g} s until {output.counted(bus.unsettled, 'event')} {are} safe; "
                "Ctrl-C again gives up waiting"
            )
    flushed = False
    try:
        if timeout_s != 0:
            # Closing says which events are in doubt.
            with contextlib.suppress(EventsInDoubt):
                flushed = await _before(signals, bus.flush(timeout=timeout_s))
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
        raise source.wrong(source.line + 1, str(error)) from None


async def _publish_all(source: _Source | ContentSource, bus: Bus, messages: list[str]) -> None:
    await source.begin(bus)
    for text in messages:
        await source.publish(bus, as_bytes(text))
    await source.settle()


async def _before(signals: "asyncio.Queue[None]", work: Coroutine[Any, Any, None]) -> bool:
    """Do some work, but no longer than until a signal; tell whether it was done."""
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


async def connect_patiently(
    url: str,
    *,
    order: Order | None,
    name: str | None,
    wait_s: float,
) -> Bus:
    """Enter a bus; a server that does not answer yet is asked again for a while."""
    options = parse_url(url, expected=SERVED)
    if isinstance(options, MemoryOptions):
        raise BadInput(
            f"{url} is within one process, this one: nobody else would see its events; expected "
            "ensue://HOST:PORT or a broker"
        )
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    deadline_s = begun_s + wait_s
    waiting = _Waiting(options, wait_s)
    try:
        while True:
            bus = connect(url, name=name, order=order)
            try:
                async with asyncio.timeout(max(ATTEMPT_S_MIN, deadline_s - loop.time())):
                    await bus.__aenter__()
            except TimeoutError:
                raise waiting.in_vain() from None
            except TransportError as error:
                if not error.retriable or loop.time() + RETRY_S > deadline_s:
                    raise
                if loop.time() - begun_s >= TOLD_S:
                    waiting.tell()
                await asyncio.sleep(RETRY_S)
            else:
                return bus
    finally:
        waiting.end()


class _Waiting:
    """Says once that a server is waited for, and that it was in vain."""

    def __init__(self, options: TcpOptions | BrokerOptions, wait_s: float) -> None:
        self._options = options
        self._wait_s = wait_s
        if isinstance(options, TcpOptions):
            self._where = write_address(options.host, options.port)
        else:
            self._where = options.url
        self._told = wait_s <= TOLD_S
        # Whoever is there and slow is not told of: it answers soon.
        self._timer = asyncio.get_running_loop().call_later(ATTEMPT_S_MIN, self.tell)

    def tell(self) -> None:
        """Say that it is waited for, unless that was said."""
        if not self._told:
            self._told = True
            output.print_error(
                f"waiting up to {self._wait_s:g} s for {self._where} to answer (--wait)"
            )

    def end(self) -> None:
        """Say no more."""
        self._timer.cancel()

    def in_vain(self) -> TransportError:
        """Return what is wrong if nobody has answered."""
        waited = f"within {max(self._wait_s, ATTEMPT_S_MIN):g} s"
        if isinstance(self._options, TcpOptions):
            return TransportError(f"no answer from {self._where} {waited}")
        return TransportError(
            f"no station answers on {self._where} {waited}; start one with: "
            f"ensue serve --url {self._where} --data DIR"
        )


def parse_headers(given: list[str]) -> dict[str, str]:
    """Read headers given as NAME=VALUE."""
    headers: dict[str, str] = {}
    for each in given:
        name, separator, value = each.partition("=")
        if not separator or not name:
            raise BadInput(f"--header {each!r}: expected NAME=VALUE")
        headers[name] = value
    return headers

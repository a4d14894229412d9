"""The command `tx`: run a planned transaction from a file."""

import asyncio
import re
import sys
import tomllib
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from ensue.cli import output
from ensue.cli.pub import UrlOption, WaitOption, connect_with_retry
from ensue.cli.stdio import lines_of
from ensue.client.content.attempts import check_retries
from ensue.client.content.plan import PlannedClient, PlannedTransaction
from ensue.core.errors import BadInput
from ensue.core.toml_file import TableReader, read_text
from ensue.protocols.content.filters.filter import event_of
from ensue.protocols.content.filters.parser import parse

__all__ = ["Operation", "Plan", "read_plan", "tx"]

CHANGES = ("advertise", "unadvertise", "subscribe", "unsubscribe")


class Operation(msgspec.Struct, forbid_unknown_fields=True):
    """One operation of a plan. Exactly one of the first five fields is set."""

    publish: dict[str, bool | int | float | str] | None = None
    """The attributes of an event."""
    advertise: str | None = None
    """A filter."""
    unadvertise: str | None = None
    """A name."""
    subscribe: str | None = None
    unsubscribe: str | None = None
    payload: str = ""
    client: str = ""
    """The client that runs the operation; empty for this command."""
    together: bool = False
    """Whether it has no order relative to adjacent operations with this flag."""


class Plan(msgspec.Struct, forbid_unknown_fields=True):
    """The contents of a plan file."""

    operations: tuple[Operation, ...]


_READER = TableReader(Plan)
_OPERATION = re.compile(r"operations\[(\d+)\](?:\.|: )")
"""Prefix of the reader's errors about an operation; errors here count from 1."""


@output.command
def tx(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The plan: a TOML or JSON file.")],
    *,
    url: UrlOption = "ensue://127.0.0.1:7400",
    name: Annotated[str | None, typer.Option(help="The name of this client.")] = None,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How long to wait for the commit."),
    ] = 5.0,
    wait: WaitOption = 10.0,
    hold: Annotated[
        bool,
        typer.Option(
            "--hold",
            help="Have the operations done, then read `commit` or `abort` from stdin, within the "
            "timeout.",
        ),
    ] = False,
    retries: Annotated[
        int,
        typer.Option(metavar="N", help="How often to try again if another transaction conflicts."),
    ] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> int:
    """Run a planned transaction: all operations of all clients, or none.

    The file has an `[[operations]]` for each operation, with one of `publish`, `advertise`,
    `unadvertise`, `subscribe` or `unsubscribe`, and optionally `client` (the name of a connected
    client that runs it; `ensue sub` has none), `payload` and `together`. Operations run in their
    order.

    Example: [bold]ensue tx examples/plans/prices.toml --url ensue://127.0.0.1:7400[/bold]
    """
    plan = read_plan(file)
    check_retries(retries)
    if hold and retries:
        raise BadInput("a held plan has one decision: give --hold or --retries, not both")
    count = output.counted(len(plan.operations), "operation")
    decide = _Decision(count, quiet=json) if hold else None
    with output.warnings_on_stderr():
        transaction = asyncio.run(_run_plan(plan, url, name, timeout, wait, retries, decide))
    outcome = "committed" if decide is None or decide.commits else "aborted"
    if json:
        output.print_json({"transaction": transaction, "outcome": outcome})
    else:
        typer.echo(f"{outcome} {transaction}: {count}")
    return output.EXIT_VALID


def read_plan(file: Path) -> Plan:
    """Read a plan file; raise `BadInput` with the file and the operation."""
    text = read_text(file, what="a plan", hint="name the file of a plan")
    try:
        plan = _decode(text, json=file.suffix == ".json")
    except BadInput as error:
        what = str(error)
        if found := _OPERATION.match(what):
            what = what[found.end() :]
            raise BadInput(f"{file}, operation {int(found[1]) + 1}: {what}") from None
        raise BadInput(f"{file}: {what}") from None
    if not plan.operations:
        raise BadInput(f"{file} has no operations: add [[operations]]")
    for number, one in enumerate(plan.operations, 1):
        try:
            _check(one)
        except BadInput as error:
            raise BadInput(f"{file}, operation {number}: {error}") from None
    return plan


def _decode(text: str, *, json: bool) -> Plan:
    if json:
        return _READER.loads_json(text)
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"is not TOML: {error}") from None
    if not raw:
        raise BadInput(
            "the key 'operations' is missing; add [[operations]], one for each operation"
        )
    return _READER.read(raw)


def _check(one: Operation) -> None:
    given = [each for each in ("publish", *CHANGES) if getattr(one, each) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise BadInput(f"needs exactly one of publish, {', '.join(CHANGES)}; got {found}")
    if one.payload and one.publish is None:
        raise BadInput("payload is for publish only; leave it out")
    if one.publish is not None:
        event_of(one.publish)
    if not one.client and (one.subscribe is not None or one.unsubscribe is not None):
        raise BadInput("this command has no subscriptions: name the subscriber with client")
    _check_names(one)
    for where in (one.advertise, one.subscribe):
        if where is not None:
            parse(where)


def _check_names(one: Operation) -> None:
    """Raise if an operation has a filter where a name is expected."""
    for what, name in (("unadvertise", one.unadvertise), ("unsubscribe", one.unsubscribe)):
        if name is None:
            continue
        try:
            parse(name)
        except BadInput:
            continue
        source = "advertise()" if what == "unadvertise" else "bus.content_name(events)"
        raise BadInput(
            f"{what} takes a name, got the filter {name!r}: use the name that {source} returns"
        )


class _Decision:
    """Reads from stdin whether to commit a plan that is held."""

    def __init__(self, count: str, *, quiet: bool) -> None:
        self.commits = False
        self._count = count
        self._quiet = quiet

    async def read(self, held: PlannedTransaction) -> None:
        """Ask, and carry the answer out. The end of stdin aborts."""
        typer.echo(f"held {held.name}: {self._count}; commit or abort?", err=self._quiet)
        answer = await _first_line()
        if answer not in ("commit", "abort", ""):
            raise BadInput(f"the decision must be commit or abort, got {answer!r}: aborted")
        self.commits = answer == "commit"
        await (held.commit() if self.commits else held.abort())


async def _first_line() -> str:
    async for lines in lines_of(sys.stdin.fileno()):
        return lines[0].decode(errors="replace").strip()
    return ""


async def _run_plan(
    plan: Plan,
    url: str,
    name: str | None,
    timeout_s: float,
    wait_s: float,
    retries: int,
    decide: _Decision | None = None,
) -> str:
    bus = await connect_with_retry(url, order=None, name=name, wait_s=wait_s)
    try:
        committed = ""
        async for attempt in bus.transaction(
            isolation="planned", timeout=timeout_s, retries=retries
        ):
            async with attempt as planned:
                for group in _groups(plan.operations):
                    with planned.together() if group[0].together else nullcontext():
                        for one in group:
                            await _add(planned, one)
                if decide is not None:
                    await planned.hold()
                    await decide.read(planned)
            committed = planned.name
        return committed
    finally:
        await bus.close()


def _groups(operations: Sequence[Operation]) -> list[list[Operation]]:
    """Group adjacent operations with `together`; any other operation is a group."""
    groups: list[list[Operation]] = []
    for one in operations:
        if groups and one.together and groups[-1][0].together:
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups


async def _add(planned: PlannedTransaction, one: Operation) -> None:
    """Add an operation to the plan."""
    client: PlannedTransaction | PlannedClient = planned
    if one.client:
        client = planned.client(one.client)
    if one.publish is not None:
        await client.publish(one.publish, one.payload.encode())
    elif one.advertise is not None:
        await client.advertise(one.advertise)
    elif one.unadvertise is not None:
        await client.unadvertise(one.unadvertise)
    elif one.subscribe is not None:
        await client.subscribe(one.subscribe)
    elif isinstance(client, PlannedClient) and one.unsubscribe is not None:
        await client.unsubscribe(one.unsubscribe)

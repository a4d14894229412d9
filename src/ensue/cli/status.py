"""The command `status`: the state of the servers of a chain."""

import asyncio
import contextlib
import sys
from typing import Annotated, Any

import typer

from ensue.cli import output
from ensue.cli.output import counted
from ensue.cli.pub import UrlOption
from ensue.core.errors import BadInput, EnsueError
from ensue.runtime.status import ANSWER_S, chain_status

__all__ = ["merge_lines", "move_lines", "status"]

WATCH_S_MIN = 0.1
pause = asyncio.sleep
CLEAR = "\x1b[H\x1b[2J"
"""Clears a terminal."""

Json = dict[str, Any]


@output.command
def status(
    context: typer.Context,
    where: Annotated[str | None, typer.Argument(metavar="URL", help="Short for --url.")] = None,
    *,
    url: UrlOption = "ensue://127.0.0.1:7400",
    watch: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Refresh at this interval, until Ctrl-C."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long a server may take to answer.")
    ] = ANSWER_S,
    json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object instead; with --watch, one a line."),
    ] = False,
) -> int:
    """Show the state of a chain, by the URL of any of its servers or of its broker.

    Queries every server, and exits with 2 if one does not respond. With a login, it shows the
    topics that you may subscribe to.

    Example: [bold]ensue status --url ensue://127.0.0.1:7400 --watch 2[/bold]
    """
    if where is not None:
        source = context.get_parameter_source("url")
        if source is not None and source.name == "COMMANDLINE":
            raise BadInput("URL and --url both name a server: leave one of them out")
        url = where
    if not timeout > 0:
        raise BadInput(f"--timeout: expected a number of seconds above 0, got {timeout:g}")
    if watch is None:
        found = asyncio.run(chain_status(url, answer_s=timeout))
        _show(found, json=json)
        return output.EXIT_VALID if found["complete"] else output.EXIT_UNKNOWN
    if not watch >= WATCH_S_MIN:
        raise BadInput(f"--watch: expected at least {WATCH_S_MIN:g} seconds, got {watch:g}")
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is the normal end.
        asyncio.run(_watch(url, watch, timeout, json=json))
    return output.EXIT_VALID


async def _watch(url: str, every_s: float, answer_s: float, *, json: bool) -> None:
    while True:
        try:
            found = await chain_status(url, answer_s=answer_s)
        except BadInput:
            raise
        except (EnsueError, OSError) as error:
            if json:
                output.print_json({"error": str(error)})
            else:
                _clear()
                output.print_error(str(error))
        else:
            if not json:
                _clear()
            _show(found, json=json)
        await pause(every_s)


def _clear() -> None:
    if sys.stdout.isatty():
        sys.stdout.write(CLEAR)
        sys.stdout.flush()


def _show(found: Json, *, json: bool) -> None:
    if json:
        output.print_json(found)
        return
    _show_servers(found)
    _show_topics(found)
    _show_subscriptions(found)
    _show_relayed_orders(found)
    lines = []
    if "groups" in found:
        groups, errors = found["groups"], found["errors"]
        rejected = ", ".join(f"{count:,} {kind}" for kind, count in errors.items()) or "nothing"
        are = "is" if groups["topics"] == 1 else "are"
        lines.append(
            f"{counted(groups['topics'], 'topic')} {are} ordered together with others; the largest "
            f"group has {groups['largest']:,}"
        )
        lines += [*merge_lines(found), *move_lines(found)]
        lines.append(
            f"{counted(found['connections'], 'connection')}, "
            f"{counted(found['open_stamps'], 'stamp')} open, "
            f"{counted(found['early_requests'], 'request')} held back for an earlier one; "
            f"rejected: {rejected}"
        )
    if not found["everything"]:
        lines.append("only topics that you may subscribe to are shown")
    lines += [
        f"{each['server']} does not answer: {each['error']}"
        for each in found["servers"]
        if "error" in each
    ]
    output.print_lines(map(output.plain, lines))


def _show_servers(found: Json) -> None:
    """Print two tables, each of which fits in 80 columns."""
    servers = found["servers"]
    output.print_table(
        f"{found['url']}",
        ("rank", "server", "address", "health", "up", "version"),
        [
            (
                str(each["rank"]),
                output.plain(each["server"]),
                output.plain(each["address"]),
                "no answer" if "error" in each else output.plain(each["health"]),
                _duration(each.get("uptime_s")),
                each.get("version", "-"),
            )
            for each in servers
        ],
        right=(0, 4),
    )
    rows = [
        (
            output.plain(each["server"]),
            _number(each["events"]),
            _number(each["connections"]),
            _number(each["open_stamps"]),
            _number(each["early_requests"]),
            _size(each["journal"]["bytes"]),
            each["journal"]["sync"].removeprefix("every "),
        )
        for each in servers
        if "journal" in each
    ]
    if rows:
        headers = ("server", "events", "connected", "open", "held", "journal", "sync")
        output.print_table("", headers, rows, right=(1, 2, 3, 4, 5))


def merge_lines(found: Json) -> list[str]:
    """Name the subscriptions that merge all groups of a server."""
    return [
        f"subscription {each['name']} merges {counted(each['groups'], 'group')} into one by "
        f"its {counted(each['topics'], 'topic')}: all their events wait for each other"
        for each in found.get("groups", {}).get("merged_by", ())
    ]


def move_lines(found: Json) -> list[str]:
    """Say which topic moves, how far the move is, and which servers hold requests."""
    lines = []
    for each in found.get("moves", ()):
        waits = f", waits for {', '.join(each['waits_for'])}" if each["waits_for"] else ""
        lines.append(f"{each['topic']} moves to {each['to']}: step {each['step']}{waits}")
    for server, topic in found.get("holding", {}).items():
        lines.append(f"{server} holds requests while {topic} moves")
    return lines


def _show_topics(found: Json) -> None:
    topics = sorted(found["topics"], key=lambda each: -int(each["next"]))
    if topics:
        output.print_table(
            _title("topic", len(topics), found["topics_count"]),
            ("topic", "server", "first", "next", "events", "listeners"),
            [
                (
                    output.plain(each["topic"]),
                    output.plain(each["server"]),
                    _number(each["first"]),
                    _number(each["next"]),
                    _number(each["events"]),
                    _number(each["listeners"]),
                )
                for each in topics
            ],
            right=(2, 3, 4, 5),
        )


def _show_subscriptions(found: Json) -> None:
    subscriptions = found["subscriptions"]
    if subscriptions:
        output.print_table(
            _title("subscription", len(subscriptions), found["subscriptions_count"]),
            ("subscription", "durable", "topics", "position", "lag", "last heard"),
            [
                (
                    output.plain(each["name"]),
                    "yes" if each["durable"] else "no",
                    _topics(each),
                    _number(each["position"]),
                    _number(each["lag"]) + (" or more" if each["lag_is_least"] else ""),
                    "-" if each["heard_s"] is None else f"{_duration(each['heard_s'])} ago",
                )
                for each in subscriptions
            ],
            right=(3, 4, 5),
        )


def _show_relayed_orders(found: Json) -> None:
    """Print relayed orders, by server, and their clients."""
    relayed_orders = found.get("relayed_orders", ())
    if relayed_orders:
        output.print_table(
            "relayed orders",
            ("order", "server", "clients", "numbers used", "events relayed"),
            [
                (
                    each["order"],
                    output.plain(each["server"]),
                    _number(each["members_count"]),
                    f"{each['numbers']:,} of {each['numbers_max']:,}" if "numbers" in each else "-",
                    _number(each.get("events")),
                )
                for each in relayed_orders
            ],
            right=(2, 3, 4),
        )
    members = [(each, member) for each in relayed_orders for member in each["members"]]
    if members:
        output.print_table(
            _title("client", len(members), sum(each["members_count"] for each in relayed_orders)),
            ("client", "order", "topics", "last heard"),
            [
                (
                    output.plain(member["name"]),
                    each["order"],
                    _number(member.get("topics")),
                    f"{_duration(member['heard_s'])} ago" if "heard_s" in member else "-",
                )
                for each, member in members
            ],
            right=(2, 3),
        )


def _title(what: str, shown: int, count: int) -> str:
    all_of_them = counted(count, what)
    return f"{shown:,} of {all_of_them}" if shown < count else all_of_them


def _topics(subscription: Json) -> str:
    topics, count = subscription["topics"], subscription["topics_count"]
    shown = output.plain(", ".join(topics[:3]))
    return shown if count <= 3 else f"{shown} and {count - 3:,} more"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _size(value: int | None) -> str:
    if value is None:
        return "-"
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _duration(value_s: float | None) -> str:
    if value_s is None:
        return "-"
    for limit, unit, of in ((120, "s", 1), (7_200, "min", 60), (172_800, "h", 3_600)):
        if value_s < limit:
            return f"{value_s / of:.0f} {unit}"
    return f"{value_s / 86_400:.0f} d"

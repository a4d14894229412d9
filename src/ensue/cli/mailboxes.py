"""The command `mailboxes`: list durable subscriptions by content, or end one."""

import asyncio
from typing import Annotated, Any

import typer

from ensue.cli import output
from ensue.cli.pub import UrlOption, connect_with_retry
from ensue.client.content.dismissal import forget_durable
from ensue.core.errors import BadInput, TransportError
from ensue.runtime.status import ANSWER_S, chain_status

__all__ = ["mailboxes"]

LIST, FORGET = "list", "forget"

Json = dict[str, Any]


@output.command
def mailboxes(
    action: Annotated[str, typer.Argument(metavar="ACTION", help="list or forget.")],
    name: Annotated[str | None, typer.Argument(help="The durable subscription to forget.")] = None,
    *,
    url: UrlOption = "ensue://127.0.0.1:7400",
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long the servers may take to answer.")
    ] = ANSWER_S,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> int:
    """List the durable subscriptions by content of a chain, or forget one, with its events.

    Its reader, if it has one, gets SubscriptionLost. With users, it must be your own, or you may
    publish and subscribe on '*'.

    Example: [bold]ensue mailboxes forget billing --url ensue://127.0.0.1:7400[/bold]
    """
    if not timeout > 0:
        raise BadInput(f"--timeout: expected a number of seconds above 0, got {timeout:g}")
    if action == LIST:
        if name is not None:
            raise BadInput(f"mailboxes list takes no name, got {name!r}")
        return _list(url, timeout, json=json)
    if action != FORGET:
        raise BadInput(f"mailboxes: expected list or forget, got {action!r}")
    if not name:
        raise BadInput("mailboxes forget needs a name, such as: ensue mailboxes forget billing")
    asyncio.run(_forget(url, name, timeout))
    if json:
        output.print_json({"forgotten": name})
    else:
        output.print_lines([f"{output.plain(name)} is forgotten"])
    return output.EXIT_VALID


async def _forget(url: str, name: str, within_s: float) -> None:
    bus = await connect_with_retry(url, order=None, name=None, wait_s=within_s)
    try:
        async with asyncio.timeout(within_s):
            await forget_durable(bus, name)
    except TimeoutError:
        raise TransportError(
            f"no answer within {within_s:g} s: a server of the chain is away; try again, and it "
            "may be forgotten already"
        ) from None
    finally:
        await bus.close()


def _list(url: str, timeout: float, *, json: bool) -> int:
    found = asyncio.run(chain_status(url, answer_s=timeout))
    listed = found["mailboxes"]
    more = found["mailboxes_count"] - len(listed)
    if json:
        output.print_json({"mailboxes": listed, "count": found["mailboxes_count"]})
    else:
        _print(listed)
        if more:
            output.print_lines([f"and {more:,} more, read more recently"])
    return output.EXIT_VALID if found["complete"] else output.EXIT_UNKNOWN


def _print(listed: list[Json]) -> None:
    output.print_table(
        "mailboxes",
        ("name", "user", "server", "waiting", "bytes", "reader", "filter"),
        [
            (
                output.plain(each["name"]),
                output.plain("another" if each["user"] is None else each["user"] or "-"),
                output.plain(each["server"]),
                f"{each['waiting']:,}",
                f"{each['bytes']:,}",
                "now" if each["has_reader"] else f"{each['idle_s'] / 3600:,.1f} h ago",
                output.plain("-" if each["where"] is None else each["where"]),
            )
            for each in listed
        ],
        right=(3, 4),
    )
    lines = [f"{each['name']}: {each['lost']}" for each in listed if each["lost"]]
    output.print_lines(map(output.plain, lines))

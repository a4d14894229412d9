"""The command `topics`: list the topics of a chain, or move one to another server."""

import asyncio
from typing import Annotated

import typer

from ensue.cli import output
from ensue.cli.pub import UrlOption
from ensue.cli.status import merge_lines, move_lines
from ensue.client.validation import check_topics
from ensue.core.errors import BadInput
from ensue.runtime.status import chain_status
from ensue.runtime.topic_move import MOVE_S, move_topic

__all__ = ["topics"]

LIST, MOVE = "list", "move"


@output.command
def topics(
    action: Annotated[str, typer.Argument(metavar="ACTION", help="list or move.")],
    topic: Annotated[str | None, typer.Argument(help="The topic to move.")] = None,
    *,
    to: Annotated[
        str | None, typer.Option("--to", metavar="SERVER", help="The server to move it to.")
    ] = None,
    url: UrlOption = "ensue://127.0.0.1:7400",
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long the move may take.")
    ] = MOVE_S,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> int:
    """List the topics of a chain with their servers, or move one while events flow.

    From then on another server orders and keeps the topic's new events. The old one keeps those
    that it has, up to its retention; subscribers get all of them, in order. A move that a server
    holds up is given up by itself, or completed by itself once it has switched.

    The list has one line for each server that keeps events of a topic. The current one gets the new
    events.

    Example: [bold]ensue topics move orders --to b --url ensue://127.0.0.1:7400[/bold]
    """
    if not timeout > 0:
        raise BadInput(f"--timeout: expected a number of seconds above 0, got {timeout:g}")
    if action == LIST:
        if topic is not None or to is not None:
            raise BadInput("topics list takes no topic and no --to")
        return _list(url, timeout, json=json)
    if action != MOVE:
        raise BadInput(f"topics: expected list or move, got {action!r}")
    if not topic or not to:
        raise BadInput(
            "topics move needs a topic and --to SERVER, such as: ensue topics move orders --to b"
        )
    check_topics((topic,), cells=True)
    asyncio.run(move_topic(url, topic, to, within_s=timeout))
    if json:
        output.print_json({"topic": topic, "server": to})
    else:
        output.print_lines([f"{topic} is on {to}"])
    return output.EXIT_VALID


def _list(url: str, timeout: float, *, json: bool) -> int:
    found = asyncio.run(chain_status(url, answer_s=timeout))
    listed = sorted(found["topics"], key=lambda each: (each["topic"], each["first"]))
    if json:
        merged_by = found.get("groups", {}).get("merged_by", [])
        under_way = {key: found.get(key, empty) for key, empty in (("moves", []), ("holding", {}))}
        output.print_json({"topics": listed, **under_way, "merged_by": merged_by})
    else:
        output.print_table(
            "topics",
            ("topic", "server", "current", "first", "next"),
            [
                (
                    output.plain(each["topic"]),
                    output.plain(each["server"]),
                    "yes" if each["current"] else "",
                    f"{each['first']:,}",
                    f"{each['next']:,}",
                )
                for each in listed
            ],
            right=(3, 4),
        )
        output.print_lines(map(output.plain, (*move_lines(found), *merge_lines(found))))
    return output.EXIT_VALID if found["complete"] else output.EXIT_UNKNOWN

"""A simple model of causal order, from what applications saw.

It computes which event precedes which, and which events each member must get.
"""

from collections.abc import Sequence

__all__ = ["Seen", "lost", "topic_of", "violations"]

Who = int | str
Seen = Sequence[tuple[Who, str, str]]
"""Node, action ("published", "delivered", "joined" or "left"), and event or topic, in order of
time. Events are named TOPIC/NUMBER."""


def topic_of(event: str) -> str:
    return event.partition("/")[0]


def pasts(seen: Seen, *, across: bool) -> dict[str, set[str]]:
    """Return the causal past of each event, from what its publisher had delivered."""
    known: dict[tuple[Who, str], set[str]] = {}
    past: dict[str, set[str]] = {}
    for node, kind, what in seen:
        if kind not in ("published", "delivered"):
            continue
        mine = known.setdefault((node, "" if across else topic_of(what)), set())
        if kind == "published":
            past[what] = set(mine)
        mine |= past[what] | {what}
    return past


def violations(seen: Seen, *, across: bool) -> list[str]:
    past = pasts(seen, across=across)
    wrong = []
    delivered: dict[Who, list[str]] = {}
    for node, kind, what in seen:
        if kind == "delivered":
            earlier = delivered.setdefault(node, [])
            if what in earlier:
                wrong.append(f"{node} delivered {what} twice")
            wrong += [
                f"{node} delivered {one} before {what}" for one in earlier if what in past[one]
            ]
            earlier.append(what)
    return wrong


def lost(seen: Seen) -> list[str]:
    """Return events that were published after a member joined and never reached it."""
    members: dict[tuple[Who, str], set[str]] = {}
    for node, kind, what in seen:
        if kind == "joined":
            members[node, what] = set()
        elif kind == "left":
            members.pop((node, what), None)
        elif kind == "published":
            for (_, topic), owed in members.items():
                if topic == topic_of(what):
                    owed.add(what)
    got = {(node, what) for node, kind, what in seen if kind == "delivered"}
    return [
        f"{node} never got {event}"
        for (node, _), owed in sorted(members.items())
        for event in sorted(owed)
        if (node, event) not in got
    ]

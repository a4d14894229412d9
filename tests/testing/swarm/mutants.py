"""Planted bugs above the protocols, for the swarm of the whole stack to find.

Each replaces functions of the client, the server, the journal, the runtime or the transports by
ones with a mistake. Those of `DEFECTS` were made once, and found by trials from outside.

    python -m tests.testing.swarm.mutants [--search] [--seeds A:B] [NAME …]

runs each with the seed noted beside it. `--search` looks for the first seed that finds it.
"""

import argparse
import sys

import msgspec
from tests.testing.swarm import content_mutants, mailbox_mutants, noncausal_mutants
from tests.testing.swarm.call_mutants import CALLS, OPERATIONS, RARE
from tests.testing.swarm.cell_mutants import CELLS
from tests.testing.swarm.client_mutants import CLIENT
from tests.testing.swarm.connection_mutants import CONNECTIONS
from tests.testing.swarm.defect_mutants import DEFECTS
from tests.testing.swarm.durable_mutants import DURABLE
from tests.testing.swarm.forgery_mutants import FORGERIES
from tests.testing.swarm.journal_mutants import JOURNAL
from tests.testing.swarm.leak_mutants import LEAKS
from tests.testing.swarm.loss_mutants import LOSSES
from tests.testing.swarm.many_mutants import MANY
from tests.testing.swarm.mishap_mutants import MISHAPS
from tests.testing.swarm.move_mutants import MOVES
from tests.testing.swarm.planted import BrokenMutant, Mutant, find, found_by
from tests.testing.swarm.server_mutants import SERVER
from tests.testing.swarm.topic_mutants import TOPICS
from tests.testing.swarm.transport_mutants import BROKERS, TRANSPORTS

__all__ = ["MUTANTS", "UNFOUND"]

SEEDS_MAX = 2000

NONCAUSAL = tuple(
    Mutant(name, noncausal_mutants.ORDER, (patch,)) for name, patch in noncausal_mutants.BUGS
)

SEEDS = {
    **noncausal_mutants.SEEDS,
    "ended subscriptions get events": 1,
    "events of aborted plans stay": 2,
    "mailboxes have no window": 171,
    "mailboxes skip what was sent": 15,
    "content acks are safe at once": 15,
    "mailboxes need readers": 13,
    "the last ack counts": 89,
    "names have no owners": 4,
    "nothing is repeated on reconnect": 164,
    "a cancelled read loses": 1,
    "failed syncs count": 136,
    "silent members stay": 1,
    "guests stay members": 0,
    "closed buses stay connected": 0,
    "closed buses keep timers": 0,
    "closed buses keep tasks": 0,
    "vanished subscribers stay": 0,
    "gone parties stay": 1,
    "gone listeners stay": 1,
    "gone publishers stay": 0,
    "a moved subscription loses events": 4,
    "a subscription moved by a plan loses events": 1378,
    "two transactions move one subscription": 29,
    "a dead coordinator keeps its timeout": 16,
    "clients believe an empty log": 525,
    "publishers go on with an empty log": 61,
    "servers believe an empty log": 65,
    "merged bounds may differ": 2,
    "the clock is never corrected": 6,
    "unread events miss their deadline": 3,
    "left topics are handed out": 42,
    "a log without files starts anew": 143,
    "relayed claims are believed": 4,
    "relayed messages are believed": 2,
    "a cut end of the log goes unnoticed": 158,
    "a removed start of the log goes unnoticed": 685,
    "a removed end of the log goes unnoticed": 391,
    "a full server refuses its chain": 209,
    "a lost publisher keeps its lease": 52,
    "settled when sent": 65,
    "flush waits for nothing": 36,
    "acks are safe at once": 45,
    "unread events survive leaving": 6,
    "handlers get left topics": 33,
    "shares join at once": 3,
    "shares leave for all": 3,
    "a full share stays paused": 2,
    "a full reader stays paused": 5,
    "a failed bus waits on": 614,
    "answers before records": 39,
    "refusals are silent": 61,
    "answers before sync": 16,
    "lost connections keep names": 52,
    "gone clients keep places": 384,
    "every user may": 2,
    "every user may, merged": 1,
    "marks are forgotten": 217,
    "the registry forgets": 0,
    "the registry is not asked again": 0,
    "settled without asking": 3344,
    "subscriptions by content ignore options": 0,
    "a paused broker holds up newcomers": 6,
    "plans lose first events": 1,
    "a failed block commits": 0,
    "held plans are committed at once": 2,
    "aborted plans are committed": 2,
    "committed transactions are repeated": 7,
    "conflicts are raised at once": 7,
    "recipients are not awaited": 2,
    "invitations by content stay at home": 371,
    "recipients behind are not counted": 2,
    "held plans have no timeout": 57,
    "plans have no order": 1,
    "overflow is silent": 4,
    "invitations answer early": 2,
    "broker forgets": 0,
    "only the last segment is synced": 16,
    "synced is noted first": 17,
    "segments without index": 17,
    "segments confirmed unsynced": 16,
    "names are not synced": 16,
    "short writes count": 53,
    "segments without records": 17,
    "unconfirmed segments are dropped": 232,
    "names are not entered again": 17,
    "streams lose rests": 5,
    "lost connections stay lost": 17,
    "only one target is served": 3,
    "a transaction reaches a slow reader torn": 26,
    "closing waits for ever": 40,
    "a server goes on with a damaged log": 1673,
    "rolled back unnoticed": 314,
    "places stay closed": 11,
    "ended readers go unnoticed": 11,
    "brokers are left for good": 23,
    "places change once": 3,
    "stations do not watch logs": 27,
    "stations ignore refusals": 27,
    "clients do not ask for logs": 487,
    "read places are forgotten": 164,
    "small errors of the clock stay": 29,
    "suspensions stop the clock": 155,
    "silence goes unnoticed": 58,
    "leaving trusts silent connections": 1025,
    "servers keep silent clients": 97,
    "leaving swallows cancellations": 7,
    "a cancelled block stays connected": 7,
    "clients give up slow accepts": 153,
    "every user may read": 32,
    "every user may read, causal": 42,
    "prefixes match their parent": 30,
    "every user may by content": 10,
    "plans act for other users": 32,
    "missed events go unreported": 58,
    "the past has a gap": 0,
    "left timers, operations": 0,
    "gone content sessions stay": 8,
    "closed content stays": 4,
    "content settled when sent": 161,
    "clients leave silently": 36,
    "nodes end too early": 36,
    "a failed session waits on": 23,
    "broker answers early": 17,
    "torn tails stay": 39,
    "headers are dropped": 11,
    "headers are dropped, causal": 40,
    "unread events count": 10,
    "late events go uncounted": 10,
    "late events are dropped all the same": 174,
    "tokens are not observed": 44,
    "tokens cover nothing": 44,
    "advertisements stay": 11,
    "transactions keep advertisements": 11,
    "advertisements are withdrawn twice": 11,
    "plans keep subscriptions": 11,
    "plans keep advertisements": 23,
    "blocks of a plan come first": 11,
    "content acknowledges by itself": 11,
    "gaps are waited for": 12,
    "late events are dropped": 12,
    "time to live is ignored": 78,
    "events in vain reach the application": 0,
    "numbers become text": 0,
    "a publisher forgets an attribute": 0,
    "an event in vain takes a position": 0,
}
"""By bug: a seed that finds it, and finds nothing without it."""

_COMMON = (*DEFECTS, *CLIENT, *SERVER, *JOURNAL, *TRANSPORTS, *BROKERS, *LEAKS, *OPERATIONS)
_ALL = (*_COMMON, *CALLS, *RARE, *DURABLE, *CELLS, *NONCAUSAL)
MUTANTS = (
    *(msgspec.structs.replace(each, hint=SEEDS[each.name]) for each in _ALL if each.name in SEEDS),
    *(Mutant(*each) for each in (*MANY, *MOVES, *TOPICS, *FORGERIES, *CONNECTIONS, *LOSSES)),
    *(Mutant(*each) for each in (*mailbox_mutants.BUGS, *content_mutants.BUGS, *MISHAPS)),
)
UNFOUND = tuple(each for each in _ALL if each.name not in SEEDS)
"""Bugs that no program reaches yet, or that harm nothing that is judged."""


def main() -> None:
    """Print which mistakes are found."""
    parser = argparse.ArgumentParser(description="Plant bugs for the swarm of the whole stack.")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--search", action="store_true", help="search the first seed that finds it")
    parser.add_argument("--seeds", default=f"0:{SEEDS_MAX}")
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(":"))
    for mutant in (*MUTANTS, *(UNFOUND if options.search else ())):
        if options.names and mutant.name not in options.names:
            continue
        seeds = range(first, last) if options.search else [mutant.hint]
        try:
            seed = find(mutant, seeds)
        except BrokenMutant as error:
            sys.stdout.write(f"{error}\n")
            continue
        why = "" if seed is None else found_by(mutant, seed).splitlines()[0][:150]
        sys.stdout.write(f"{mutant.name} ({mutant.order}): {seed} {why}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

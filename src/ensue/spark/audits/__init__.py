"""Audit of whole traces on Spark: whether the promised order was kept.

The rules are those of `ensue.checkers`, which judges a trace in memory; here a trace may be larger
than any memory. Stamps are ignored. An audit has three steps:

1. `collector`: collect subscriptions, and publishers with their topics, and divide each run into
   tiles by time of publication.
2. `delivery_scan`, `tile_scan`, `tile_check`: one pass over all deliveries, which packs them by
   tile. Array operations prove a tile correct, or list its doubtful events. Files sorted by run,
   node and step, as every run writes them, need no sort; others are sorted once.
3. `judge`: the checkers judge the rows of the doubtful events.

A rule that the checkers lack, of an order in its own package (`Promise.judges`), is judged by its
function with one task for each run: the rows of a run must fit into the memory of a task.

Other rules have modules of their own: `positions`, `redelivery`, `latency`, `deadline`,
`topic_causality`, `transactions`.

So a valid trace costs one pass, in time linear in its deliveries. Each task needs the memory of one
tile, for any size of the trace, of a topic or of a subscriber.

HAZARD: with causal order, as by default, a run without true times is one tile: its clocks do not
tell which event was published first. `causal=False` divides such a run, for traces that one task
can't hold.

HAZARD: causal order without total order is proven by arrays only if deliveries agree; otherwise the
checkers judge whole tiles, which is slower by an order of magnitude and needs memory for their
rows. Causal order within topics takes the memory of a topic for each task.
"""

from ensue.spark.audits.collector import Sizes
from ensue.spark.audits.driver import audit
from ensue.spark.audits.result import Audit, Totals

__all__ = ["Audit", "Sizes", "Totals", "audit"]

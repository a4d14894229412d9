"""Audit of whole traces on Spark: whether the promised order was kept.

The rules are those of `ensue.checkers`, which judges a trace in memory; here a trace may be larger
than any memory. Stamps are never looked at. The work goes in three steps:

1. `collector`: who subscribed what and when, who publishes on what topic, and a cut of each run
   into tiles by the time of publication.
2. `delivery_scan`, `tile_scan`, `tile_check`: one pass over all deliveries, which packs them by
   tile; each tile is proven right by arrays, or names the events that are in doubt. Nothing is
   sorted if the files are sorted by run, node and step, as every run writes them; otherwise they
   are, once.
3. `judge`: the doubtful events are judged from their rows by the checkers themselves.

A rule that the checkers lack, of an order in its own package (`Promise.judges`), is judged by its
function with one task for each run: the rows of a run must fit into the memory of a task.

Rules of another kind are judged apart: `positions`, `latency`, `deadline`,
`topic_causality`, `transactions`.

So a valid trace costs one pass, in time linear in its deliveries; memory is that of one tile for
each task, whatever the size of the trace, of a topic or of a subscriber.

HAZARD: a run without true times is one tile where causal order is judged, as it is by default: its
clocks can't say what was published after what. `causal=False` cuts such a run up, for traces that
one task can't hold.

HAZARD: causal order without total order is proven by arrays only where deliveries agree; otherwise
whole tiles are judged by the checkers, which is slower by an order of magnitude and needs memory
for their rows. Causal order within topics takes the memory of a topic for each task.
"""

from ensue.spark.audits.collector import Sizes
from ensue.spark.audits.driver import audit
from ensue.spark.audits.result import Audit, Totals

__all__ = ["Audit", "Sizes", "Totals", "audit"]

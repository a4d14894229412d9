"""The data pipeline on Spark: order whole logs, audit every delivery.

See `docs/reference/spark.md`.

Each name is loaded on first use. Spark starts many Python processes that need a single module of
this package; importing the rest would cost each of them a second.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ensue.core.errors import MissingExtra

if find_spec("pyspark") is None:
    raise MissingExtra(extra="spark", needed_for="ensue.spark")

if TYPE_CHECKING:
    from ensue.spark.audits import Audit, audit
    from ensue.spark.campaigns.campaign import campaign
    from ensue.spark.common_cuts import common_cut
    from ensue.spark.lake.lake import read_table, table_files
    from ensue.spark.lake.pipeline import pipeline
    from ensue.spark.merged_order import merge
    from ensue.spark.order_gaps import gaps
    from ensue.spark.sessions import session
    from ensue.spark.topic_placement import placement
    from ensue.spark.total_order import order
    from ensue.spark.trace_metrics import metrics, write_metrics
    from ensue.spark.traces import read_trace

__all__ = [
    "Audit",
    "audit",
    "campaign",
    "common_cut",
    "gaps",
    "merge",
    "metrics",
    "order",
    "pipeline",
    "placement",
    "read_table",
    "read_trace",
    "session",
    "table_files",
    "write_metrics",
]

_HOMES = {
    "Audit": "ensue.spark.audits",
    "audit": "ensue.spark.audits",
    "campaign": "ensue.spark.campaigns.campaign",
    "common_cut": "ensue.spark.common_cuts",
    "gaps": "ensue.spark.order_gaps",
    "merge": "ensue.spark.merged_order",
    "metrics": "ensue.spark.trace_metrics",
    "order": "ensue.spark.total_order",
    "pipeline": "ensue.spark.lake.pipeline",
    "placement": "ensue.spark.topic_placement",
    "read_table": "ensue.spark.lake.lake",
    "read_trace": "ensue.spark.traces",
    "session": "ensue.spark.sessions",
    "table_files": "ensue.spark.lake.lake",
    "write_metrics": "ensue.spark.trace_metrics",
}
"""The module of each name."""


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)

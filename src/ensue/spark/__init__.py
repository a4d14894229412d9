"""The data pipeline on Spark: order whole logs, audit every delivery.

See `docs/spark.md`.

Each name is loaded on first use. Spark starts many Python processes that need one module of this
package and none of the others, and what the others import takes a second of each.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ensue.errors import MissingExtra

if find_spec("pyspark") is None:
    raise MissingExtra(extra="spark", needed_for="ensue.spark")

if TYPE_CHECKING:
    from ensue.spark.auditing import Audit, audit
    from ensue.spark.campaigns import campaign
    from ensue.spark.cuts import common_cut
    from ensue.spark.lake import read_table, table_files
    from ensue.spark.lake_pipeline import pipeline
    from ensue.spark.measuring import metrics, write_metrics
    from ensue.spark.merging import merge
    from ensue.spark.missing import gaps
    from ensue.spark.ordering import order
    from ensue.spark.placing import placement
    from ensue.spark.sessions import session
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
    "Audit": "ensue.spark.auditing",
    "audit": "ensue.spark.auditing",
    "campaign": "ensue.spark.campaigns",
    "common_cut": "ensue.spark.cuts",
    "gaps": "ensue.spark.missing",
    "merge": "ensue.spark.merging",
    "metrics": "ensue.spark.measuring",
    "order": "ensue.spark.ordering",
    "pipeline": "ensue.spark.lake_pipeline",
    "placement": "ensue.spark.placing",
    "read_table": "ensue.spark.lake",
    "read_trace": "ensue.spark.traces",
    "session": "ensue.spark.sessions",
    "table_files": "ensue.spark.lake",
    "write_metrics": "ensue.spark.measuring",
}
"""Where each name lives."""


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)

"""The data pipeline on Spark: order whole logs, audit every delivery.

See `docs/spark.md`.
"""

from importlib.util import find_spec

from ensue.errors import MissingExtra

if find_spec("pyspark") is None:
    raise MissingExtra(extra="spark", needed_for="ensue.spark")

from ensue.spark.auditing import Audit, audit
from ensue.spark.campaigns import campaign
from ensue.spark.measuring import metrics, write_metrics
from ensue.spark.missing import gaps
from ensue.spark.ordering import order
from ensue.spark.sessions import session
from ensue.spark.traces import read_trace

__all__ = [
    "Audit",
    "audit",
    "campaign",
    "gaps",
    "metrics",
    "order",
    "read_trace",
    "session",
    "write_metrics",
]

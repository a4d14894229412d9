"""The data pipeline on Spark: order whole logs, audit every delivery.

See `docs/spark.md`.
"""

from importlib.util import find_spec

from ensue.errors import MissingExtra

if find_spec("pyspark") is None:
    raise MissingExtra(extra="spark", needed_for="ensue.spark")

from ensue.spark.sessions import session
from ensue.spark.traces import read_trace

__all__ = ["read_trace", "session"]

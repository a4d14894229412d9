"""What lets Spark find `format("ensue")` by itself: it looks for modules named `pyspark_…`."""

from ensue.spark.source import EnsueDataSource as DefaultSource

__all__ = ["DefaultSource"]

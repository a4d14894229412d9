"""Registers `format("ensue")`: Spark searches for modules named `pyspark_…`."""

from ensue.spark.source import EnsueDataSource as DefaultSource

__all__ = ["DefaultSource"]

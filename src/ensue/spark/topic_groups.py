"""Topics that are ordered together, computed from subscriptions.

Topics that share a subscriber are partners; topics connected through partners form a component. A
subscriber of many topics makes every pair of them partners, which is quadratic. So
- components are built from stars: each subscriber links its topics to the first of them, which
  connects the same topics with no more edges than there are subscriptions;
- equal sets of topics are merged and counted first;
- a set of more than `PAIRED_MAX` topics gives no pairs; its topics are listed as `crowded`.

The algorithm is that of Kiveris et al., *Connected Components in MapReduce and Beyond*: large-star
and small-star steps alternate until nothing changes. Each round ends with a checkpoint, because its
query plan would otherwise be twice that of the last round.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ensue.core.errors import LimitReached

__all__ = ["baskets", "components", "crowded", "partners"]

PAIRED_MAX = 256
"""Largest set of topics that is expanded to pairs."""
ROUNDS_MAX = 50
"""Far more than real graphs need: a path of a thousand topics takes 8."""


def baskets(subscriptions: DataFrame) -> DataFrame:
    """Return the sets of topics subscribed together (`topics`), and their `count`."""
    sets = subscriptions.groupBy("subscriber").agg(
        f.array_sort(f.collect_set("topic")).alias("topics")
    )
    return sets.where(f.size("topics") > 1).groupBy("topics").count()


def components(found: DataFrame) -> DataFrame:
    """Return `topic` and `component`, its first topic, of topics with partners."""
    stars = found.select(
        f.element_at("topics", 1).alias("low"),
        f.explode(f.slice("topics", f.lit(2), f.size("topics"))).alias("high"),
    )
    edges = stars.distinct().localCheckpoint()
    known = _fingerprint(edges)
    for _ in range(ROUNDS_MAX):
        edges = _small_star(_large_star(edges)).localCheckpoint()
        seen, known = known, _fingerprint(edges)
        if seen == known:
            centers = edges.select(f.col("low").alias("topic"), f.col("low").alias("component"))
            members = edges.select(f.col("high").alias("topic"), f.col("low").alias("component"))
            return centers.union(members).distinct()
    raise LimitReached(
        f"components: topics still change component after {ROUNDS_MAX} rounds",
        limit="ROUNDS_MAX",
        value=ROUNDS_MAX,
    )


def partners(found: DataFrame) -> DataFrame:
    """Return pairs `left` < `right` of partners, and their common subscribers (`shared`)."""
    pairs = (
        found.where(f.size("topics") <= PAIRED_MAX)
        .select("count", f.explode("topics").alias("left"), "topics")
        .select("left", f.explode("topics").alias("right"), "count")
    )
    return pairs.where("left < right").groupBy("left", "right").agg(f.sum("count").alias("shared"))


def crowded(found: DataFrame) -> DataFrame:
    """Return each `topic` of a set that is too large to expand to pairs."""
    wide = found.where(f.size("topics") > PAIRED_MAX)
    return wide.select(f.explode("topics").alias("topic")).distinct()


def _large_star(edges: DataFrame) -> DataFrame:
    """Link every topic's larger neighbors to its smallest neighbor, or to itself."""
    both = edges.union(edges.select(f.col("high"), f.col("low"))).toDF("topic", "other")
    least = both.groupBy("topic").agg(f.least(f.min("other"), f.first("topic")).alias("least"))
    return (
        both.where("other > topic")
        .join(least, "topic")
        .select(f.col("least").alias("low"), f.col("other").alias("high"))
        .distinct()
    )


def _small_star(edges: DataFrame) -> DataFrame:
    """Link every topic, and its smaller neighbors, to the smallest of them."""
    least = edges.groupBy("high").agg(f.min("low").alias("least"))
    smaller = edges.join(least, "high").where("low > least")
    return (
        smaller.select(f.col("least").alias("low"), f.col("low").alias("high"))
        .union(least.select(f.col("least").alias("low"), "high"))
        .distinct()
    )


def _fingerprint(edges: DataFrame) -> tuple[int, int]:
    """Return a fingerprint: equal for equal sets of edges, and practically only then."""
    row = edges.agg(
        f.count("*").alias("edges"),
        f.sum(f.xxhash64("low", "high").cast("decimal(38,0)")).alias("hashes"),
    ).collect()[0]
    return int(row["edges"]), int(row["hashes"] or 0)

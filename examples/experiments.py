"""Query the results of experiments without Spark: they are Parquet files.

`make experiments` runs all experiments, `python -m experiments run NAME --quick` runs one. Then run
`python examples/experiments.py [DIR]`. Each experiment has one table (`quick.parquet` or
`full.parquet`) with a row per point of a curve, and a folder `cases` with the rows of every case.
"""

import sys
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq


def newest_tables(results: Path) -> list[Path]:
    """Return the newest table of each experiment."""
    tables: dict[str, Path] = {}
    for path in sorted(results.glob("*/*/*.parquet"), key=lambda each: each.stat().st_mtime):
        tables[path.parts[-3]] = path
    return [tables[name] for name in sorted(tables)]


def main() -> None:
    """Print how far our results are from the papers', and the time of the longest case."""
    results = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/experiments")
    tables = newest_tables(results)
    if not tables:
        print(f"no results in {results}: run make experiments")
        return
    for path in tables:
        table = pq.read_table(path)
        cases = ds.dataset(path.parent / "cases").to_table(columns=["seconds"])
        longest = pc.max(cases["seconds"]).as_py()
        print(f"{path.parts[-3]}: {table.num_rows} points, longest case {longest:.1f} s")
        for row in table.to_pylist():
            if row["published"] is None:
                continue
            apart = row["mean"] / row["published"] - 1 if row["published"] else 0.0
            where = f"  {row['figure']}, {row['series']} at {row['x']:g}"
            print(f"{where}: {row['mean']:.4g}, the paper {row['published']:.4g} ({apart:+.0%})")


if __name__ == "__main__":
    main()

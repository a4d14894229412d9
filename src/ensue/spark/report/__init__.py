"""A report of a trace: one self-contained HTML page with plots and verdicts.

    from ensue.spark import session
    from ensue.spark.report import report

    page = report(session(), "runs/demo", order="total")
    page.write("report.html")

`trace_metrics` computes the tables, `figures` collects them on the driver, `verdicts` judges the
runs, and `windows` queries the rows of the space-time diagrams. `page` renders all of it with
`sections`, `charts`, `spacetime` and `svg`, which do not depend on Spark.
"""

from ensue.spark.report.builder import Report, report
from ensue.spark.report.runs import read_runs
from ensue.spark.report.windows import Span

__all__ = ["Report", "Span", "read_runs", "report"]

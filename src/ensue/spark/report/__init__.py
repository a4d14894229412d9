"""A report of a trace: one self-contained HTML page with plots and verdicts.

    from ensue.spark import session
    from ensue.spark.report import report

    page = report(session(), "runs/demo", order="total")
    page.write("report.html")

`trace_metrics` makes the tables, `figures` brings them to the driver, `verdicts` gives the verdict,
`windows` gathers what the space-time diagrams show, and `page` puts it together with `sections`,
`charts`, `spacetime` and `svg`, which know nothing of Spark.
"""

from ensue.spark.report.builder import Report, report
from ensue.spark.report.runs import read_runs
from ensue.spark.report.windows import Span

__all__ = ["Report", "Span", "read_runs", "report"]

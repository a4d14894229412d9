"""The evaluations of the five papers, repeated with production nodes and extended.

`experiment` defines an experiment, `catalog` lists them, `runner` runs one on Spark, `plots` and
`page` show the results. Each package holds the experiments of one paper.
"""

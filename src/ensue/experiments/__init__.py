"""The evaluations of the five papers, repeated with the nodes that run in production, and taken further.

`experiment` says what an experiment is, `catalogue` lists them, `running` plays one on Spark, `plots` and `page` show
what came of it. The other modules are the experiments themselves, a paper each, and what they simulate.
"""

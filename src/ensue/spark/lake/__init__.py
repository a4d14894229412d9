"""A lake: the tables that `ensue pipeline` writes from a recorded run."""

"""Experiments on stamps for total order: their size, and the time to make them."""

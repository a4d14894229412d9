"""Random scenarios for each order, one per seed."""

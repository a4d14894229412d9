"""Pure protocols: no I/O, clock, randomness or await, which are the drivers' work."""

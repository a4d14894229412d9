"""Pure protocols: no I/O, no clock, no randomness, no await. Drivers do all of that."""

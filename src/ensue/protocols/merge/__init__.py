"""Merged order: publishers stamp by their clocks, subscribers sort, nobody is asked."""

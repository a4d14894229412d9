"""Compares Ensue with its peers in one run: `python -m benchmarks.peers`."""

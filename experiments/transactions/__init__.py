"""Experiments of the paper on multi-client transactions, with production nodes."""

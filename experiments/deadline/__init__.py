"""Experiments of the paper on gossip with deadlines, with production nodes."""

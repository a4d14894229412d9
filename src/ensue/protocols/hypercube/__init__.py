"""Causal order with no broker in the middle: spanning trees in a virtual hypercube."""

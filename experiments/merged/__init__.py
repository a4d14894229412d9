"""The bounds of causal deterministic merge, measured."""

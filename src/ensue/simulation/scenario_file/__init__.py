"""Scenarios from TOML files."""

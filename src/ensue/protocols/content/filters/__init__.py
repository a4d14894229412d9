"""Filters over typed attributes: their language, the sets behind it, and a matching index."""

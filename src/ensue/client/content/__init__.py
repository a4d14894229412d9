"""Content-based publish/subscribe and transactions of a bus."""

"""Ordered and transactional publish/subscribe."""

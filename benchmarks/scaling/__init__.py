"""What an event costs as topics, subscribers and runs grow: see `__main__`."""

"""The experiments of the paper on transactions of several clients, with the nodes that run in production."""

"""The experiments of the paper on gossip with deadlines, with the nodes that run in production."""

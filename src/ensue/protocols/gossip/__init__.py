"""Deadline order: causal and on time, or dropped. Brokers multicast to brokers, and gossip to subscribers."""

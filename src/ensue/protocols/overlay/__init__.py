"""Content-based publish/subscribe over a tree of brokers: filters, matching, routing tables, brokers and clients."""

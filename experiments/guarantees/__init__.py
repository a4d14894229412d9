"""All guarantees on the same workload, network and faults."""

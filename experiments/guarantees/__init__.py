"""All guarantees on one workload, one network and the same faults."""

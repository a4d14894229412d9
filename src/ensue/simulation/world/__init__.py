"""The simulated machines: event loop, network, clocks, disks, and their faults."""

"""Features that are off by default: device affinity, devices of claims, steering to a NUMA node."""

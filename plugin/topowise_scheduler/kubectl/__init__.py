"""`kubectl topowise`: the NUMA nodes of a cluster for people."""

"""`kubectl topowise`: what the cluster's NUMA nodes look like, for people."""

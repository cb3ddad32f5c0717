"""Steering: a device plug-in with markers, by which topowise-scheduler chooses the NUMA node on a stock kubelet."""

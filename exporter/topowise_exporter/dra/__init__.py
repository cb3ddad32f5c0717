"""Devices of dynamic resource allocation (DRA): this node's ResourceSlices, and the NUMA nodes of their devices.

In podresources a pod's claim names driver, pool and device, but no NUMA node. ResourceSlices have it, which drivers
publish in the API server (KEP-4381). So this part of a sync is not read from the node: a watch keeps it up to date, and
a sync uses the present state.
"""

"""Devices of dynamic resource allocation (DRA): what this node's ResourceSlices say of them, and where they lie.

A pod's claim names driver, pool and device in podresources, and nothing of NUMA nodes. That is in the ResourceSlices,
which drivers publish in the API server (KEP-4381), so this is the one part of a sync that does not come from the node
itself: it is kept by a watch of its own, and a sync takes what is there.
"""

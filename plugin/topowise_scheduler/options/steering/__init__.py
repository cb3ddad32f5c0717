"""Steering: the choice of a NUMA node for a pod, which the marker plug-in of the node makes the kubelet take."""

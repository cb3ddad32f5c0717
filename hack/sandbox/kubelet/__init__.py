"""Emulated kubelets: real decisions (the scheduler's kubelet model), a real podresources socket, no containers.

A node of the sandbox is a directory: the /sys and /proc of its machine, the kubelet's configuration, its socket and its
state files. A real exporter reads all of it as it would on bare metal.
"""

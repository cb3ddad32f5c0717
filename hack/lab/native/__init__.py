"""Nodes without emulation: a real kubelet in name spaces of this machine, which show it another machine.

The kubelet, its managers and its sockets are real, and so are the exporter and the device plug-ins, which are processes
here. The machine is a /sys of `sandbox.machines`, and a stand-in replaces the container runtime, so no container runs.
A node needs a small part of the CPU time of an emulated guest. All servers listen on loopback; the kubelet makes no
cgroups, and sets no tunables of the kernel.
"""

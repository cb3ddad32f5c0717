"""Real kubelets on emulated NUMA machines: runs the chart, the image and both daemons as in a cluster.

The lab has a control plane on loopback and QEMU guests with the hardware of a machine file. The parts of its test
compare predictions with the decisions of the kubelets. docs/lab.md is made from a recorded run.
"""

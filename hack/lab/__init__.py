"""Real kubelets on emulated NUMA machines: the chart, the image and both daemons where they are to run.

A control plane on loopback, guests of QEMU with the hardware that a machine file tells, and parts of a test that
compare what was predicted with what kubelets did. docs/lab.md is made of a recorded run.
"""

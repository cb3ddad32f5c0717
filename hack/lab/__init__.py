"""Developer tool: real kubelets on machines with several NUMA nodes, and what they make of the predictions.

The lab has a control plane on loopback, and nodes in name spaces that show the hardware of a machine file. The parts of
its test are in `lab.parts`.
"""

"""Which nodes to request from an autoscaler for pods that wait only for alignment.

    node_groups   groups of equal nodes, the empty node of each group, learned from its reported nodes, and how many
                  empty nodes the pods need
    placeholders  the pod that makes an autoscaler add a node, and its state in labels and annotations
    budget        how many nodes may be requested now, and the back-off of a group whose nodes did not help
    lifecycle     when a placeholder ends, and with which outcome

All functions are pure. `leader/scale_up.py` reads and writes the placeholders.
"""

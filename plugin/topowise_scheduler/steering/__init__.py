"""Steering: the choice of a NUMA node for a pod, which the marker plug-in of the node makes the kubelet take."""

from topowise_scheduler.steering.annotation import ANNOTATION, required_numa_node
from topowise_scheduler.steering.choice import Choice, Problem, Views, choose, problem_of

__all__ = ["ANNOTATION", "Choice", "Problem", "Views", "choose", "problem_of", "required_numa_node"]

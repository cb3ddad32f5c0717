"""The soak: random clusters on simulated time, in which every wrong answer must have a cause.

Every component ships, or decides like the real component: kubelets are the kubelet model, and are killed; the
exporter's own code makes the objects, which arrive late, or never; kube-scheduler's cycles and binds overlap; the
service answers bytes with bytes, is killed, and sees pods, nodes and reports at different times. Waiting costs no real
time (sandbox.simulated_time), so a minute of the soak is hours of a cluster.
"""

from soak.tally import Tally
from soak.world import World, play

__all__ = ["Tally", "World", "play"]

"""An adversary that stays: random clusters on simulated time, and what is wrong there must have a reason.

Everything that decides is what ships, or decides like the real thing: kubelets are the one-node model and are killed,
the exporter's own code makes the objects, which come late, or not at all; kube-scheduler's cycles and binds overlap;
the service answers bytes with bytes, is killed, and hears of pods, nodes and reports at different times. What takes
time takes none of ours (sandbox.simulated_time), so a minute of this is hours of a cluster.
"""

from soak.tally import Tally
from soak.world import World, play

__all__ = ["Tally", "World", "play"]

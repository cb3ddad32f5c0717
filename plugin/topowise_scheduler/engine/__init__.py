"""Which nodes a pod fits on, where on them it will go, and how good that is.

`Engine` decides for thousands of nodes at once what `kubelet.Kubelet` decides for one, and never differs from it: what
its arithmetic over counts cannot tell is asked of the model, and counted.
"""

from topowise_scheduler.engine.judgement import Judgement, Outcome
from topowise_scheduler.engine.nodes import Engine
from topowise_scheduler.engine.room import Room, Step
from topowise_scheduler.engine.shape import Shape

__all__ = ["Engine", "Judgement", "Outcome", "Room", "Shape", "Step"]

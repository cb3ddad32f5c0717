"""Hollow nodes: whole nodes without a process, a socket or hardware of their own, some hundreds of them in a process.

What decides is real: the one-node model admits pods as a kubelet would, and the exporter's own decoding and accounting
make the NodeResourceTopology from the bytes its podresources socket would have sent. What takes time (a kubelet under
load, a slow container start, an exporter that polls) takes as long as the test wants it to.
"""

from sandbox.hollow.fleet import Fleet, Refusal
from sandbox.hollow.node import HollowNode
from sandbox.hollow.reporter import Reporting
from sandbox.kubelet.lifecycle import LIFETIME
from sandbox.kubelet.pace import RESTART, Pace, Pause, Startup

__all__ = ["LIFETIME", "RESTART", "Fleet", "HollowNode", "Pace", "Pause", "Refusal", "Reporting", "Startup"]

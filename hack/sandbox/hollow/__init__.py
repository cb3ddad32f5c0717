"""Hollow nodes: whole nodes without a process, a socket or hardware of their own, some hundreds of them in a process.

Decisions are real: the kubelet model admits pods as a kubelet does, and the exporter's own code makes the
NodeResourceTopology from the bytes of a podresources answer. Durations (of a kubelet under load, a slow container
start, an exporter that polls) are parameters of the test.
"""

from sandbox.hollow.fleet import Fleet, HollowNode, Refusal
from sandbox.hollow.reporter import Reporting
from sandbox.kubelet.lifecycle import LIFETIME
from sandbox.kubelet.pace import RESTART, Pace, Pause, Startup

__all__ = ["LIFETIME", "RESTART", "Fleet", "HollowNode", "Pace", "Pause", "Refusal", "Reporting", "Startup"]

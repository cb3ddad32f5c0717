"""What must hold when the dust has settled."""

from __future__ import annotations

from typing import Final

from burst.bench import Bench
from sandbox.hollow import HollowNode, Refusal
from sandbox.kubescheduler.pod import PodInfo
from topowise import pods, quantity

_SHOWN: Final = 12


def assert_no_refusals(bench: Bench) -> None:
    """No kubelet has refused a pod of topowise, except after a race with another scheduler."""
    assert not bench.refusals, f"{len(bench.refusals)} of our pods were refused:\n" + "\n".join(bench.evidence)
    # A kubelet's restart loses devices for a while; CPUs and memory are in its state files.
    assert all(asks_for_devices(refusal) for refusal in bench.overtaken), "\n".join(bench.evidence)
    few = max(1, bench.scenario.pods // 100)
    assert len(bench.raced) <= few, f"{len(bench.raced)} pods lost races:\n" + "\n".join(bench.evidence)
    tolerated = bench.scenario.pods // 20
    assert len(bench.overtaken) <= tolerated, f"{len(bench.overtaken)} pods overtaken:\n" + "\n".join(bench.evidence)


def asks_for_devices(refusal: Refusal) -> bool:
    """Returns whether the pod that was refused needs a device."""
    return any("/" in name for name in pods.needs(refusal.pod).requests)


async def assert_nothing_left_out(bench: Bench) -> None:
    """No pod waits that the kubelet of some node, asked in its true state, would admit."""
    left_out = [
        (info, node) for info in bench.scheduler.pending for node in bench.fleet.nodes.values() if _has_room(info, node)
    ]
    descriptions = [await _describe(bench, info, node) for info, node in left_out[:_SHOWN]]
    assert not left_out, f"{len(left_out)} times a pod waits that a node would take:\n" + "\n".join(descriptions)


def _has_room(info: PodInfo, node: HollowNode) -> bool:
    """By kubelet and NodeResourcesFit; a kubelet lets pass what its node does not know, kube-scheduler does not."""
    known = node.kubelet.allocatable().keys()
    if any(amount > 0 and name not in known for name, amount in info.requests.items()):
        return False
    return node.kubelet.would_admit(info.pod).admitted


async def _describe(bench: Bench, info: PodInfo, node: HollowNode) -> str:
    admission = node.kubelet.would_admit(info.pod)
    placed = {
        name: (placement.numa, placement.cpus and placement.cpus.bit_count())
        for name, placement in admission.placements.items()
    }
    condition = info.condition()
    believed = await bench.services[0].explain(bench.session, info.key, node.name) if bench.services else ""
    requests = {name: quantity.to_text(name, amount) for name, amount in info.requests.items()}
    tried = bench.attempts.get(info.uid, [])
    last = tried[-1].refused.get(node.name) if tried else None
    return "\n".join(
        [
            f"pod {info.key} ({requests}) waits, but {node.name} would place it: {placed}",
            f"  condition: {'none' if condition is None else condition.message}",
            f"  attempts: {len(tried)}, the last said of the node: {last}",
            f"  believed: {believed}",
            f"  queue: {bench.scheduler.queue.counts()}",
        ]
    )

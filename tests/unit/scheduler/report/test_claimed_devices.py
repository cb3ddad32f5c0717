"""Claimed devices in the zones do not change the prediction: the kubelet gives no hints for claimed devices."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from sandbox.exported import exported
from scheduling import configuration, machine
from topowise import nrt, pods
from topowise_scheduler import report
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.report.budget import MAX_DEVICES

from .conftest import pod_of

CONFIG, MACHINE = configuration(), machine()


def claimed(topology: nrt.NodeResourceTopology, count: int = 4) -> nrt.NodeResourceTopology:
    """The object with devices of a DRA driver in its first zone; a single device is free."""
    first, *other_zones = topology.zones or ()
    gpus = nrt.Resource("dra.topowise.io/gpu.nvidia.com", str(count), str(count), "1")
    zones = (msgspec.structs.replace(first, resources=(*(first.resources or ()), gpus)), *other_zones)
    return msgspec.structs.replace(topology, zones=zones)


def without_ids(topology: nrt.NodeResourceTopology) -> nrt.NodeResourceTopology:
    listed = tuple(
        attribute for attribute in topology.attributes or () if not attribute.name.startswith("topowise.io/")
    )
    return msgspec.structs.replace(topology, attributes=listed)


@pytest.mark.parametrize("precision", ["exact", "counts"])
@pytest.mark.parametrize("count", [4, MAX_DEVICES + 1])
def test_claimed_devices_do_not_change_the_node(precision: str, count: int) -> None:
    kubelet = Kubelet(MACHINE, CONFIG)
    assert kubelet.admit(pod_of("a", {"cpu": "2", "memory": "2Gi"})).admitted
    published = exported(MACHINE, CONFIG, kubelet)
    if precision == "counts":
        published = without_ids(published)
    plain, more = report.read(published), report.read(claimed(published, count))
    assert plain.precision == more.precision == precision
    assert more.problems == plain.problems
    assert more.empty is plain.empty
    assert more.held == plain.held
    assert more.placeholders == plain.placeholders


def test_cpus_and_memory_place_a_pod_with_a_claim() -> None:
    def known(_name: report.PodName) -> tuple[str, Mapping[str, int]] | None:
        return None

    node_report = report.read(claimed(exported(MACHINE, CONFIG, Kubelet(MACHINE, CONFIG))))
    pod = msgspec.json.decode(
        b"""{"metadata": {"uid": "b", "name": "b", "namespace": "default"}, "spec": {
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
            "containers": [{"name": "c0", "resources": {
                "limits": {"cpu": "4", "memory": "2Gi"}, "claims": [{"name": "gpu"}]}}]}}""",
        type=pods.Pod,
    )
    # The devices are on NUMA node 0, which has only 3 CPUs. The kubelet does not align claims, so it uses node 1.
    decision = report.kubelet_of(node_report, known).admit(pod)
    assert decision.admitted
    assert decision.placements["c0"].numa == (1,)

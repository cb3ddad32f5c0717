"""Device affinity that only a label makes sure: the kubelet alone would take devices that are too far apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from scheduling import Service, pod
from switched import GPU, NIC, hardware, published
from topowise.kubeletconfig import KubeletConfiguration
from topowise.steering import RESOURCE
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.options.device_affinity.affinity_terms import ANNOTATION
from topowise_scheduler.options.device_affinity.outcomes import Settings
from topowise_scheduler.options.steering.choice import Choice
from topowise_scheduler.options.steering.gate import SteeringOption
from topowise_scheduler.verdicts.refusals import Refusal

TERM = f"require {GPU},{NIC}: pcie-switch"
PREFERRED = f"prefer {GPU},{NIC}: pcie-switch"
CONFIGURATION = KubeletConfiguration(topologyManagerPolicy="restricted", cpuManagerPolicy="none")
# The NUMA node of each device: "g" are GPUs, "n" NICs.
DEVICES = {"g0": 0, "g1": 0, "n0": 0, "n1": 0, "g2": 1, "n2": 1}
# The switch of each device. On NUMA node 1 the GPU and the NIC share a switch.
FAR = {"g0": 0, "g1": 1, "n0": 2, "n1": 2, "g2": 3, "n2": 3}
MIXED = {"g0": 0, "g1": 1, "n0": 0, "n1": 0, "g2": 3, "n2": 3}
FAR_EVERYWHERE = {"g0": 0, "g1": 1, "n0": 2, "n1": 2, "g2": 3, "n2": 4}
# Only on NUMA node 0, which the kubelet alone takes.
NEAR = {"g0": 0, "g1": 0, "n0": 0, "n1": 0, "g2": 3, "n2": 4}


def made(switches: Mapping[str, int], markers: int | None = 8, admits: Any = "sure") -> Service:
    service = Service(markers=lambda name: markers, affinity=Settings(admits=admits))
    service.report(published(Kubelet(hardware(DEVICES), CONFIGURATION), CONFIGURATION, DEVICES, switches))
    return service


def wanting(term: str = TERM, *, is_marked: bool = True, **annotations: str) -> dict[str, Any]:
    sizes = {"cpu": "1", "memory": "1Gi", GPU: "1", NIC: "1", **({RESOURCE: "1"} if is_marked else {})}
    container = {"name": "c", "resources": {"requests": sizes, "limits": sizes}}
    named = {f"topowise.io/{name.replace('_', '-')}": text for name, text in annotations.items()}
    return pod("a", containers=[container], annotations={ANNOTATION: term, **named})


def decided(service: Service, document: dict[str, Any]) -> tuple[str, Choice]:
    """Returns the refusal of n1, and the choice of a NUMA node."""
    record = service.put(document)
    text = service.answers.verdicts(service.question(document, "n1")).refusal(0)
    assert text == service.ledger.gates.all(record, "n1")
    return text, service.ledger.gates.option(SteeringOption).choice(record, "n1")


@pytest.mark.parametrize("switches", [FAR, MIXED])
def test_the_numa_node_on_which_the_devices_are_surely_near_is_chosen(switches: Mapping[str, int]) -> None:
    text, choice = decided(made(switches), wanting())
    assert text is None
    assert choice == Choice(1, 0, (f"device-affinity {TERM}",), is_required=True)


@pytest.mark.parametrize(("switches", "refusal"), [(FAR, Refusal.NOT_NEAR), (MIXED, Refusal.NOT_SURELY_NEAR)])
@pytest.mark.parametrize(("markers", "is_marked"), [(None, True), (8, False)])
def test_without_a_marker_the_node_is_refused(
    switches: Mapping[str, int], refusal: str, markers: int | None, *, is_marked: bool
) -> None:
    text, choice = decided(made(switches, markers), wanting(is_marked=is_marked))
    assert text == refusal
    assert choice.numa is None


def test_no_label_brings_devices_nearer_that_are_far_apart_everywhere() -> None:
    text, choice = decided(made(FAR_EVERYWHERE), wanting())
    assert text == Refusal.NOT_NEAR
    assert choice.refusal == Refusal.NOT_NEAR


def test_nothing_is_sent_where_the_kubelet_alone_surely_takes_near_devices() -> None:
    text, choice = decided(made(NEAR), wanting())
    assert text is None
    assert choice == Choice(None, 0)


def test_a_required_numa_node_and_near_devices_have_to_agree() -> None:
    assert decided(made(FAR), wanting(numa_node="1"))[1].numa == 1
    text, choice = decided(made(FAR), wanting(numa_node="0"))
    assert text == choice.refusal == Refusal.NO_COMMON_NUMA_NODE


@pytest.mark.parametrize("switches", [FAR, MIXED])
def test_a_preferred_term_chooses_the_numa_node_too(switches: Mapping[str, int]) -> None:
    text, choice = decided(made(switches), wanting(PREFERRED))
    assert text is None
    assert choice == Choice(1, 0, (f"device-affinity {PREFERRED}",))


def test_where_possible_devices_are_enough_a_sure_numa_node_is_still_better() -> None:
    text, choice = decided(made(MIXED, admits="possible"), wanting())
    assert text is None
    assert (choice.numa, choice.is_required) == (1, False)
    text, choice = decided(made(FAR, admits="possible"), wanting())
    assert text is None
    assert (choice.numa, choice.is_required) == (1, True)


def test_a_reservation_has_the_devices_of_the_chosen_numa_node() -> None:
    service = made(FAR)
    record = service.put(wanting())
    assert record.needs is not None
    service.ledger.reservations.put(record, record.needs, "n1")
    assert service.node("n1").placements(record.uid)["c"].numa == (1,)

"""Pods of hundreds of containers get the answer of the model, and are booked as the kubelet places them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crowds import many_containers
from examples import examples
from ledger_check import check_ledger
from scheduling import Service, exact, kubelet, pod
from topowise.errors import ParseError
from topowise_scheduler.ledger.pods.records import MAX_CONTAINERS
from topowise_scheduler.overlay import defrag
from topowise_scheduler.overlay.fit_together import FitTogether
from topowise_scheduler.verdicts.engine import Outcome
from topowise_scheduler.verdicts.kube_scheduler import Pod
from topowise_scheduler.verdicts.refusals import Refusal

NODES = ("n1", "n2", "n3")


def large(count: int, amounts: list[dict[str, str]], kinds: list[str]) -> dict[str, Any]:
    """A pod whose containers ask for these amounts in turn; "init" and "sidecar" come before "app"."""
    document = many_containers(count)
    containers = document["spec"]["containers"]
    for number, container in enumerate(containers):
        amount = amounts[number % len(amounts)]
        container["resources"] = {"requests": amount, "limits": amount}
    by_kind: dict[str, list[Any]] = {"init": [], "sidecar": [], "app": []}
    for number, container in enumerate(containers):
        by_kind[kinds[number % len(kinds)]].append(container)
    first = by_kind["app"] or [(by_kind["init"] or by_kind["sidecar"]).pop()]
    sidecars = [{**container, "restartPolicy": "Always"} for container in by_kind["sidecar"]]
    document["spec"] |= {"containers": first, "initContainers": [*by_kind["init"], *sidecars]}
    return document


def service_with(scope: str) -> Service:
    """Nodes that have nothing, some and most of what they have taken."""
    service = Service()
    for name, cpus in zip(NODES, ("", "2", "7"), strict=True):
        service.report(exact(kubelet(), name=name, topologyManagerScope=scope))
        if cpus:
            service.put(pod(f"on-{name}", cpus, node=name))
    return service


AMOUNTS = [
    {"cpu": "1m", "memory": "1Mi"},
    {"cpu": "10m", "memory": "8Mi"},
    {"cpu": "100m", "memory": "1Mi"},
    {"cpu": "1", "memory": "1Mi"},
    {"cpu": "1m", "memory": "64Mi"},
]


@pytest.mark.parametrize("scope", ["container", "pod"])
@given(
    count=st.sampled_from([65, 200, MAX_CONTAINERS]),
    amounts=st.lists(st.sampled_from(AMOUNTS), min_size=1, max_size=3),
    kinds=st.lists(st.sampled_from(["app", "app", "init", "sidecar"]), min_size=1, max_size=3),
)
@settings(max_examples=examples(2), deadline=None)
def test_a_large_pod_gets_the_answer_of_the_model(
    scope: str, count: int, amounts: list[dict[str, str]], kinds: list[str]
) -> None:
    service = service_with(scope)
    record = service.records.decode(msgspec.json.encode(large(count, amounts, kinds)))
    assert record.requests is not None
    outcomes = service.answers.verdicts_of(record, NODES).outcomes
    for at, name in enumerate(NODES):
        kubelet = service.node(name)
        admitted = kubelet.fork().admit_view(record.view(kubelet)).admitted
        assert (outcomes[at] == Outcome.FITS) == admitted, name


def test_a_large_pod_that_runs_is_booked_as_its_kubelet_has_placed_it() -> None:
    """Another scheduler has bound it."""
    service = service_with("container")
    amounts = [{"cpu": "1", "memory": "1Mi"}, *[{"cpu": "1m", "memory": "1Mi"}] * 99]
    before = service.free("n1")
    record = service.put({**(document := large(100, amounts, ["app"])), "spec": {**document["spec"], "nodeName": "n1"}})
    assert (record.status.stage, record.problem) == ("assigned", None)
    assert len(service.node("n1").placements(record.uid)) == 100
    assert sum(before) - sum(service.free("n1")) == 1
    service.ledger.drop_pod(record.uid)
    assert service.free("n1") == before
    check_ledger(service.ledger)


def test_a_large_pod_is_booked_at_its_bind_as_the_model_places_it() -> None:
    service = service_with("container")
    amounts = [{"cpu": "1", "memory": "1Mi"}, *[{"cpu": "1m", "memory": "1Mi"}] * 99]
    record = service.put(large(200, amounts, ["app"]))
    assert record.needs is not None
    before = sum(service.free("n1"))
    assert service.ledger.reservations.assume(record, record.needs, "n1") is None
    assert before - sum(service.free("n1")) == 2
    refused = service.put({**large(200, [{"cpu": "1", "memory": "1Mi"}], ["app"]), "metadata": METADATA})
    assert refused.needs is not None
    assert service.ledger.reservations.assume(refused, refused.needs, "n2")
    check_ledger(service.ledger)


METADATA = {"name": "other", "namespace": "default", "uid": "uid-other"}


async def test_a_pod_beyond_the_bound_fits_with_no_other_pod_and_moves_no_pod() -> None:
    service = service_with("container")
    large_pod = msgspec.convert(many_containers(MAX_CONTAINERS + 1), Pod)
    fit, _ = await service.fitting().fit(FitTogether(pods=(large_pod,)))
    assert (fit.fits, Refusal.TOO_LARGE in fit.refused) == (False, True)
    with pytest.raises(ParseError, match=f"at most {MAX_CONTAINERS} containers"):
        defrag.plan(service.trial, large_pod, 1, [], 1)

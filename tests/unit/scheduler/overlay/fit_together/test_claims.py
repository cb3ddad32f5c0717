"""Groups of pods with claims: each pod takes its devices from the next."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import pytest

from claim_objects import ClaimService, claiming
from refusal_words import refusals
from scheduling import Service, exact, kubelet, pod
from topowise_scheduler.serve.extender.explaining import fit_together


def answer(service: Service, *documents: dict[str, Any]) -> dict[str, Any]:
    """Returns what POST /fit-together answers."""
    body = json.dumps({"pods": documents}).encode()
    reply = asyncio.run(partial(fit_together, service.fitting(), lambda: None)(body))
    found: dict[str, Any] = json.loads(reply.body)
    return found


def service(*numa: int) -> ClaimService:
    """Returns a service with a node, whose devices are on these NUMA nodes, and two claims."""
    cluster = ClaimService()
    cluster.add_node("n1", *numa)
    for name in ("a", "b"):
        cluster.put_claim(name)
    return cluster


PODS = claiming("p", "2", "a", alignment="require"), claiming("q", "2", "b", alignment="require")


def test_a_device_is_for_one_pod_of_the_group() -> None:
    found = answer(service(0), *PODS)
    assert [placed["pod"] for placed in found["placements"]] == ["default/p"]
    assert not found["fits"]
    assert "cannot allocate all claims" in found["why"]
    assert "notExamined" not in found


@pytest.mark.parametrize(("numa", "fits"), [((0, 1), True), ((0, 0), False)])
def test_each_pod_is_near_its_own_device(numa: tuple[int, int], fits: bool) -> None:
    """The first pod takes NUMA node 0, and the kubelet places the second on NUMA node 1."""
    found = answer(service(*numa), *PODS)
    assert found["fits"] == fits
    assert fits or refusals.CLAIMS_APART in found["why"]


def test_a_node_whose_devices_are_taken_is_no_place() -> None:
    cluster = service(0)
    cluster.put_claim("other", 1, ["gpu-0"])
    found = answer(cluster, PODS[0])
    assert (found["fits"], found["placements"]) == (False, [])
    assert "cannot allocate all claims" in found["why"]


def test_what_is_not_examined_is_said() -> None:
    """The claims of a template do not exist yet, so their devices are not known."""
    cluster = service(0)
    template = pod("t", "2", resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "gpus"}])
    found = answer(cluster, template)
    assert (found["fits"], found["notExamined"]) == (True, ["resource claims"])
    plain = Service()
    plain.report(exact(kubelet()))
    assert answer(plain, template)["notExamined"] == ["resource claims"]
    volumes = pod("v", "1", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "x"}}])
    assert answer(plain, volumes)["notExamined"] == ["volumes"]
    assert "notExamined" not in answer(plain, pod("p", "1"))

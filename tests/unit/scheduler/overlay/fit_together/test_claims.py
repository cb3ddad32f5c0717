"""Groups of pods with claims: each pod takes its devices from the next."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import pytest

from claim_objects import ClaimService, claiming, device_slice, from_templates, sized_slice, template
from refusal_words import refusals
from scheduling import Service, exact, kubelet, pod
from topowise_scheduler.options.claims.watch import decode_template
from topowise_scheduler.overlay.fit_together import FitTogether
from topowise_scheduler.serve.extender.explaining import fit_together
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.kube_scheduler import Pod


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


def test_pods_that_share_a_claim_get_its_devices_together() -> None:
    """A node has 3 and 4 CPUs: the third pod of 3 CPUs cannot follow the others, whatever another node has."""
    cluster = service(0)
    cluster.add_node("n2", 0)
    pods = [claiming(name, "3", "a") for name in ("p", "q", "r")]
    found = answer(cluster, *pods[:2], claiming("other", "3", "b"))
    assert [placed["node"] for placed in found["placements"]] == ["n1", "n1", "n2"]
    found = answer(cluster, *pods)
    assert not found["fits"]
    assert [placed["pod"] for placed in found["placements"]] == ["default/p", "default/q"]


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


@pytest.mark.parametrize(("numa", "fits"), [((0, 1), True), ((0, 0), False), ((0,), False)])
def test_a_template_is_what_its_claims_will_be(numa: tuple[int, ...], fits: bool) -> None:
    cluster = service(*numa)
    cluster.put_template("gpus")
    found = answer(cluster, *(from_templates(name, "2", "gpus", alignment="require") for name in ("p", "q")))
    assert (found["fits"], "notExamined" in found) == (fits, False)


def test_a_pod_takes_a_device_for_each_claim_of_a_template() -> None:
    cluster = service(0, 0)
    cluster.put_template("gpus")
    cluster.put_template("pairs", 2)
    fitting = {
        names: answer(cluster, from_templates("p", "1", *names))["fits"]
        for names in (("gpus", "gpus"), ("gpus", "gpus", "gpus"), ("pairs",), ("gpus", "pairs"))
    }
    assert [names for names, fits in fitting.items() if fits] == [("gpus", "gpus"), ("pairs",)]


def test_the_copies_of_a_template_have_shares_of_their_own() -> None:
    """A device that two claims may share has capacity for two pods, not for three."""
    cluster = service()
    document = device_slice("n1", (0,))
    document["spec"]["devices"][0] |= {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "20Gi"}}}
    cluster.claims.put_slice(sized_slice(document))
    shared = template("shares")
    shared["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": {"memory": "10Gi"}}
    document["spec"]["devices"][0]["capacity"]["memory"]["requestPolicy"] = {
        "default": "10Gi",
        "validRange": {"min": "10Gi"},
    }
    cluster.claims.put_slice(sized_slice(document))
    cluster.claims.put_claim(decode_template(json.dumps(shared).encode()))
    pods = [from_templates(name, "1", "shares") for name in ("p", "q", "r")]
    assert [answer(cluster, *pods[:number])["fits"] for number in (1, 2, 3)] == [True, True, False]


def test_a_reservation_keeps_the_devices_of_a_template() -> None:
    cluster = service(0)
    cluster.put_template("gpus")
    fitting = cluster.fitting(most_reserved=8)
    request = FitTogether(template=decoded_pod(from_templates("t", "1", "gpus")), reserve_seconds=60)
    placement, name = asyncio.run(fitting.fit(request))
    assert placement.fits
    assert not answer(cluster, PODS[0])["fits"]
    fitting.release(name)
    assert answer(cluster, PODS[0])["fits"]


def test_a_pod_is_explained_by_the_template_of_its_claims() -> None:
    cluster = service(1)
    document = decoded_pod(from_templates("p", "2", "gpus"))
    (explanation,) = cluster.view.explanations(document, ["n1"])
    assert "ResourceClaimTemplate gpus is not known" in explanation.text
    cluster.put_template("gpus")
    (explanation,) = cluster.view.explanations(document, ["n1"])
    assert "its claimed devices are to be on NUMA node 1" in explanation.text
    assert not explanation.not_looked_at
    cluster.put_template("pairs", 2)
    (explanation,) = cluster.view.explanations(decoded_pod(from_templates("p", "2", "pairs")), ["n1"])
    assert explanation.verdict == "not now"
    assert "1 of 2 devices" in explanation.text


def decoded_pod(document: dict[str, Any]) -> Pod:
    del document["metadata"]["uid"]
    return kube_scheduler.decode(json.dumps(document).encode())


def test_what_is_not_examined_is_said() -> None:
    """Without the template of its claims, their devices are not known."""
    cluster = service(0)
    unknown = from_templates("t", "2", "gpus")
    found = answer(cluster, unknown)
    assert (found["fits"], found["notExamined"]) == (True, ["resource claims"])
    plain = Service()
    plain.report(exact(kubelet()))
    assert answer(plain, unknown)["notExamined"] == ["resource claims"]
    volumes = pod("v", "1", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "x"}}])
    assert answer(plain, volumes)["notExamined"] == ["volumes"]
    assert "notExamined" not in answer(plain, pod("p", "1"))

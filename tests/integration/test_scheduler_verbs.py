"""Binds, requeues and explanations of the service with an API server, and its gRPC interface."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest

from api_objects import PODS, create_pod, publish
from daemons import Start, assert_eventually
from refusal_words import refusals
from sandbox.apiserver import ApiServer
from scheduler_process import Service
from scheduling import NODE_STATUS, counts
from scheduling import pod as pod_of
from topowise.kube.api import MERGE_PATCH, Api
from topowise.wire import scoring_pb2, scoring_pb2_grpc

pytestmark = pytest.mark.own_time


async def read(api: Api, name: str) -> Any:
    return json.loads(await api.request("GET", f"{PODS}/{name}"))


@pytest.fixture
async def service(server: ApiServer, api: Api, tmp_path: Path, start: Start) -> Service:
    for name in ("n1", "n2"):
        server.create("nodes", {"metadata": {"name": name}, "status": NODE_STATUS})
        await publish(api, counts(name, ("8", "8"), included=()))
    service = Service(server, tmp_path)
    service.config["grpc"] = {"socket": str(tmp_path / "scoring.sock")}
    await start("topowise_scheduler", "serve", config=service.config)
    await assert_eventually(service.is_ready)
    return service


async def bind(service: Service, pod: dict[str, Any], node: str, session: aiohttp.ClientSession, uid: str = "") -> str:
    meta = pod["metadata"]
    sent = {
        "PodName": meta["name"],
        "PodNamespace": meta["namespace"],
        "PodUID": uid or meta["uid"],
        "Node": node,
    }
    _, _, text = await service.post("bind", json.dumps(sent).encode(), session)
    return str(json.loads(text)["Error"])


async def test_bind_binds_a_pod_it_was_asked_about(service: Service, server: ApiServer, api: Api) -> None:
    pod = create_pod(server, "a", "6")
    async with aiohttp.ClientSession() as session:
        assert (await service.ask("filter", pod, ["n1", "n2"], session))["NodeNames"] == ["n1", "n2"]
        assert await bind(service, pod, "n1", session) == ""
        assert (await read(api, "a"))["spec"]["nodeName"] == "n1"
        # The booking is immediate and does not wait for the watch.
        assert (await service.ask("filter", pod_of("b", "8"), ["n1"], session))["NodeNames"] == ["n1"]
        assert (await service.ask("filter", pod_of("c", "8"), ["n1"], session))["NodeNames"] == []


async def test_bind_checks_again_and_says_no(service: Service, server: ApiServer, api: Api) -> None:
    first, second, third = (create_pod(server, name, "8") for name in "abc")
    async with aiohttp.ClientSession() as session:
        for pod in (first, second):
            assert await bind(service, pod, "n1", session) == ""
        assert "TopologyAffinityError" in await bind(service, third, "n1", session)
        assert "nodeName" not in (await read(api, "c"))["spec"]
        assert await bind(service, third, "n2", session) == ""


async def test_a_refused_pod_is_requeued_when_a_report_shows_free_capacity(
    service: Service, server: ApiServer, api: Api
) -> None:
    for name in ("n1", "n2"):
        await publish(api, counts(name, ("1", "1"), included=["gone"]))
    pod = create_pod(server, "a", "4")
    async with aiohttp.ClientSession() as session:

        async def refused() -> bool:
            return (await service.ask("filter", pod, ["n1", "n2"], session))["NodeNames"] == []

        await assert_eventually(refused)
        message = f"0/2 nodes are available: 2 {refusals.NOT_NOW}."
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        body = json.dumps({"status": {"conditions": [condition]}}).encode()
        await api.request("PATCH", f"{PODS}/a/status", body=body, content_type=MERGE_PATCH)
        await publish(api, counts("n2", ("8", "1"), included=()))

        async def requeued() -> bool:
            return "topowise.io/requeued" in ((await read(api, "a"))["metadata"].get("annotations") or {})

        await assert_eventually(requeued)
        assert (await service.ask("filter", pod, ["n1", "n2"], session))["NodeNames"] == ["n2"]


async def test_explain_by_name_and_by_manifest(service: Service, server: ApiServer, api: Api) -> None:
    create_pod(server, "a", "6")
    url = f"{service.pages}/explain"
    async with aiohttp.ClientSession() as session:
        async with session.get(url, params={"pod": "default/a"}) as response:
            explained = json.loads(await response.read())
        assert [(row["node"], row["verdict"], row["precision"]) for row in explained] == [
            ("n1", "fits", "counts"),
            ("n2", "fits", "counts"),
        ]
        (step,) = explained[0]["steps"]
        assert (step["container"], step["chosen"]) == ("c", [0])
        assert step["resources"] == [
            {
                "resource": "cpu",
                "asked": 6,
                "fits": True,
                "zones": [{"numa": zone, "available": 8, "allocatable": 8, "fits": True} for zone in (0, 1)],
            }
        ]
        manifest = (
            b"apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec:\n  containers:\n  - name: c\n    resources:\n"
        )
        manifest += b"      limits: {cpu: 9, memory: 1Gi}\n"
        yaml = {"Content-Type": "application/yaml"}
        async with session.post(url, params={"node": "n2"}, data=manifest, headers=yaml) as response:
            (row,) = json.loads(await response.read())
        assert (row["node"], row["verdict"], row["reason"]) == ("n2", "never", "TopologyAffinityError")
        assert "needs cpu 9" in row["text"]
        for params in ({"pod": "a"}, {"pod": "default/nobody"}):
            async with session.get(url, params=params) as response:
                assert "pod" in json.loads(await response.read())["error"]


async def test_grpc_answers_the_same(service: Service, server: ApiServer, api: Api) -> None:
    pod = json.dumps(pod_of("x", "6")).encode()
    async with grpc.aio.insecure_channel(f"unix:{service.config['grpc']['socket']}") as channel:
        stub = scoring_pb2_grpc.ScoringStub(channel)
        filtered = await stub.Filter(scoring_pb2.FilterRequest(pod=pod, nodes=["n1", "unknown-node"]), timeout=5)
        assert list(filtered.verdicts) == [scoring_pb2.VERDICT_FITS, scoring_pb2.VERDICT_FITS]
        large = json.dumps(pod_of("x", "9")).encode()
        refused = await stub.Filter(scoring_pb2.FilterRequest(pod=large, nodes=["n1"]), timeout=5)
        assert list(refused.verdicts) == [scoring_pb2.VERDICT_UNRESOLVABLE]
        assert refused.reasons[refused.reason_index[0]] == refusals.NEVER
        scored = await stub.Score(scoring_pb2.ScoreRequest(pod=pod, nodes=["n1", "n2"]), timeout=5)
        assert len(scored.scores) == 2
        explained = await stub.Explain(scoring_pb2.ExplainRequest(pod=pod, nodes=["n1"]), timeout=5)
        assert explained.details == ["container c goes to NUMA node 0 (cpu 6)"]
        server.create("nodes", {"metadata": {"name": "n3"}, "spec": {"unschedulable": True}, "status": NODE_STATUS})
        volume = {"name": "v", "persistentVolumeClaim": {"claimName": "v"}}
        pod = json.dumps(pod_of("x", "6", volumes=[volume], nodeSelector={"pool": "a"})).encode()

        async def is_excluded() -> bool:
            question = scoring_pb2.ExplainRequest(pod=pod, nodes=["n3", "n1", "n4"])
            explained = await stub.Explain(question, timeout=5)
            assert set(explained.verdicts) == {scoring_pb2.VERDICT_UNRESOLVABLE}
            assert list(explained.not_looked_at) == ["volumes"]
            return [text.partition(": ")[0] for text in explained.details] == [
                "node(s) were unschedulable",
                "node(s) didn't match Pod's node affinity/selector",
                "node(s) without a Node object",
            ]

        await assert_eventually(is_excluded)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Filter(scoring_pb2.FilterRequest(pod=b"{", nodes=["n1"]), timeout=5)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

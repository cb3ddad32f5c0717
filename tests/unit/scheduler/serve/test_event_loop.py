"""Work is done in slices, for every kind of request and event.

The clusters are small here, so that the tests take seconds. What is counted is turns of the loop. The limit of ten
milliseconds of CPU is measured on whole clusters by tests/e2e/test_event_loop.py: a busy machine makes CPU time longer,
so only work without slices exceeds the limit here.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest

from crowds import ask, cluster, consumers, look, many_containers, names, records, relist, reports, requeueing, waiting
from ledger_check import check_ledger
from refusal_words import refusals
from scheduling import WAITS, Service, exact, kubelet, pod
from topowise.runtime import event_loop as event_loop
from topowise.runtime.event_loop import SLICE_S, collected, sliced
from topowise.wire import scoring_pb2
from topowise_scheduler.controllers.alignment import AlignmentPreemption
from topowise_scheduler.ledger.budgets import Budgets, decode_budget
from topowise_scheduler.ledger.pods.records import MAX_CONTAINERS
from topowise_scheduler.overlay.fit_together import FitTogether
from topowise_scheduler.serve import grpc_api
from topowise_scheduler.verdicts.kube_scheduler import Pod
from watchdog import idle_share, watchdog

NODES = 120
MOST_MS = 40.0


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    # On a machine that finishes all work within a slice the work still has steps.
    monkeypatch.setattr(event_loop, "SLICE_S", SLICE_S / 25)
    started = cluster(NODES)
    # The first question of a process fills tables that all questions share.
    started.answers.fits(started.records.decode(msgspec.json.encode(pod("first"))), names(NODES))
    # The daemon does the same: the garbage collector skips existing objects.
    gc.collect()
    gc.freeze()
    yield started
    gc.unfreeze()


async def test_a_watchdog_names_the_code_that_blocks_the_loop() -> None:
    async with watchdog() as dog:
        until = time.thread_time() + 3e-3 * MOST_MS
        while time.thread_time() < until:
            pass
    assert dog.longest_ms > MOST_MS


async def test_steps_are_done_in_slices_and_in_their_order() -> None:
    async with watchdog() as dog:
        steps = await collected(None if number % 2 else sum(range(number)) for number in range(0, 20_000, 15))
        await sliced(())
    assert steps == [sum(range(number)) for number in range(0, 20_000, 30)]
    assert dog.longest_ms < 1e3 * SLICE_S + MOST_MS
    assert dog.turns > 3


async def test_two_hundred_kinds_of_waiting_pods_and_then_nothing_to_do(service: Service) -> None:
    waiting(service, 200)
    for number in range(NODES):
        service.put(pod(f"full{number}", "7", node=names(NODES)[number]))
    async with watchdog() as dog:
        task = await requeueing(service)
        await asyncio.sleep(0.3)
    # The remaining pods are tried, and then no work is left.
    for _ in range(50):
        if (share := await idle_share(0.2)) < 0.1:
            break
    assert share < 0.1
    task.cancel()
    assert dog.longest_ms < MOST_MS


async def test_a_dashboard_is_read_in_slices(service: Service) -> None:
    waiting(service, 25)
    for name in names(NODES):
        service.put_node(name)
    async with watchdog() as dog:
        page, *_ = await look(service, "/ui", "/ui?resource=memory", "/ui?state=marked", "/ui?node=n00000")
    assert page.count(b"data-pod=") == 20
    assert f"and {NODES - 100} more".encode() in page
    assert dog.turns > 20
    assert dog.longest_ms < MOST_MS


async def test_a_list_of_pods_and_reports_is_taken_in_step_by_step(service: Service) -> None:
    collections = consumers(service)
    async with watchdog() as dog:
        await relist(collections["pods"], records(service, NODES, 3))
        await relist(collections["noderesourcetopologies"], list(reports(NODES, "2")))
        await relist(collections["pods"], records(service, NODES, 2, first=1))
    # Making the lists is not the service's work.
    assert dog.turns > 20
    check_ledger(service.ledger)
    assert {uid for uid, _ in service.ledger.pods} == {record.uid for record in records(service, NODES, 2, first=1)}


async def test_what_time_changes_is_looked_for_node_by_node(service: Service) -> None:
    watched = consumers(service)
    await relist(watched["pods"], records(service, NODES, 3))
    assert len(service.ledger.node_states.possible.items()) == NODES
    # The pods of every node are looked at for what time changes, and then its report for whether it is outdated.
    assert sum(1 for _ in service.ledger.ticking()) == 2 * NODES


async def test_a_list_of_nodes_is_taken_in_step_by_step(service: Service) -> None:
    collection = consumers(service)["nodes"]
    listed = [service.nodes.decode(msgspec.json.encode({"metadata": {"name": name}})) for name in names(15_000)]
    async with watchdog() as dog:
        await relist(collection, listed)
        await relist(collection, listed[1:])
    assert len(service.nodes) == len(service.ledger.reports.nodes) == 14_999
    assert dog.turns > 10
    assert dog.longest_ms < MOST_MS


async def test_ten_thousand_budgets_are_listed_step_by_step() -> None:
    budgets = Budgets()
    listed = [
        decode_budget(
            msgspec.json.encode(
                {
                    "metadata": {"name": f"b{number}", "namespace": "default"},
                    "spec": {"selector": {"matchLabels": {"app": f"a{number}"}}},
                    "status": {"disruptionsAllowed": 1},
                }
            )
        )
        for number in range(10_000)
    ]
    async with watchdog() as dog:
        await sliced(budgets.replace(listed))
        matching = budgets.matching("p", "default", {"app": "a77"})
    assert matching == ("default/b77",)
    assert dog.turns > 3
    assert dog.longest_ms < MOST_MS
    assert len(budgets) == 10_000


@pytest.mark.parametrize(
    ("document", "fitting", "turns"),
    [
        pytest.param(many_containers(60), 0, 3, id="refused everywhere"),
        # Its containers go through the whole admission, as no node refuses it in between.
        pytest.param(many_containers(MAX_CONTAINERS, "1m", "1Mi"), NODES, 20, id="fits"),
    ],
)
async def test_a_pod_of_many_containers_is_judged_in_slices(
    service: Service, document: dict[str, Any], fitting: int, turns: int
) -> None:
    async with watchdog() as dog:
        answer = msgspec.json.decode(await ask(service, "filter", document, names(NODES)))
    assert (len(answer["NodeNames"]), len(answer["FailedAndUnresolvableNodes"])) == (fitting, NODES - fitting)
    assert not answer["Error"]
    assert dog.turns > turns
    assert dog.longest_ms < 2 * MOST_MS


async def test_a_node_deleted_while_an_answer_is_prepared_is_not_confused_with_its_successor(service: Service) -> None:
    """The node has no report, so nothing refuses the pod there. No other node has so many CPUs."""
    for number, ask_of in enumerate((preempted, by_grpc)):
        gone, document = names(NODES)[number], many_containers(60 - number)
        task = asyncio.create_task(ask_of(service, document))
        await asyncio.sleep(0)
        service.ledger.reports.drop(gone)
        service.report(exact(kubelet(), name=f"another-{number}"))
        assert await task == {gone}


async def preempted(service: Service, document: dict[str, Any]) -> set[str]:
    proposed = {name: {"Pods": [{"UID": "v"}], "NumPDBViolations": 0} for name in names(NODES)}
    body = msgspec.json.encode({"Pod": document, "NodeNameToMetaVictims": proposed})
    return set(msgspec.json.decode((await service.verbs().preempt(body)).body)["NodeNameToMetaVictims"])


async def by_grpc(service: Service, document: dict[str, Any]) -> set[str]:
    scoring = grpc_api.ScoringService(service.answers, service.view, service.fitting(), lambda: None)
    request = scoring_pb2.FilterRequest(pod=msgspec.json.encode(document), nodes=names(NODES)[1:])
    response = await scoring.Filter(request, cast(grpc_api.Context, None))
    return {name for name, verdict in zip(request.nodes, response.verdicts, strict=True) if verdict == 1}


async def test_changes_of_nodes_do_not_delay_the_answer_for_a_large_pod(service: Service) -> None:
    """The nodes that have changed are judged in steps again, but not for ever."""
    document = many_containers(MAX_CONTAINERS, "1m", "1Mi")

    async def change() -> None:
        for number in range(10_000):
            name = names(NODES)[number % NODES]
            service.put(pod(f"b{number}", node=name))
            await asyncio.sleep(0)

    changing = asyncio.create_task(change())
    answer = msgspec.json.decode(await ask(service, "filter", document, names(NODES)))
    assert not changing.done()
    changing.cancel()
    assert not answer["Error"]
    judged = {*answer["NodeNames"], *answer["FailedNodes"], *answer["FailedAndUnresolvableNodes"]}
    assert judged == set(names(NODES))


@pytest.mark.parametrize("containers", [MAX_CONTAINERS + 1, 20_000])
async def test_a_pod_of_more_containers_is_refused_at_once_and_for_good(service: Service, containers: int) -> None:
    """An Error would be tried again for ever."""
    document = many_containers(containers)
    async with watchdog() as dog:
        answer = msgspec.json.decode(await ask(service, "filter", document, names(NODES)))
    assert answer == {
        "Nodes": None,
        "NodeNames": [],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": dict.fromkeys(names(NODES), refusals.TOO_LARGE),
        "Error": "",
    }
    # Making the request is the test's own work.
    assert dog.turns >= 1
    again = msgspec.json.decode(await ask(service, "filter", document, names(NODES)))
    assert again == answer
    scores = msgspec.json.decode(await ask(service, "prioritize", document, names(NODES)))
    assert {score["Score"] for score in scores} == {0}
    assert not service.answers.fits(service.put(document), names(NODES)).any()
    service.answers.expect(service.question(document, *names(NODES)), 0)
    assert not len(service.ledger.reservations)
    assert await preempted(service, document) == set()
    assert await by_grpc(service, document) == set()
    explained = msgspec.json.decode(await ask(service, "explain", document, []))
    assert {score["verdict"] for score in explained} == {"never"}
    assert f"at most {MAX_CONTAINERS} containers, it has {containers}" in explained[0]["text"]


async def test_nodes_for_a_preemption_are_looked_for_in_slices(service: Service) -> None:
    """kube-scheduler refuses all nodes: the sum of free CPUs is too small."""
    for name in names(NODES):
        service.put_node(name)
    for record in records(service, NODES, 12):
        service.ledger.put_pod(record, is_news=False)
    alignment = AlignmentPreemption(service.trial, Budgets())
    preemptor = msgspec.convert(pod("w", "3", priority=5, conditions=WAITS), Pod)
    list(service.trial.refusals(service.trial.record(preemptor), names(1)))
    async with watchdog() as dog:
        assert await alignment.choose(preemptor, 10, ()) is None
    assert dog.turns > 1
    assert dog.longest_ms < MOST_MS


@pytest.mark.parametrize("containers", [1, 60])
async def test_pods_are_placed_together_in_slices(service: Service, containers: int) -> None:
    """All nodes are cordoned; many containers no node could take."""
    for name in names(NODES):
        service.put_node(name, {"unschedulable": True})
    request = FitTogether(pods=(msgspec.convert(many_containers(containers), Pod),))
    async with watchdog() as dog:
        fit, _ = await service.fitting().fit(request)
    assert not fit.fits
    assert dog.turns > 2
    assert dog.longest_ms < 2 * MOST_MS


async def test_an_explanation_of_all_nodes_is_made_in_slices(service: Service) -> None:
    async with watchdog() as dog:
        answer = msgspec.json.decode(await ask(service, "explain", pod("a", "2"), []))
    assert {row["node"] for row in answer} == set(names(NODES))
    assert dog.turns > 5
    assert dog.longest_ms < MOST_MS

"""Commands answer as the service, fits equals the kubelets' admissions, and exit statuses mean yes, no and error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from scheduling import Service
from topowise import nrt, pods
from topowise.errors import SourceError
from topowise_scheduler.kubectl import __main__ as program
from topowise_scheduler.kubectl import arguments, cluster, simulate
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.verdicts import kube_scheduler

from .conftest import Ask, Save


def manifest(tmp_path: Path, *documents: dict[str, Any]) -> str:
    file = tmp_path / "manifest.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return str(file)


def make(cpu: str, memory: str = "4Gi", name: str = "new", **spec: Any) -> dict[str, Any]:
    amounts = {"cpu": cpu, "memory": memory}
    container = {"name": "app", "resources": {"requests": amounts, "limits": amounts}}
    return {"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def deployment(replicas: int, cpu: str, **spec: Any) -> dict[str, Any]:
    template = make(cpu, **spec)
    return {
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"replicas": replicas, "template": {"spec": template["spec"]}},
    }


@pytest.mark.parametrize("cpu", ["2", "10", "12", "24", "33", "500m"])
def test_explain_equals_the_explanation_of_the_service(cpu: str, ask: Ask, saved: Save, tmp_path: Path) -> None:
    document = make(cpu)
    objects = json.loads(Path(saved()).read_text())["items"]
    service = Service("TightFit")
    for item in objects:
        if item["kind"] == "Pod":
            service.put(item, is_news=False)
    # After this time, the placements of the pods are certain.
    service.clock.now += 100_000
    for item in objects:
        if item["kind"] == "NodeResourceTopology":
            service.report(msgspec.convert(item, nrt.NodeResourceTopology))
    for item in objects:
        if item["kind"] == "Node":
            service.nodes.apply("ADDED", service.nodes.decode(json.dumps(item).encode()))
    service.ledger.tick()
    names = service.trial.names
    listed_by_it = service.view.explanations(msgspec.convert(document, kube_scheduler.Pod), names)
    said = {item.node: (item.verdict, item.score, item.text) for item in listed_by_it}
    shown = json.loads(ask("explain", "-f", manifest(tmp_path, document), "--nodes-file", saved(), "-o", "json").text)
    assert {item["node"]: (item["verdict"], item["score"], item["text"]) for item in shown} == said


@pytest.mark.parametrize("cpu", ["1", "4", "6", "14"])
def test_fits_equals_the_number_of_admitted_pods(
    cpu: str, ask: Ask, saved: Save, tmp_path: Path, metal_a: Kubelet
) -> None:
    decoded = msgspec.convert(make(cpu, "2Gi"), pods.Pod)
    count = 0
    while metal_a.admit(msgspec.structs.replace(decoded, metadata=pods.Metadata(uid=f"more-{count}"))).admitted:
        count += 1
    objects = [item for item in json.loads(Path(saved()).read_text())["items"] if item["kind"] != "Node"]
    file = saved(*objects, name="no-nodes.json")
    answer = ask("fits", "-f", manifest(tmp_path, make(cpu, "2Gi")), "--nodes-file", file, "-o", "json")
    rooms = {room["node"]: room for room in json.loads(answer.text)["nodes"]}
    assert rooms["metal-a"]["count"] == count
    assert rooms["metal-a"]["limit"].startswith(("container app needs", "OutOf"))


def test_simulate_places_as_many_as_fit(ask: Ask, saved: Save, tmp_path: Path) -> None:
    """Under every strategy, the number of placed identical pods is the same."""
    fits = json.loads(ask("fits", "-f", manifest(tmp_path, make("10")), "--nodes-file", saved(), "-o", "json").text)[
        "fits"
    ]
    for strategy in ("TightFit", "LeastAllocated", "MostAllocated", "BalancedAllocation", "NUMAAware"):
        file = manifest(tmp_path, deployment(fits + 2, "10"))
        words = ("simulate", "-f", file, "--nodes-file", saved(), "-o", "json", "--strategy", strategy)
        shown = json.loads(ask(*words).text)
        assert (shown["placed"], shown["refused"]) == (fits, 2)
        placed = [pod["containers"]["app"] for pod in shown["pods"] if pod["node"].startswith("metal")]
        assert all(len(place["numa"]) == 1 for place in placed)
        cpus = [(pod["node"], pod["containers"]["app"]["cpus"]) for pod in shown["pods"] if pod["node"] != ""]
        assert len(set(cpus)) == len(cpus)


def test_simulate_orders_pods_by_priority_and_then_by_file(ask: Ask, saved: Save, tmp_path: Path) -> None:
    classes = {"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
    objects = json.loads(Path(saved()).read_text())["items"]
    file = saved(*objects, classes, name="with-classes.json")
    path = manifest(
        tmp_path,
        make("1", name="first"),
        make("1", name="named", priorityClassName="high"),
        make("1", name="written", priority=2000),
        make("1", name="second"),
        make("1", name="odd", priorityClassName="nobody-knows"),
    )
    answer = ask("simulate", "-f", path, "--nodes-file", file, "-o", "json")
    names = [pod["pod"] for pod in json.loads(answer.text)["pods"]]
    assert names == ["default/written", "default/named", "default/first", "default/second", "default/odd"]
    assert "warning: priority class 'nobody-knows' is not known; its pods are taken to have priority 0" in answer.notes


def test_simulate_reports_its_progress(saved: Save, tmp_path: Path) -> None:
    words = ["simulate", "-f", manifest(tmp_path, deployment(3, "10")), "--nodes-file", saved()]
    known, pods_to_place, _ = cluster.open_with_manifests(arguments.parser("0").parse_args(words))
    progress: list[str] = []
    simulate.Simulation(known).place(pods_to_place, progress.append)
    assert progress == ["pod 1 of 3", "pod 2 of 3", "pod 3 of 3"]


def test_simulate_avoids_nodes_that_kube_scheduler_would_not_use(ask: Ask, saved: Save, tmp_path: Path) -> None:
    objects = json.loads(Path(saved()).read_text())["items"]
    for item in objects:
        if item["kind"] == "Node" and item["metadata"]["name"] in ("metal-b", "metal-c"):
            item["spec"]["taints"] = [{"key": "gpu", "value": "only", "effect": "NoSchedule"}]
    file = saved(*objects, name="tainted.json")

    def nodes_of(**spec: Any) -> set[str]:
        path = manifest(tmp_path, deployment(3, "10", **spec))
        shown = json.loads(ask("simulate", "-f", path, "--nodes-file", file, "-o", "json").text)
        return {pod["node"] for pod in shown["pods"]}

    assert nodes_of(nodeSelector={"pool": "metal"}) == {"metal-a"}
    tolerations = [{"key": "gpu", "operator": "Exists"}]
    assert nodes_of(nodeSelector={"pool": "metal"}, tolerations=tolerations) <= {"metal-a", "metal-b"}
    assert nodes_of(nodeSelector={"pool": "none"}) == {""}


def test_a_job_without_completions_has_as_many_pods_as_its_parallelism(ask: Ask, saved: Save, tmp_path: Path) -> None:
    template = {"spec": deployment(1, "2")["spec"]["template"]["spec"]}
    for spec in ({"parallelism": 3}, {"parallelism": 3, "completions": None}, {"parallelism": 9, "completions": 3}):
        job = {"kind": "Job", "metadata": {"name": "work"}, "spec": {**spec, "template": template}}
        (tmp_path / "job.json").write_text(json.dumps(job))
        answer = ask("simulate", "-f", str(tmp_path / "job.json"), "--nodes-file", saved(), "-o", "json")
        assert len(json.loads(answer.text)["pods"]) == 3


def test_the_manifest_of_an_existing_pod_stands_for_a_new_pod(ask: Ask, saved: Save, tmp_path: Path) -> None:
    objects = json.loads(Path(saved()).read_text())["items"]
    (late,) = [item for item in objects if item["metadata"]["name"] == "late"]
    there = manifest(tmp_path, late)
    as_new = {
        **late,
        "metadata": {"name": "late", "namespace": "ml"},
        "spec": {"containers": late["spec"]["containers"]},
    }
    counts = []
    for document in (late, as_new):
        there = manifest(tmp_path, document)
        counts.append(json.loads(ask("fits", "-f", there, "--nodes-file", saved(), "-o", "json").text)["fits"])
    assert counts[0] == counts[1] == 2
    shown = json.loads(ask("simulate", "-f", there, "-f", there, "--nodes-file", saved(), "-o", "json").text)
    assert {pod["node"] for pod in shown["pods"]} == {"metal-a", "metal-b"}


def test_a_workload_of_0_replicas_can_be_explained(ask: Ask, saved: Save, tmp_path: Path) -> None:
    file = manifest(tmp_path, deployment(0, "10"))
    assert json.loads(ask("fits", "-f", file, "--nodes-file", saved(), "-o", "json").text)["fits"] > 0
    assert "0 of 0 pods placed" in ask("simulate", "-f", file, "--nodes-file", saved()).text


# A status, or what the single line of an error says.
COMMAND_LINES: dict[str, int | str] = {
    "nodes -f {cluster}": 0,
    "nodes -f {empty}": 0,
    "nodes -f {missing}": "cannot be read: No such file",
    "nodes -f {broken}": "is neither JSON nor YAML",
    "nodes nosuch -f {cluster}": "no such node nosuch, expected the name of a reported node: edge-1, metal-a",
    "nodes pod/a -f {cluster}": "pod/a: expected NAME or node/NAME",
    "nodes -l a=b -f {reports}": "the saved objects have no Nodes, whose labels it selects",
    "nodes --no-such-option": "unrecognized arguments: --no-such-option",
    "nodes -f {cluster} -o go-template=x": "(choose from table, wide, json, yaml, name)",
    "": 0,
    "-n": "argument -n/--namespace: expected one argument",
    "node metal-a -f {cluster}": 0,
    "node nobody -f {cluster}": "nobody, expected the name of a reported node: edge-1, metal-a, metal-b, metal-c",
    "node metal-a --pods -f {reports}": "error: ",
    "explain late -n ml --nodes-file {cluster}": 0,
    "explain late --nodes-file {cluster}": "has no pod default/late, expected it there",
    "explain --nodes-file {cluster}": 0,
    "explain late -n ml --nodes-file {cluster} --node nosuch": "--node: no such node nosuch, expected",
    "explain node/plain --nodes-file {cluster}": "node/plain: is a Node, which has no pod template",
    "explain deploy/web --nodes-file {cluster}": "has no deployment default/web, expected it there",
    "explain deploy/web --service http://x": "accepts only pods, expected no deploy/web",
    "-n ml explain late --nodes-file {cluster}": 0,
    "--namespace=ml --context c explain late --nodes-file {cluster}": 0,
    "explain -f {small} --nodes-file {cluster}": 0,
    "explain -f {giant} --nodes-file {reports}": 1,
    "explain -f {cluster} --nodes-file {empty}": "error: ",
    "fits -f {small} --nodes-file {cluster}": 0,
    "fits -f {giant} --nodes-file {cluster}": 1,
    "fits -f {empty} --nodes-file {cluster}": "error: ",
    "fits a -f x --nodes-file {cluster}": "fits: expected either a pod, KIND/NAME, or -f FILE, not both",
    "fits a -A --nodes-file {cluster}": "-A: is for all waiting pods, expected no pod and no -f with it",
    "fits a --server-side --nodes-file {cluster}": "--server-side: is for manifests, expected -f FILE with it",
    "simulate -f {small} --nodes-file {cluster}": 0,
    "simulate -f {small} -f {giant} --nodes-file {cluster}": 1,
    "simulate -f {unreadable} --nodes-file {cluster}": "much",
    "simulate --nodes-file {cluster}": 0,
    "defrag late -n ml --nodes-file {cluster}": 0,
    "doctor -f {healthy}": 0,
    "doctor -f {cluster}": 1,
    "doctor -f {missing}": "cannot be read: No such file",
    "doctor -f {healthy} --scheduler-config {small}": "has no KubeSchedulerConfiguration",
    "help": 0,
    "help explain": 0,
    "help nobody": "invalid choice: nobody",
    # What is gone names the other way.
    "nodes -w": "expected `watch -n 5 kubectl topowise nodes ...`",
    "explain web-0 --watch --interval 5": "expected `watch -n 5 kubectl topowise explain ...`",
    "fits web-0 -o custom-columns=POD:.pod": "(choose from table, wide, json, yaml, name)",
    "plan web-0 -o markdown": "(choose from table, json, yaml, html)",
    "completion kubectl": "(choose from nodes, node, explain,",
}


@pytest.mark.parametrize("words", COMMAND_LINES)
def test_exit_statuses_and_errors(words: str, saved: Save, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    objects = json.loads(Path(saved()).read_text())["items"]
    reports = [item for item in objects if item["kind"] == "NodeResourceTopology"]
    healthy = [
        item for item in objects if "metal-a" in (item["metadata"]["name"], item.get("spec", {}).get("nodeName"))
    ]
    texts = {"small": make("1"), "giant": make("500"), "unreadable": make("much")}
    files = {name: tmp_path / f"{name}.yaml" for name in (*texts, "empty", "missing", "broken")}
    for name, document in texts.items():
        files[name].write_text(yaml.safe_dump(document))
    files["empty"].write_text("")
    files["broken"].write_text("{[")
    of_objects = {
        "cluster": saved(),
        "reports": saved(*reports, name="r.json"),
        "healthy": saved(*healthy, name="h.json"),
    }
    try:
        status = program.main([word.format(**files, **of_objects) for word in words.split()])
    except SystemExit as exit_:
        status = int(str(exit_.code))
    out, err = capfd.readouterr()
    expected = COMMAND_LINES[words]
    if isinstance(expected, int):
        assert status == expected, out + err
    else:
        # A single line, also for a mistake in the command line, as for kubectl.
        assert (status, out, err.count("\n"), err[:7]) == (2, "", 1, "error: ")
        assert expected in err.replace("'", "")


@pytest.mark.parametrize("value", ["high", 1.5, "\u00b2"])
def test_an_invalid_priority_is_a_single_line(value: Any, ask: Ask, saved: Save, tmp_path: Path) -> None:
    classes = {"kind": "PriorityClass", "metadata": {"name": "odd"}, "value": value}
    file = saved(*json.loads(Path(saved()).read_text())["items"], classes, name="odd.json")
    with pytest.raises(SourceError, match=r"PriorityClass 'odd' cannot be read: .*value"):
        ask("simulate", "-f", manifest(tmp_path, make("1")), "--nodes-file", file)


@pytest.mark.parametrize("name", ["worker-\u00b2", "worker-" + "9" * 5000, "\u0663"])
def test_a_pod_of_any_name_is_drawn(name: str, ask: Ask, saved: Save) -> None:
    """Names of pods come from an attribute without validation."""
    items = json.loads(Path(saved()).read_text())["items"]
    text = json.dumps(
        next(item for item in items if item["kind"] == nrt.KIND and item["metadata"]["name"] == "metal-a")
    )
    (holdings,) = [item["value"] for item in json.loads(text)["attributes"] if item["name"] == "topowise.io/holdings"]
    first = json.loads(holdings)[0][1]
    document = json.loads(text.replace(f'\\"{first}\\"', f'\\"{name}\\"'))
    assert name[:9] in ask("node", "metal-a", "-f", saved(document, name="odd.json")).text


def test_documents_have_the_content_of_the_tables(ask: Ask, saved: Save, tmp_path: Path) -> None:
    nodes = json.loads(ask("nodes", "-f", saved(), "-o", "json").text)
    assert nodes == yaml.safe_load(ask("nodes", "-f", saved(), "-o", "yaml").text)
    (metal_b,) = [item for item in nodes if item["node"] == "metal-b"]
    drawn = json.loads(ask("node", "metal-b", "-f", saved(), "-o", "json").text)
    assert drawn == yaml.safe_load(ask("node", "metal-b", "-f", saved(), "-o", "yaml").text)
    assert [zone["free"] for zone in drawn["zones"]] == [zone["free"] for zone in metal_b["zones"]]
    with_late = json.loads(ask("node", "metal-b", "--pods", "-f", saved(), "-o", "json").text)
    assert [item["pod"] for item in with_late["pods"]] == ["db/postgres-0", "ml/late"]
    assert with_late["zones"][0]["free"]["cpu"] == "4"
    file = manifest(tmp_path, make("6"), make("500", name="giant"))
    for command in ("explain", "fits", "simulate"):
        words = (command, "-f", file, "--nodes-file", saved(), "-o")
        assert json.loads(ask(*words, "json").text) == yaml.safe_load(ask(*words, "yaml").text)
    fitting = "node/metal-c\nnode/metal-b\nnode/metal-a\n"
    for command in ("explain", "fits"):
        named = ask(command, "-f", file, "--nodes-file", saved(), "-o", "name").text
        assert sorted(named.split()) == sorted([*fitting.split(), "node/edge-1"])
    doctor = ("doctor", "-f", saved(), "-o")
    assert json.loads(ask(*doctor, "json").text) == yaml.safe_load(ask(*doctor, "yaml").text)


def test_cells_of_a_pod_with_many_containers_are_cut(ask: Ask, saved: Save, tmp_path: Path) -> None:
    small = make("1", "64Mi")["spec"]["containers"][0]
    many = {
        "kind": "Pod",
        "metadata": {"name": "many"},
        "spec": {"containers": [{**small, "name": f"container-{at:02}"} for at in range(20)]},
    }
    for command in ("explain", "fits"):
        words = (command, "-f", manifest(tmp_path, many), "--nodes-file", saved())
        assert max(map(len, ask(*words).text.splitlines())) < 900
    explained = ("explain", "-f", manifest(tmp_path, many), "--nodes-file", saved(), "-o", "wide")
    assert max(map(len, ask(*explained).text.splitlines())) > 1000

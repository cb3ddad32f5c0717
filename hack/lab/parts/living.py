"""What happens on a node while pods run: plug-ins restart, devices fail, and pods change without the scheduler.

Each part is an act of `occupied.disturbed`: pods have allocations before it, and the next pods follow it.
"""

from __future__ import annotations

import json
from typing import Any, Final

from lab import machine, results
from lab.api import NODES, Json, wait
from lab.cluster import Lab, attribute
from lab.parts.occupied import (
    LOADED,
    PLACED_S,
    SETTLED_S,
    Found,
    Load,
    disturbed,
    fresh,
    in_short,
    patch,
    place_next,
    restart_with,
    under_load,
    until_phase,
    until_refused,
)
from lab.placing import until_placed
from lab.results import Part
from lab.series import Series, container, small

_UNHEALTHY: Final = "/var/lib/kubelet/lab-unhealthy"
# Errors of the kubelet while a plug-in is gone: between Bind and Allocate no scheduler can know of that.
_PLUGIN_GONE: Final = ("Allocate failed due to rpc error", "no healthy devices present", "unregistered device")
# The kubelet's log, before a TopologyAffinityError for the same reason.
_NO_DEVICES: Final = "requested number of devices unavailable"
_DEVICES_S: Final = 120.0


def of_load(load: Load) -> dict[str, Any]:
    """Returns the figures of pods that arrived during a disturbance."""
    return {
        "pods meanwhile": load.sent,
        "of them bound": load.bound,
        "refused after fits": load.refused,
        "refused when admitted once more": len(load.readmitted),
        **({"their reasons": "; ".join(load.readmitted)} if load.readmitted else {}),
        results.VERDICTS: load.verdicts,
        results.WAITS: load.waits,
    }


def _loaded(lab: Lab, node: str, label: str, act: Any) -> Found:
    """Runs `act` while pods arrive."""
    prefix = fresh(label)
    load = under_load(lab, act, Series(lab.machines[node], 6, prefix).pods(LOADED))
    # Pods without a node would be bound among the next pods.
    lab.delete([name for name in list(lab.pods.objects) if name.startswith(prefix)])
    return load.problems, of_load(load)


def plugin_restart(lab: Lab) -> Part:
    """Kills the device plug-ins while pods arrive. The kubelet then has no healthy device until they register again."""

    def act(lab: Lab, node: str, names: list[str]) -> Found:
        problems, figures = _loaded(lab, node, "plugin", lambda: _restart_plugins(lab, node))
        log = lab.nodes[node].log.read_text(errors="replace")
        gone = [
            problem
            for problem in problems
            if any(text in problem for text in _PLUGIN_GONE) or had_no_device(log, problem.partition(" ")[0])
        ]
        figures |= {"refused after fits": len(problems) - len(gone), "refused as the plug-in had ended": len(gone)}
        return [problem for problem in problems if problem not in gone], figures

    return disturbed("Device plug-ins restart under load", lab, act)


def had_no_device(log: str, pod: str) -> bool:
    """Returns whether the kubelet's log says that no device of a resource was available when the pod came."""
    return any(
        _NO_DEVICES in line and f'pod="default/{pod}" ' in line and line.rstrip().endswith("available=0")
        for line in log.splitlines()
    )


def _restart_plugins(lab: Lab, node: str) -> None:
    before = lab.plugin_starts(node)
    lab.nodes[node].run("pkill -KILL -f '[l]ab[.]plugin'")
    count = len(lab.machines[node].devices)
    wait(lambda: lab.plugin_starts(node) >= before + count, _DEVICES_S, f"the device plug-ins of {node} restart", 0.5)
    lab.until_devices(node)


def unhealthy_devices(lab: Lab) -> Part:
    """Makes an allocated and a free device unhealthy, and later healthy again."""

    def act(lab: Lab, node: str, names: list[str]) -> Found:
        resource = lab.machines[node].devices[-1].resource
        allocated = lab.holding(node).listed["default", names[2]]["main"].devices[resource]
        free = sorted(lab.holding(node).near[resource].keys() - allocated)
        ids, count = [*allocated, free[0]], _allocatable(lab, node, resource)
        lab.nodes[node].write({_UNHEALTHY: "\n".join(ids)})
        wait(lambda: _allocatable(lab, node, resource) == count - len(ids), _DEVICES_S, f"{ids} are unhealthy", 0.5)
        problems = lab.settle(SETTLED_S)
        tally = place_next(lab, node, "sick")
        lab.nodes[node].write({_UNHEALTHY: ""})
        wait(lambda: _allocatable(lab, node, resource) == count, _DEVICES_S, f"{ids} are healthy", 0.5)
        return [*problems, *tally.problems], {"unhealthy devices": len(ids), **in_short(tally, "meanwhile ")}

    return disturbed("Devices become unhealthy", lab, act)


def _allocatable(lab: Lab, node: str, resource: str) -> int:
    return int(lab.api.call("GET", f"{NODES}/{node}")["status"]["allocatable"].get(resource, 0))


def static_pods(lab: Lab) -> Part:
    """A static pod allocates CPUs and a device without the scheduler, and ends."""

    def act(lab: Lab, node: str, names: list[str]) -> Found:
        sizes = {"cpu": "2"} | {plugin.resource: "1" for plugin in lab.machines[node].devices[-1:]}
        path, name = f"{machine.STATIC_PODS}/static.json", f"static-{node}"
        manifest = small("static", sizes=sizes, starts=True)
        # Without the label of series, as `Lab.clear` could delete only its mirror pod.
        del manifest["metadata"]["labels"]
        lab.nodes[node].write({path: json.dumps(manifest)})
        try:
            until_phase(lab, name, "Running")
            problems = lab.settle(SETTLED_S)
            if not any(map(any, lab.holding(node).listed.get(("default", name), {}).values())):
                problems.append(f"the kubelet lists no allocation of {name}, expected CPUs and memory")
            tally = place_next(lab, node, "beside")
        finally:
            lab.nodes[node].run(f"rm {path}")
        wait(lambda: name not in lab.pods.objects, _DEVICES_S, f"{name} ends")
        return [*problems, *tally.problems], in_short(tally, "beside it ")

    return disturbed("A static pod comes and ends", lab, act)


def policy_with_pods(lab: Lab) -> Part:
    """Restarts the kubelet with other policies and with its state files. A pod on both NUMA nodes is running, and
    the kubelet admits all pods once more (HandlePodAdditions): single-numa-node refuses it."""
    other: Json = {"topologyManagerPolicy": "best-effort", "topologyManagerScope": "pod"}
    strict: Json = {"topologyManagerPolicy": "single-numa-node", "topologyManagerScope": "container"}

    def act(lab: Lab, node: str, names: list[str]) -> Found:
        restart_with(lab, node, other)
        problems = lab.settle(SETTLED_S) + _policy_problems(lab, node, other)
        wide = fresh("wide")
        most = max(len(each.cpus) for each in lab.numa_nodes(node).values())
        until_placed(lab, small(wide, node, {"cpu": str(most + 1)}, starts=True), PLACED_S)
        until_phase(lab, wide, "Running")
        tally = place_next(lab, node, "other")
        restart_with(lab, node, strict)
        problems += lab.settle(SETTLED_S) + _policy_problems(lab, node, strict)
        refused = len(until_refused(lab, [wide]))
        if not refused:
            problems.append(f"{wide} on {node}, on both NUMA nodes, is not refused, expected TopologyAffinityError")
        lab.delete([wide])
        restart_with(lab, node, {})
        figures = {"pods on both NUMA nodes refused when admitted once more": refused, **in_short(tally, "other ")}
        return [*problems, *tally.problems], figures

    return disturbed("Policies change while pods run", lab, act)


def _policy_problems(lab: Lab, node: str, fields: Json) -> list[str]:
    lab.reports.until(lambda reports: all(attribute(reports[node], key) == fields[key] for key in fields), SETTLED_S)
    raw = lab.reports.objects[node]
    return [
        f"{key} of {node} is {attribute(raw, key)!r}, expected {value!r}"
        for key, value in fields.items()
        if attribute(raw, key) != value
    ]


def resize(lab: Lab) -> Part:
    """Resizes a Guaranteed pod, which is infeasible with the static CPU manager."""

    def act(lab: Lab, node: str, names: list[str]) -> Found:
        name, amounts = names[1], {"cpu": "3", "memory": "64Mi"}
        resources = {"requests": amounts, "limits": amounts}
        patch(lab, name, "resize", {"containers": [{"name": "main", "resources": resources}]})
        infeasible = wait(lambda: _pending(lab.pods.objects[name]), _DEVICES_S, f"the resize of {name} is decided")
        problems = [] if infeasible == "Infeasible" else [f"{name}: {infeasible}, expected Infeasible"]
        return problems, {"Guaranteed pod": infeasible}

    return disturbed("A pod is resized in place", lab, act)


def _pending(pod: Json) -> str:
    """Returns the reason why the resize of the pod is pending, "" without a pending resize."""
    conditions = pod["status"].get("conditions", ())
    return next((each.get("reason", "") for each in conditions if each["type"] == "PodResizePending"), "")


def ephemeral_containers(lab: Lab) -> Part:
    """Adds an ephemeral container to a running pod with CPUs and a device."""

    def act(lab: Lab, node: str, names: list[str]) -> Found:
        name = names[2]
        debug = {key: value for key, value in container("debug", {}).items() if key != "resources"}
        patch(lab, name, "ephemeralcontainers", {"ephemeralContainers": [{**debug, "targetContainerName": "main"}]})

        def runs() -> bool:
            statuses = lab.pods.objects[name]["status"].get("ephemeralContainerStatuses", ())
            return any("running" in each["state"] for each in statuses)

        wait(runs, PLACED_S, f"the ephemeral container of {name} runs")
        return [], {}

    return disturbed("An ephemeral container starts", lab, act)

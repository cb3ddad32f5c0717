"""What happens to a node in its life: restarts, other policies, a drain, the end of its Node.

Each leaves the lab as it has found it: no pods of a series, kubelets as the machine files say, nodes schedulable.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from lab.api import NODES, Json
from lab.cluster import Lab, attribute
from lab.parts.living import of_load
from lab.parts.occupied import LOADED, REFUSED_S, SETTLED_S, Found, disturbed, occupy, under_load
from lab.placing import until_placed
from lab.results import Part
from lab.series import Series, small
from topowise import nrt


def kubelet_restart(lab: Lab) -> Part:
    """Restarts the kubelet while pods arrive: the object never lacks a pod, and no pod is refused."""
    problems: list[str] = []
    figures: dict[str, Any] = {}
    for name in lab.nodes:
        occupied = occupy(lab, name)
        lab.settle()
        since, start, disagreements = time.time(), time.monotonic(), lab.disagreements

        def restart(name: str = name) -> None:
            lab.restart_kubelet(name)
            lab.until_devices(name)

        load = under_load(lab, restart, Series(lab.machines[name], 3, f"restart-{name}").pods(LOADED))
        problems += [*load.problems, *lab.settle(SETTLED_S)]
        lacking = _lacking(lab, name, since, occupied)
        figures |= {
            f"s until {name} is as before": round(time.monotonic() - start, 1),
            f"objects of {name} that lacked a pod": lacking,
            "starts that its own memory_manager_state prevented": lab.disagreements - disagreements,
            **of_load(load),
        }
        if lacking:
            problems.append(f"{lacking} objects of {name} lacked a pod that its kubelet held all along")
        lab.clear()
    return Part("A kubelet restarts under load", not problems, figures, tuple(problems))


def _lacking(lab: Lab, node: str, since: float, names: list[str]) -> int:
    texts = [attribute(raw, "topowise.io/holdings") for _, of_node, raw in lab.reports.since(since) if of_node == node]
    return sum(any(f'["default","{name}",[["' not in text for name in names) for text in texts)


def reconfigure(lab: Lab, name: str, changed: Json) -> None:
    """Restarts the kubelet with these fields added to the machine's configuration, and without pods of a series."""
    lab.clear()
    lab.changed[name] = changed
    lab.configure(name)
    lab.restart_kubelet(name, forget=True)
    lab.until_devices(name)


def reboot(lab: Lab) -> Part:
    """Restarts the machine with pods on it; the object must follow the kubelet's state afterwards."""

    def act(lab: Lab, node: str, _: list[str]) -> Found:
        before = attribute(lab.reports.objects[node], "topowise.io/boot-id")
        start = time.monotonic()
        lab.reboot(node)
        # The object from before may say the same as the kubelet: what it held it holds again.
        is_new = lab.reports.until(partial(_is_of_another_boot, node, before), SETTLED_S)
        problems = [] if is_new else [f"the object of {node} is still of the boot before"]
        problems += lab.settle(SETTLED_S)
        seconds = round(time.monotonic() - start, 1)
        time.sleep(REFUSED_S)
        return problems, {f"s from power off to a true object of {node}": seconds}

    return disturbed("A machine reboots", lab, act)


def _is_of_another_boot(name: str, before: str, reports: dict[str, Json]) -> bool | None:
    now = attribute(reports[name], "topowise.io/boot-id") if name in reports else ""
    return now not in ("", before) or None


def drain(lab: Lab) -> Part:
    """`kubectl drain`: the object gets empty, the node is excluded; and after `uncordon` it takes pods again."""
    name = next(iter(lab.nodes))
    occupy(lab, name)
    lab.settle()
    start = time.monotonic()
    lab.kubectl("drain", name, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s")
    # Evicted pods without a grace period are gone before their kubelet has heard of it: it is as full as its object.
    is_empty = lab.reports.until(partial(_is_empty, name), SETTLED_S)
    seconds = round(time.monotonic() - start, 1)
    problems = [] if is_empty else ["the object still has pods"]
    problems += lab.settle()
    verdict = lab.explain(small("after-drain", name))[name]["verdict"]
    if verdict != "excluded":
        problems.append(f"the drained node is {verdict!r}, expected 'excluded'")
    lab.kubectl("uncordon", name)
    until_placed(lab, small("after-drain", name), 60)
    lab.clear()
    return Part("A node is drained", not problems, {"s until the object is empty": seconds}, tuple(problems))


def _is_empty(name: str, reports: dict[str, Json]) -> bool | None:
    return (name in reports and attribute(reports[name], "topowise.io/holdings") in ("", "[]")) or None


def rejoin(lab: Lab) -> Part:
    """Deletes the Node object, so that the kubelet registers again: a new NRT object must belong to the new Node."""
    name = next(iter(lab.nodes))
    lab.settle()
    before = lab.api.call("GET", f"{NODES}/{name}")["metadata"]["uid"]
    start = time.monotonic()
    lab.kubectl("delete", "node", name)
    is_gone = lab.reports.until(lambda reports: name not in reports, 60)
    gone = round(time.monotonic() - start, 1)
    lab.restart_kubelet(name, forget=True)
    problems = lab.settle(SETTLED_S)
    figures: dict[str, Any] = {"s until it is back, with a true object": round(time.monotonic() - start, 1)}
    if is_gone:
        figures["s until its object was gone"] = gone
    after = lab.api.call("GET", f"{NODES}/{name}")["metadata"]["uid"]
    owners = [
        owner["uid"] for owner in lab.api.call("GET", f"{nrt.PATH}/{name}")["metadata"].get("ownerReferences", ())
    ]
    if after == before or owners not in ([], [after]):
        problems.append(f"the object is owned by {owners}, expected the new node, {after}")
    until_placed(lab, small("after-rejoin", name), 120)
    lab.clear()
    return Part("A node is deleted and joins again", not problems, figures, tuple(problems))

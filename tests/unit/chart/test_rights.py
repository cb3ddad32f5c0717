"""RBAC gives exactly what the code asks of the API server: every request in it is listed here, and found by reading it.

A new request in the code fails `test_every_request_in_the_code_is_listed` until its right is listed here.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from topowise import nrt
from topowise_exporter.dra.watch import PATHS
from topowise_exporter.publish import numatopology
from topowise_scheduler.cluster import claim_watch, watch
from topowise_scheduler.cluster.pods.records import Records
from topowise_scheduler.preemption import Budgets

Document = dict[str, Any]
Right = tuple[str, str, str]
"""API group, resource, verb."""

NRT = nrt.PATH.split("/")[2], nrt.PATH.rpartition("/")[2]
NUMATOPOLOGY = numatopology.PATH.split("/")[2], numatopology.PATH.rpartition("/")[2]
LEASES = "coordination.k8s.io", "leases"

# Module, and the method of a request in it -> the rights it takes. Server-side apply creates what is not there.
EXPORTER: dict[tuple[str, str], set[Right]] = {
    ("topowise_exporter/publish/writer.py", "PATCH"): {(*NRT, "patch"), (*NRT, "create")},
    ("topowise_exporter/publish/writer.py", "GET"): {(*NRT, "get"), ("", "nodes", "get")},
}
SLICES = "resource.k8s.io", "resourceslices"
# By topowise/kube/reflector.py.
OWN_WATCH: set[Right] = {(*NRT, "list"), (*NRT, "watch")}
EXPORTER_WATCHES: set[Right] = OWN_WATCH | {(*SLICES, "list"), (*SLICES, "watch")}
PLACEMENTS: dict[tuple[str, str], set[Right]] = {
    ("topowise_exporter/annotator.py", "PATCH"): {("", "pods", "patch")},
    ("topowise_exporter/annotator.py", "GET"): {("", "pods", "list")},
}
WATCHED = {NRT, ("", "nodes"), ("", "pods"), ("policy", "poddisruptionbudgets")}
SCHEDULER: dict[tuple[str, str], set[Right]] = {
    ("topowise_scheduler/leader/events.py", "POST"): {("events.k8s.io", "events", "create")},
    ("topowise/kube/reflector.py", "GET"): {(*resource, "list") for resource in WATCHED},
    ("topowise/kube/reflector.py", "stream"): {(*resource, "watch") for resource in WATCHED},
    ("topowise_scheduler/extender/explaining.py", "GET"): {("", "pods", "get")},
    ("topowise_scheduler/extender/binding.py", "GET"): {("", "pods", "get")},
    ("topowise_scheduler/extender/binding.py", "POST"): {("", "pods/binding", "create")},
    ("topowise_scheduler/leader/requeue.py", "PATCH"): {("", "pods/status", "patch")},
}
# With config.startupTaint, config.refusedPods and config.preemptor.
STARTUP_TAINT: dict[tuple[str, str], set[Right]] = {
    ("topowise_scheduler/leader/startup_taint.py", "GET"): {("", "nodes", "get")},
    ("topowise_scheduler/leader/startup_taint.py", "PATCH"): {("", "nodes", "patch")},
}
REFUSED_PODS: dict[tuple[str, str], set[Right]] = {
    ("topowise_scheduler/leader/refused_pods.py", "GET"): {("", "pods", "get")},
    ("topowise_scheduler/leader/refused_pods.py", "DELETE"): {("", "pods", "delete")},
}
WAITING_PODS: dict[tuple[str, str], set[Right]] = {
    ("topowise_scheduler/leader/waiting_pods.py", "PATCH"): {("", "pods/status", "patch")},
}
# Of the nominator and the preemptor.
NOMINATION: dict[tuple[str, str], set[Right]] = {
    ("topowise_scheduler/leader/nomination.py", "PATCH"): {("", "pods/status", "patch")},
}
PREEMPTOR: dict[tuple[str, str], set[Right]] = {
    ("topowise_scheduler/leader/preemptor.py", "GET"): {("", "pods", "get")},
    ("topowise_scheduler/leader/evictions.py", "POST"): {("", "pods/eviction", "create")},
}
# In the namespace of the placeholders, except the status and the daemon pods of a node.
SCALE_UP: dict[tuple[str, str], set[Right]] = {
    ("topowise_scheduler/leader/scale_up.py", "GET"): {("", "pods", "list")},
    ("topowise_scheduler/leader/scale_up.py", "POST"): {("", "pods", "create")},
    ("topowise_scheduler/leader/scale_up.py", "DELETE"): {("", "pods", "delete")},
}
SCALE_UP_STATUS: dict[tuple[str, str], set[Right]] = {
    ("topowise_scheduler/leader/scale_up.py", "PATCH"): {("", "pods/status", "patch")},
    ("topowise_scheduler/leader/pod_lists.py", "GET"): {("", "pods", "list")},
}
# With Karpenter.
KNOWN_NODES: dict[tuple[str, str], set[Right]] = {
    ("topowise_scheduler/leader/known_nodes.py", "PATCH"): {("", "nodes", "patch")},
}
SCALE_DOWN_GUARD: dict[tuple[str, str], set[Right]] = {
    ("topowise_scheduler/leader/scale_down_guard.py", "PATCH"): {("", "nodes", "patch")},
    ("topowise_scheduler/leader/pod_lists.py", "GET"): {("", "pods", "list")},
}
# The Workloads are listed and watched by a reflector of the controller.
KUEUE_GROUP = "kueue.x-k8s.io"
KUEUE: dict[tuple[str, str], set[Right]] = {
    ("topowise_scheduler/leader/admission_checks.py", "GET"): {
        (KUEUE_GROUP, "admissionchecks", "list"),
        (KUEUE_GROUP, "resourceflavors", "list"),
    },
    ("topowise_scheduler/leader/admission_checks.py", "PATCH"): {
        (KUEUE_GROUP, "workloads/status", "patch"),
        (KUEUE_GROUP, "admissionchecks/status", "patch"),
    },
}
KUEUE_WATCH: set[Right] = {(KUEUE_GROUP, "workloads", "list"), (KUEUE_GROUP, "workloads", "watch")}
ELECTION: dict[tuple[str, str], set[Right]] = {
    ("topowise/kube/lease.py", "?"): {(*LEASES, "get"), (*LEASES, "create"), (*LEASES, "update")},
}
# Of the service's requests to marker plug-ins; an apply creates the Lease. Its reflector lists and watches them.
STEERING_REQUESTS: dict[tuple[str, str], set[Right]] = {
    ("topowise_scheduler/extender/steering.py", "PATCH"): {(*LEASES, "create"), (*LEASES, "patch")},
}
# The Node owns the Lease.
STEERING_OWNERS: dict[tuple[str, str], set[Right]] = {
    ("topowise_scheduler/extender/steering.py", "GET"): {("", "nodes", "get")},
}
STEERING_REQUESTS_WATCH: set[Right] = {(*LEASES, "list"), (*LEASES, "watch")}
# Of the marker plug-in.
STEERING: dict[tuple[str, str], set[Right]] = {
    ("topowise_exporter/steering/lease.py", "PATCH"): {(*LEASES, "patch")},
}
STEERING_WATCH: set[Right] = {(*LEASES, "list"), (*LEASES, "watch")}
# Of claims. The version of the API server can be read by every account.
CLAIMS: dict[tuple[str, str], set[Right]] = {
    ("topowise_scheduler/extender/claims.py", "GET"): {("resource.k8s.io", "resourceclaims", "get")},
    ("topowise_scheduler/daemon/scheduler_version.py", "GET"): set(),
}
CLAIMS_WATCH: set[Right] = {
    ("resource.k8s.io", resource, verb)
    for resource in ("resourceslices", "resourceclaims", "deviceclasses")
    for verb in ("list", "watch")
}
# With kube-scheduler's account, in mode own.
TOKENS: dict[tuple[str, str], set[Right]] = {
    ("topowise/kube/account_token.py", "POST"): {("", "serviceaccounts/token", "create")},
}


OBJECTS = {"read": "GET", "create": "POST", "patch": "PATCH", "delete": "DELETE"}


def requests(repository: Path) -> set[tuple[str, str]]:
    """(module, method) of every call of Api.request and Api.stream, also by leader/objects.py."""
    calls = set()
    for package in ("exporter", "plugin", "proto"):
        for path in (repository / package).rglob("*.py"):
            # The kubectl plug-in has the rights of its user.
            if "kubectl" in path.parts or path.match("leader/objects.py"):
                continue
            for call in ast.walk(ast.parse(path.read_text())):
                if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                    continue
                owner = ast.unparse(call.func.value)
                if owner == "objects" and "leader" in path.parts:
                    calls.add((str(path.relative_to(repository / package)), OBJECTS[call.func.attr]))
                if call.func.attr not in ("request", "stream") or owner.rpartition(".")[2] not in ("api", "_api"):
                    continue
                first = call.args[0]
                method = first.value if isinstance(first, ast.Constant) else "?"
                name = "stream" if call.func.attr == "stream" else str(method)
                calls.add((str(path.relative_to(repository / package)), name))
    return calls


def rights(*roles: Document) -> set[Right]:
    return {
        (group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def needs(calls: dict[tuple[str, str], set[Right]]) -> set[Right]:
    return set().union(*calls.values())


def test_every_request_in_the_code_is_listed(repository: Path) -> None:
    by_controller = (
        STARTUP_TAINT,
        REFUSED_PODS,
        WAITING_PODS,
        NOMINATION,
        PREEMPTOR,
        SCALE_UP,
        SCALE_UP_STATUS,
        KNOWN_NODES,
        SCALE_DOWN_GUARD,
        KUEUE,
        ELECTION,
        TOKENS,
        STEERING_REQUESTS,
        STEERING_OWNERS,
        STEERING,
        CLAIMS,
    )
    known = (EXPORTER, PLACEMENTS, SCHEDULER, *by_controller)
    assert requests(repository) == set().union(*(calls.keys() for calls in known))


def test_every_watched_collection_is_listed() -> None:
    nothing: Any = None
    paths = {source._path for source in watch.reflectors(nothing, nothing, Records(), Budgets(), watch.Nodes())}
    assert {(path.split("/")[2] if path.startswith("/apis/") else "", path.split("/")[-1]) for path in paths} == WATCHED


def test_the_exporter_may_do_what_it_does_and_no_more(default: Any) -> None:
    assert rights(default.named("ClusterRole", "topowise-exporter")) == needs(EXPORTER) | EXPORTER_WATCHES


def test_the_exporter_watches_what_it_may_in_every_version() -> None:
    assert {(path.split("/")[2], path.rpartition("/")[2]) for path in PATHS} == {SLICES}


def test_the_scheduler_may_do_what_it_does_and_no_more(default: Any) -> None:
    assert rights(default.named("ClusterRole", "topowise-scheduler")) == needs(SCHEDULER)
    leases = default.named("Role", "topowise-scheduler")
    assert rights(leases) == needs(ELECTION)
    named = [rule["resourceNames"] for rule in leases["rules"] if rule["verbs"] != ["create"]]
    assert named == [["topowise-scheduler-requeue"]]


def test_the_kube_scheduler_has_the_roles_of_the_clusters_own(default: Any) -> None:
    assert bound(default, "topowise-kube-scheduler") == {
        ("ClusterRole", "system:kube-scheduler", ""),
        ("ClusterRole", "system:volume-scheduler", ""),
        ("Role", "extension-apiserver-authentication-reader", "kube-system"),
        ("Role", "topowise-kube-scheduler", "topowise-system"),
        ("Role", "topowise-scheduler-token", "topowise-system"),
    }
    token = default.named("Role", "topowise-scheduler-token")
    assert rights(token) == needs(TOKENS)
    assert [rule["resourceNames"] for rule in token["rules"]] == [["topowise-scheduler"]]
    lease = default.named("Role", "topowise-kube-scheduler")
    assert rights(lease) == needs(ELECTION)
    assert [rule["resourceNames"] for rule in lease["rules"] if rule["verbs"] != ["create"]] == [["topowise-scheduler"]]


def test_the_service_has_no_role_of_the_kube_scheduler_beside_it(default: Any) -> None:
    assert bound(default, "topowise-scheduler") == {
        ("ClusterRole", "topowise-scheduler", ""),
        ("Role", "topowise-scheduler", "topowise-system"),
    }


def bound(objects: Any, account: str) -> set[tuple[str, str, str]]:
    """Kind and name of each role that an account has, and the namespace in which."""
    return {
        (item["roleRef"]["kind"], item["roleRef"]["name"], item["metadata"].get("namespace", ""))
        for kind in ("ClusterRoleBinding", "RoleBinding")
        for item in objects.kinds(kind)
        if {"kind": "ServiceAccount", "name": account, "namespace": "topowise-system"} in item["subjects"]
    }


def test_no_path_is_put_together_but_by_the_module_that_quotes(repository: Path) -> None:
    """A text with something in it that begins like a path of the API server; constants of ours may be in it."""
    for package in ("exporter", "plugin", "proto"):
        for path in (repository / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.JoinedStr):
                    continue
                parts = [ast.unparse(part.value) for part in node.values if isinstance(part, ast.FormattedValue)]
                first = ast.unparse(node.values[0].value) if isinstance(node.values[0], ast.FormattedValue) else ""
                names_one = "PATH" in first or ast.unparse(node)[2:].startswith(("/api/", "/apis/"))
                is_safe = all(
                    part.rpartition(".")[2].lstrip("_").isupper() or part == "version" or part.startswith("quote(")
                    for part in parts
                )
                assert not names_one or is_safe, f"{path}:{node.lineno}: {ast.unparse(node)}"


def test_rights_grow_with_what_is_switched_on(render: Any) -> None:
    objects = render("", "exporter.config.kubelet.configz.enabled=true", "exporter.config.numatopology=true")
    kubelet = {("", f"nodes/{subresource}", "get") for subresource in ("configz", "metrics")}
    grown = kubelet | {(*NUMATOPOLOGY, verb) for verb in ("get", "create", "patch")}
    assert rights(objects.named("ClusterRole", "topowise-exporter")) == needs(EXPORTER) | EXPORTER_WATCHES | grown


@pytest.mark.parametrize(
    ("option", "calls"),
    [
        ("startupTaint.enabled", STARTUP_TAINT),
        ("refusedPods.delete", REFUSED_PODS),
        ("waitingPods.tell", WAITING_PODS),
        ("preemptor.enabled", PREEMPTOR | NOMINATION),
        ("nominator.enabled", NOMINATION),
        ("scaleDownGuard.enabled", SCALE_DOWN_GUARD),
    ],
    ids=["start-up taint", "refused pods", "waiting pods", "preemptor", "nominator", "guard"],
)
def test_what_the_leader_repairs_takes_rights_only_where_it_is_switched_on(
    render: Any, option: str, calls: dict[tuple[str, str], set[Right]]
) -> None:
    objects = render("", f"scheduler.config.{option}=true")
    assert rights(objects.named("ClusterRole", "topowise-scheduler")) == needs(SCHEDULER) | needs(calls)


def test_steering_takes_rights_in_the_namespace_of_its_leases(render: Any) -> None:
    objects = render("", "scheduler.config.steering.enabled=true")
    role = objects.named("Role", "topowise-scheduler-steering")
    assert rights(role) == needs(STEERING_REQUESTS) | STEERING_REQUESTS_WATCH
    cluster_role = objects.named("ClusterRole", "topowise-scheduler")
    assert rights(cluster_role) == needs(SCHEDULER) | needs(STEERING_OWNERS)
    assert "leases" in restricted(objects)
    assert not any("steering" in role["metadata"]["name"] for role in render("").kinds("Role"))


def test_scale_up_takes_rights_in_the_namespace_of_the_placeholders(render: Any) -> None:
    objects = render("", "scheduler.config.scaleUp.enabled=true")
    cluster_role = objects.named("ClusterRole", "topowise-scheduler")
    assert rights(cluster_role) == needs(SCHEDULER) | needs(SCALE_UP_STATUS)
    assert rights(objects.named("Role", "topowise-scheduler-placeholders")) == needs(SCALE_UP)
    assert "pods" in restricted(objects)
    assert objects.named("PriorityClass", "topowise-placeholder")["value"] >= -10, "cluster-autoscaler reads no lower"
    assert not render("").kinds("PriorityClass")
    karpenter = render("", "scheduler.config.scaleUp.enabled=true", "scheduler.config.scaleUp.autoscaler=karpenter")
    grown = rights(karpenter.named("ClusterRole", "topowise-scheduler")) - rights(cluster_role)
    assert grown == needs(KNOWN_NODES)
    assert "nodes" in restricted(karpenter)


def test_kueue_takes_rights_on_workloads_and_checks(render: Any) -> None:
    objects = render("", "scheduler.config.kueue.enabled=true")
    cluster_role = objects.named("ClusterRole", "topowise-scheduler")
    assert rights(cluster_role) == needs(SCHEDULER) | needs(KUEUE) | KUEUE_WATCH
    assert restricted(objects) >= {"workloads/status", "admissionchecks/status"}


def test_claims_take_rights_only_where_they_are_switched_on(render: Any) -> None:
    objects = render("", "scheduler.config.resourceClaims.enabled=true")
    assert rights(objects.named("ClusterRole", "topowise-scheduler")) == needs(SCHEDULER) | needs(CLAIMS) | CLAIMS_WATCH
    nothing: Any = None
    paths = [source._path.split("/") for source in claim_watch.reflectors(nothing, nothing)]
    assert {(path[2], path[-1]) for path in paths} == {(group, resource) for group, resource, _ in CLAIMS_WATCH}


def test_a_dry_run_takes_no_right(render: Any) -> None:
    objects = render("", "scheduler.config.preemptor.enabled=true", "scheduler.config.preemptor.dryRun=true")
    assert rights(objects.named("ClusterRole", "topowise-scheduler")) == needs(SCHEDULER)


def restricted(objects: Any, component: str = "scheduler") -> set[str]:
    """The resources whose writes a policy of the component limits."""
    return {
        resource
        for policy in objects.kinds("ValidatingAdmissionPolicy")
        if policy["metadata"]["labels"]["app.kubernetes.io/component"] == component
        for rule in policy["spec"]["matchConstraints"]["resourceRules"]
        for resource in rule["resources"]
    }


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("startupTaint.enabled",),
        ("refusedPods.delete",),
        ("waitingPods.tell",),
        ("preemptor.enabled",),
        ("nominator.enabled",),
        ("scaleDownGuard.enabled",),
    ],
    ids=lambda options: options[0] if options else "default",
)
def test_each_write_that_a_role_allows_is_limited_by_a_policy(render: Any, options: tuple[str, ...]) -> None:
    objects = render("", *(f"scheduler.config.{option}=true" for option in options))
    roles = [objects.named("ClusterRole", "topowise-scheduler"), objects.named("Role", "topowise-scheduler")]
    written = {resource for _, resource, verb in rights(*roles) if verb not in ("get", "list", "watch")}
    assert restricted(objects) == written | {"serviceaccounts/token"}
    for policy in objects.kinds("ValidatingAdmissionPolicy"):
        name, spec = policy["metadata"]["name"], policy["spec"]
        (condition,) = spec["matchConditions"]
        assert condition["expression"].startswith('request.userInfo.username == "system:serviceaccount:')
        assert spec["failurePolicy"] == "Fail"
        binding = objects.named("ValidatingAdmissionPolicyBinding", name)
        assert binding["spec"] == {"policyName": name, "validationActions": ["Deny"]}


# Of docs/threat-model.md: what switches a row on, as settings of the chart.
ROWS = {
    "scheduler": {
        "always": "",
        "scheduler.extender.bind": "scheduler.extender.bind=true",
        "config.requeue": "scheduler.config.requeue.enabled=true",
        "config.nominator": "scheduler.config.nominator.enabled=true",
        "config.waitingPods": "scheduler.config.waitingPods.tell=true",
        "config.scaleUp": "scheduler.config.scaleUp.enabled=true",
        "config.scaleUp` with `karpenter": ",".join(
            ("scheduler.config.scaleUp.enabled=true", "scheduler.config.scaleUp.autoscaler=karpenter")
        ),
        "config.kueue": "scheduler.config.kueue.enabled=true",
        "config.scaleDownGuard": "scheduler.config.scaleDownGuard.enabled=true",
        "config.preemptor": "scheduler.config.preemptor.enabled=true",
        "config.refusedPods": "scheduler.config.refusedPods.delete=true",
        "steering.enabled": "steering.enabled=true",
        "config.resourceClaims": "scheduler.config.resourceClaims.enabled=true",
        "config.startupTaint": "scheduler.config.startupTaint.enabled=true",
        "more than one replica": "scheduler.replicas=2",
    },
    "exporter": {
        "always": "",
        "config.resourceSlices": "exporter.config.resourceSlices=true",
        "config.numatopology": "exporter.config.numatopology=true",
        "config.podPlacements": "exporter.config.podPlacements=true",
        "steering.enabled": "steering.enabled=true",
        "config.kubelet.configz": "exporter.config.kubelet.configz.enabled=true",
    },
}
LEAST = (
    *("scheduler.extender.bind=false", "scheduler.config.requeue.enabled=false", "scheduler.replicas=1"),
    "exporter.config.resourceSlices=false",
)


def written_down(repository: Path, component: str) -> dict[str, set[tuple[str, str]]]:
    """By what switches a row on, the resources and verbs that the page's table of a component names."""
    page = (repository / "docs/threat-model.md").read_text()
    section = page.partition("### What a thief of a token can do")[2].partition("\n### ")[0]
    table = section.partition(f"**topowise-{component}**")[2].partition("\n**")[0]
    rights: dict[str, set[tuple[str, str]]] = {}
    for switch, cell in re.findall(r"^\| ([^|]+) \| (`[^|]+) \|[^|]+\|[^|]+\|$", table, re.MULTILINE):
        for right in cell.split(", "):
            *verbs, resource = re.findall(r"`([^`]+)`", right)
            rights.setdefault(switch.strip("`"), set()).update((resource, verb) for verb in verbs)
    return rights


@pytest.mark.parametrize("component", ROWS)
def test_the_threat_model_has_each_right_with_what_switches_it_on(
    render: Any, repository: Path, component: str
) -> None:
    rows = written_down(repository, component)
    assert rows.keys() == ROWS[component].keys()
    for switch, setting in ROWS[component].items():
        objects = render("", *LEAST, *([setting] if setting else []))
        roles = [objects.named("ClusterRole", f"topowise-{component}")]
        names = (
            {f"topowise-{component}", "topowise-scheduler-steering", "topowise-scheduler-placeholders"}
            if component == "scheduler"
            else {f"topowise-{component}"}
        )
        roles += [role for role in objects.kinds("Role") if role["metadata"]["name"] in names]
        assert {(resource, verb) for _, resource, verb in rights(*roles)} == rows["always"] | rows[switch], switch


@pytest.mark.parametrize("options", [{"kube_version": "1.29.8"}, {"more": "scheduler.restrictWrites=false"}])
def test_without_policies_the_service_cannot_write_a_pods_spec(render: Any, options: dict[str, str]) -> None:
    objects = render("", *filter(None, [options.pop("more", "")]), **options)
    assert not restricted(objects)
    assert ("", "pods", "patch") not in rights(objects.named("ClusterRole", "topowise-scheduler"))


def test_a_user_that_a_kube_scheduler_has_as_well_is_limited_where_kube_scheduler_writes_nothing(render: Any) -> None:
    more = "scheduler.config.startupTaint.enabled=true", "scheduler.config.preemptor.enabled=true"
    assert restricted(render("kubeadm-static-pod", *more)) == {"nodes", "pods/eviction"}
    own = render("kubeadm-static-pod", *more, "scheduler.static.user=topowise-scheduler")
    assert restricted(own) == {"nodes", "pods/eviction", "pods/status", "pods/binding", "events", "leases"}


def test_without_resource_slices_the_exporter_may_not_read_them(render: Any) -> None:
    objects = render("", "exporter.config.resourceSlices=false")
    assert rights(objects.named("ClusterRole", "topowise-exporter")) == needs(EXPORTER) | OWN_WATCH


def test_pods_may_be_annotated_only_where_that_is_switched_on(render: Any) -> None:
    objects = render("", "exporter.config.podPlacements=true")
    expected = needs(EXPORTER) | EXPORTER_WATCHES | needs(PLACEMENTS)
    assert rights(objects.named("ClusterRole", "topowise-exporter")) == expected
    policy = objects.named("ValidatingAdmissionPolicy", "topowise-exporter-own-node-pods")
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert rule["resources"] == ["pods"]
    assert objects.named("ValidatingAdmissionPolicyBinding", "topowise-exporter-own-node-pods")


def test_before_1_30_the_right_to_patch_any_pod_must_be_accepted(render: Any) -> None:
    setting = "exporter.config.podPlacements=true"
    with pytest.raises(ValueError, match="patch every pod of the cluster"):
        render("", setting, kube_version="1.29.8")
    objects = render("", setting, "exporter.restrictToOwnNode=false", kube_version="1.29.8")
    assert needs(PLACEMENTS) <= rights(objects.named("ClusterRole", "topowise-exporter"))


def test_before_1_30_the_right_to_patch_any_lease_must_be_accepted(render: Any) -> None:
    setting = "steering.enabled=true"
    with pytest.raises(ValueError, match="patch every Lease of the namespace"):
        render("", setting, kube_version="1.29.8")
    objects = render("", setting, "exporter.restrictToOwnNode=false", kube_version="1.29.8")
    assert rights(objects.named("Role", "topowise-exporter")) == needs(STEERING) | STEERING_WATCH


def test_without_steering_nothing_of_the_kubelet_is_writable(render: Any) -> None:
    def writable(objects: Any) -> list[str]:
        pod = objects.named("DaemonSet", "topowise-exporter")["spec"]["template"]["spec"]
        mounts = [mount for container in pod["containers"] for mount in container["volumeMounts"]]
        return [mount["mountPath"] for mount in mounts if not mount.get("readOnly")]

    assert not writable(render(""))
    assert writable(render("", "steering.enabled=true")) == ["/var/lib/kubelet/device-plugins"]


def test_rights_shrink_with_what_is_switched_off(render: Any) -> None:
    objects = render(
        "", "scheduler.extender.bind=false", "scheduler.config.requeue.enabled=false", "scheduler.replicas=1"
    )
    gone = {("", "pods/binding", "create"), ("", "pods/status", "patch")}
    assert rights(objects.named("ClusterRole", "topowise-scheduler")) == needs(SCHEDULER) - gone
    assert [role["metadata"]["name"] for role in objects.kinds("Role")] == ["topowise-scheduler-token"]
    assert restricted(objects) == {"events", "serviceaccounts/token"}


def test_before_1_33_configz_is_refused_unless_nodes_proxy_is_accepted(render: Any) -> None:
    setting = "exporter.config.kubelet.configz.enabled=true"
    with pytest.raises(ValueError, match="nodes/proxy allows"):
        render("", setting, kube_version="1.32.4")
    objects = render("", setting, "exporter.rbac.nodesProxy=true", kube_version="1.32.4")
    assert ("", "nodes/proxy", "get") in rights(objects.named("ClusterRole", "topowise-exporter"))


def test_the_static_pod_gets_its_rights_as_a_user(render: Any) -> None:
    objects = render("kubeadm-static-pod")
    assert not objects.kinds("Deployment")
    assert rights(objects.named("ClusterRole", "topowise-scheduler")) == needs(SCHEDULER)
    role = objects.named("Role", "topowise-scheduler")
    assert role["metadata"]["namespace"] == "kube-system"
    assert rights(role) == needs(ELECTION)
    user = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "system:kube-scheduler"}
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        assert objects.named(kind, "topowise-scheduler")["subjects"] == [user]

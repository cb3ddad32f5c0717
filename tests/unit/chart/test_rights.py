"""RBAC gives exactly what the code asks of the API server: every request in it is listed here, and found by reading it.

A new request in the code fails `test_every_request_in_the_code_is_listed` until its right is listed here. That the
rights suffice, and what policies refuse, is shown on a real API server by tests/nightly/cluster/test_writes.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from topowise import nrt
from topowise_exporter.dra.watch import PATHS
from topowise_exporter.publish import numatopology
from topowise_scheduler.ledger import watch
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.ledger.pods.records import Records
from topowise_scheduler.options.claims import watch as claim_watch
from topowise_scheduler.options.claims.ledger import Claims

Document = dict[str, Any]
Right = tuple[str, str, str]
"""Role, "resource.group", verb."""


def named(path: str) -> str:
    """The "resource.group" of a path of the API server."""
    group, resource = path.split("/")[2] if path.startswith("/apis/") else "", path.rpartition("/")[2]
    return f"{resource}.{group}" if group else resource


NRT, NUMATOPOLOGY = named(nrt.PATH), named(numatopology.PATH)
LEASES, SLICES, KUEUE = "leases.coordination.k8s.io", "resourceslices.resource.k8s.io", "kueue.x-k8s.io"
DRA = "resource.k8s.io"
CLAIM, CLAIM_BINDING = f"resourceclaims.{DRA}", f"resourceclaims/binding.{DRA}"
EVICTION, STATUS = "create pods/eviction", "patch pods/status"
PLACEHOLDERS, STEERING = "topowise-scheduler-placeholders", "topowise-scheduler-steering"
# A watch of topowise/kube/reflector.py, and rights that no request of a module of ours takes by itself.
WATCH, BESIDE = "reflector", ""
WATCHED = (NRT, "nodes", "pods", "poddisruptionbudgets.policy")
CLAIMED = (SLICES, CLAIM, f"deviceclasses.{DRA}")
TEMPLATES = f"resourceclaimtemplates.{DRA}"
ELECTION = {"topowise/kube/lease.py ?": f"get,create,update {LEASES}"}

# By what switches them on, as docs/threat-model.md has it: settings of the chart, and the rights of each request, which
# is a module and a method; "in ROLE" is a Role of the namespace. Server-side apply creates what is not there.
SWITCHES: dict[str, dict[str, tuple[str, dict[str, str]]]] = {
    "exporter": {
        "always": (
            "",
            {
                "topowise_exporter/publish/writer.py PATCH": f"patch,create {NRT}",
                "topowise_exporter/publish/writer.py GET": f"get {NRT}; get nodes",
                WATCH: f"list,watch {NRT}",
            },
        ),
        "config.resourceSlices": ("exporter.config.resourceSlices=true", {WATCH: f"list,watch {SLICES}"}),
        "config.numatopology": (
            "exporter.config.numatopology=true",
            {BESIDE: f"get,create,patch {NUMATOPOLOGY}"},
        ),
        "config.podPlacements": (
            "exporter.config.podPlacements=true",
            {"topowise_exporter/annotator.py PATCH": "patch pods", "topowise_exporter/annotator.py GET": "list pods"},
        ),
        "steering.enabled": (
            "steering.enabled=true",
            {
                "topowise_exporter/steering/lease.py PATCH": f"patch {LEASES} in topowise-exporter",
                WATCH: f"list,watch {LEASES} in topowise-exporter",
            },
        ),
        "config.kubelet.configz": (
            "exporter.config.kubelet.configz.enabled=true",
            {BESIDE: "get nodes/configz; get nodes/metrics"},
        ),
    },
    "scheduler": {
        "always": (
            "",
            {
                "topowise_scheduler/controllers/events.py POST": "create events.events.k8s.io",
                "topowise/kube/reflector.py GET": "; ".join(f"list {resource}" for resource in WATCHED),
                "topowise/kube/reflector.py stream": "; ".join(f"watch {resource}" for resource in WATCHED),
                "topowise_scheduler/serve/extender/explaining.py GET": "get pods",
                "topowise_scheduler/serve/extender/binding.py GET": "get pods",
            },
        ),
        "scheduler.extender.bind": (
            "scheduler.extender.bind=true",
            {"topowise_scheduler/serve/extender/binding.py POST": "create pods/binding"},
        ),
        "config.requeue": (
            "scheduler.config.requeue.enabled=true",
            {"topowise_scheduler/controllers/requeue.py PATCH": STATUS},
        ),
        "config.waitingPods": (
            "scheduler.config.waitingPods.tell=true",
            {"topowise_scheduler/controllers/waiting_pods.py PATCH": STATUS},
        ),
        "config.preemptor": (
            "scheduler.config.preemptor.enabled=true",
            {
                "topowise_scheduler/controllers/nomination.py PATCH": STATUS,
                "topowise_scheduler/controllers/preemptor.py GET": "get pods",
                "topowise_scheduler/controllers/evictions.py POST": EVICTION,
            },
        ),
        "config.refusedPods": (
            "scheduler.config.refusedPods.delete=true",
            {
                "topowise_scheduler/controllers/refused_pods.py GET": "get pods",
                "topowise_scheduler/controllers/refused_pods.py DELETE": "delete pods",
            },
        ),
        "config.placement": (
            "scheduler.config.placement.enabled=true",
            {
                "topowise_scheduler/controllers/nomination.py PATCH": STATUS,
                "topowise_scheduler/controllers/placement/writing.py GET": "get pods",
                "topowise_scheduler/controllers/placement/writing.py PATCH": "patch pods",
                "topowise_scheduler/controllers/placement/writing.py DELETE": "delete pods",
            },
        ),
        "config.startupTaint": (
            "scheduler.config.startupTaint.enabled=true",
            {
                "topowise_scheduler/controllers/startup_taint.py GET": "get nodes",
                "topowise_scheduler/controllers/startup_taint.py PATCH": "patch nodes",
            },
        ),
        "config.scaleDownGuard": (
            "scheduler.config.scaleDownGuard.enabled=true",
            {
                "topowise_scheduler/controllers/scale_down_guard.py PATCH": "patch nodes",
                "topowise_scheduler/controllers/pod_lists.py GET": "list pods",
            },
        ),
        "config.scaleUp": (
            "scheduler.config.scaleUp.enabled=true",
            {
                "topowise_scheduler/controllers/scale_up.py GET": f"list pods in {PLACEHOLDERS}",
                "topowise_scheduler/controllers/scale_up.py POST": f"create pods in {PLACEHOLDERS}",
                "topowise_scheduler/controllers/scale_up.py DELETE": f"delete pods in {PLACEHOLDERS}",
                "topowise_scheduler/controllers/scale_up.py PATCH": STATUS,
                # The daemon pods of a node.
                "topowise_scheduler/controllers/pod_lists.py GET": "list pods",
            },
        ),
        "config.kueue": (
            "scheduler.config.kueue.enabled=true",
            {
                "topowise_scheduler/controllers/admission_checks.py GET": (
                    f"list admissionchecks.{KUEUE}; list resourceflavors.{KUEUE}"
                ),
                "topowise_scheduler/controllers/admission_checks.py PATCH": (
                    f"patch workloads/status.{KUEUE}; patch admissionchecks/status.{KUEUE}"
                ),
                WATCH: f"list,watch workloads.{KUEUE}",
            },
        ),
        # The Node owns the Lease of requests to the marker plug-in.
        "steering.enabled": (
            "steering.enabled=true",
            {
                "topowise_scheduler/options/steering/leases.py GET": "get nodes",
                "topowise_scheduler/options/steering/leases.py PATCH": f"create,patch {LEASES} in {STEERING}",
                WATCH: f"list,watch {LEASES} in {STEERING}",
            },
        ),
        # The version of the API server can be read by every account.
        "config.resourceClaims": (
            "scheduler.config.resourceClaims.enabled=true",
            {
                "topowise_scheduler/options/claims/prebind.py GET": f"get {CLAIM}",
                WATCH: "; ".join(f"list,watch {resource}" for resource in CLAIMED),
            },
        ),
        "more than one replica": (
            "scheduler.replicas=2",
            {request: f"{rights} in topowise-scheduler" for request, rights in ELECTION.items()},
        ),
    },
    # Of kube-scheduler's account, in mode own.
    "token": {"always": ("", {"topowise/kube/account_token.py POST": "create serviceaccounts/token"})},
}
SCALE_UP = SWITCHES["scheduler"]["config.scaleUp"]
SWITCHES["scheduler"]["config.scaleUp` with `karpenter"] = (
    f"{SCALE_UP[0]},scheduler.config.scaleUp.autoscaler=karpenter",
    {**SCALE_UP[1], "topowise_scheduler/controllers/known_nodes.py PATCH": "patch nodes"},
)
CLAIMS, PLACES = (SWITCHES["scheduler"][f"config.{name}"] for name in ("resourceClaims", "placement"))
DRIVERS = f"{CLAIMS[0]},{PLACES[0]},scheduler.config.resourceClaims.drivers[0]=gpu.example.com"
SWITCHES["scheduler"]["config.resourceClaims` with `drivers"] = (
    DRIVERS,
    {
        **CLAIMS[1],
        **PLACES[1],
        WATCH: f"{CLAIMS[1][WATCH]}; list,watch {TEMPLATES}",
        "topowise_scheduler/options/claims/allocation.py PATCH": f"patch {CLAIM}; patch resourceclaims/status.{DRA}",
        "topowise_scheduler/controllers/unused_claims.py GET": "get pods",
        # Since 1.36 the API server asks for resourceclaims/binding beside the status; no request is of it.
        BESIDE: f"update,patch {CLAIM_BINDING}",
    },
)
LEAST = (
    *("scheduler.extender.bind=false", "scheduler.config.requeue.enabled=false", "scheduler.replicas=1"),
    "exporter.config.resourceSlices=false",
)
OBJECTS = {"read": "GET", "create": "POST", "patch": "PATCH", "delete": "DELETE"}


@cache
def read_code(repository: Path) -> tuple[set[str], list[str]]:
    """Module and method of every call of Api.request and Api.stream, also by controllers/objects.py; and every text
    with something in it that begins like a path of the API server, where more than constants of ours is in it."""
    requests, unsafe = set[str](), list[str]()
    for package in ("exporter", "plugin", "proto"):
        for path in (repository / package).rglob("*.py"):
            module = path.relative_to(repository / package)
            # The kubectl plug-in has the rights of its user.
            has_rights = "kubectl" not in module.parts and not module.match("controllers/objects.py")
            for node in ast.walk(ast.parse(path.read_text())):
                if has_rights and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    requests.update(_requests(node, node.func, module))
                elif isinstance(node, ast.JoinedStr) and not _is_safe(node):
                    unsafe.append(f"{module}:{node.lineno}: {ast.unparse(node)}")
    return requests, unsafe


def _requests(call: ast.Call, function: ast.Attribute, module: Path) -> Iterator[str]:
    owner = getattr(function.value, "id", getattr(function.value, "attr", ""))
    if owner == "objects" and "controllers" in module.parts:
        yield f"{module} {OBJECTS[function.attr]}"
    if function.attr in ("request", "stream") and owner in ("api", "_api"):
        first = call.args[0]
        method = str(first.value) if isinstance(first, ast.Constant) else "?"
        yield f"{module} {'stream' if function.attr == 'stream' else method}"


def _is_safe(text: ast.JoinedStr) -> bool:
    first = text.values[0]
    if isinstance(first, ast.FormattedValue):
        names_one = "PATH" in ast.unparse(first.value)
    else:
        names_one = isinstance(first, ast.Constant) and str(first.value).startswith(("/api/", "/apis/"))
    parts = (part.value for part in text.values if isinstance(part, ast.FormattedValue))
    return not names_one or all(
        part.rpartition(".")[2].lstrip("_").isupper() or part == "version" or part.startswith("quote(")
        for part in map(ast.unparse, parts)
    )


def rights(*roles: Document) -> set[Right]:
    """The rights of roles; those of a ClusterRole have the role ""."""
    return {
        (role["metadata"]["name"] if role["kind"] == "Role" else "", f"{resource}.{group}".removesuffix("."), verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def needs(component: str, *switches: str) -> set[Right]:
    """What the requests of switches take."""
    taken = set()
    for switch in ("always", *switches):
        for listed in SWITCHES[component][switch][1].values():
            for text in filter(None, listed.split("; ")):
                right, _, role = text.partition(" in ")
                verbs, _, resource = right.partition(" ")
                taken |= {(role, resource, verb) for verb in verbs.split(",")}
    return taken


def of_cluster(taken: set[Right]) -> set[Right]:
    return {right for right in taken if not right[0]}


def roles_of(objects: Any, component: str) -> list[Document]:
    names = {f"topowise-{component}", *(role for role, _, _ in needs(component, *SWITCHES[component]))}
    roles = [role for role in objects.kinds("Role") if role["metadata"]["name"] in names]
    return [objects.named("ClusterRole", f"topowise-{component}"), *roles]


def restricted(objects: Any, component: str = "scheduler") -> set[str]:
    """The resources whose writes a policy of the component limits."""
    return {
        resource
        for policy in objects.kinds("ValidatingAdmissionPolicy")
        if policy["metadata"]["labels"]["app.kubernetes.io/component"] == component
        for rule in policy["spec"]["matchConstraints"]["resourceRules"]
        for resource in rule["resources"]
    }


def written_down(repository: Path, component: str) -> dict[str, set[tuple[str, str]]]:
    """By what switches a row on, the resources and verbs that the page's table of a component names."""
    page = (repository / "docs/threat-model.md").read_text()
    section = page.partition("### What a thief of a token can do")[2].partition("\n### ")[0]
    table = section.partition(f"**topowise-{component}**")[2].partition("\n**")[0]
    rows: dict[str, set[tuple[str, str]]] = {}
    for switch, cell in re.findall(r"^\| ([^|]+) \| (`[^|]+) \|[^|]+\|[^|]+\|$", table, re.MULTILINE):
        for right in cell.split(", "):
            *verbs, resource = re.findall(r"`([^`]+)`", right)
            rows.setdefault(switch.strip("`"), set()).update((resource, verb) for verb in verbs)
    return rows


def test_every_request_in_the_code_is_listed(repository: Path) -> None:
    listed = {
        request for rows in SWITCHES.values() for _, calls in rows.values() for request in calls if " " in request
    }
    assert read_code(repository)[0] == listed


def test_every_watched_collection_is_listed() -> None:
    nothing: Any = None
    sources = watch.reflectors(nothing, nothing, Records(), Budgets(), watch.Nodes())
    assert {named(source._path) for source in sources} == set(WATCHED)
    for drivers, watched in (((), CLAIMED), (("gpu.example.com",), (*CLAIMED, TEMPLATES))):
        assert {named(source._path) for source in claim_watch.reflectors(nothing, Claims(drivers))} == set(watched)
    assert {named(path) for path in PATHS} == {SLICES}


def test_accounts_may_do_what_they_do_by_default_and_no_more(default: Any) -> None:
    assert rights(*roles_of(default, "exporter")) == needs("exporter", "config.resourceSlices")
    on = ("scheduler.extender.bind", "config.requeue", "more than one replica")
    assert rights(*roles_of(default, "scheduler")) == needs("scheduler", *on)
    (leases,) = (role for role in roles_of(default, "scheduler") if role["kind"] == "Role")
    assert resource_names(leases) == [["topowise-scheduler-requeue"]]
    assert bound(default, "topowise-scheduler") == {
        ("ClusterRole", "topowise-scheduler", ""),
        ("Role", "topowise-scheduler", "topowise-system"),
    }


def test_mode_gate_has_the_rights_of_placement_and_no_account_of_a_kube_scheduler(render: Any) -> None:
    objects = render("", "scheduler.mode=gate")
    granted = rights(*roles_of(objects, "scheduler"))
    assert granted == needs("scheduler", "config.placement", "more than one replica")
    assert ("", "pods/binding", "create") not in granted
    assert restricted(objects) == {"pods", "pods/status", "events", "leases"}
    accounts = {"topowise-exporter", "topowise-scheduler"}
    assert {account["metadata"]["name"] for account in objects.kinds("ServiceAccount")} == accounts
    bindings = (*objects.kinds("ClusterRoleBinding"), *objects.kinds("RoleBinding"))
    assert {binding["roleRef"]["name"] for binding in bindings} == accounts
    assert {binding["metadata"].get("namespace", "topowise-system") for binding in bindings} == {"topowise-system"}
    # Its policies allow what it writes: no annotation of requeueing, as nothing is requeued.
    status = objects.named("ValidatingAdmissionPolicy", "topowise-scheduler-pod-status")["spec"]
    assert "topowise.io/requeued" not in str(status)


def resource_names(role: Document) -> list[list[str]]:
    return [rule["resourceNames"] for rule in role["rules"] if rule["verbs"] != ["create"]]


def test_the_kube_scheduler_has_the_roles_of_the_clusters_own(default: Any) -> None:
    assert bound(default, "topowise-kube-scheduler") == {
        ("ClusterRole", "system:kube-scheduler", ""),
        ("ClusterRole", "system:volume-scheduler", ""),
        ("Role", "extension-apiserver-authentication-reader", "kube-system"),
        ("Role", "topowise-kube-scheduler", "topowise-system"),
        ("Role", "topowise-scheduler-token", "topowise-system"),
    }
    token = default.named("Role", "topowise-scheduler-token")
    assert {right[1:] for right in rights(token)} == {right[1:] for right in needs("token")}
    assert [rule["resourceNames"] for rule in token["rules"]] == [["topowise-scheduler"]]
    lease = default.named("Role", "topowise-kube-scheduler")
    assert {right[1:] for right in rights(lease)} == {(LEASES, verb) for verb in ("get", "create", "update")}
    assert resource_names(lease) == [["topowise-scheduler"]]


def test_an_account_that_service_and_kube_scheduler_share_has_the_roles_of_both(render: Any) -> None:
    account = "scheduler.kubeScheduler.serviceAccount"
    objects = render("", f"{account}.name=topowise-scheduler", f"{account}.create=false")
    names = [role["metadata"]["name"] for role in objects.kinds("Role")]
    assert len(set(names)) == len(names)
    kept = {("Role", name, "topowise-system") for name in ("topowise-kube-scheduler", "topowise-scheduler")}
    assert kept <= bound(objects, "topowise-scheduler")


def bound(objects: Any, account: str) -> set[tuple[str, str, str]]:
    """Kind and name of each role that an account has, and the namespace in which."""
    return {
        (item["roleRef"]["kind"], item["roleRef"]["name"], item["metadata"].get("namespace", ""))
        for kind in ("ClusterRoleBinding", "RoleBinding")
        for item in objects.kinds(kind)
        if {"kind": "ServiceAccount", "name": account, "namespace": "topowise-system"} in item["subjects"]
    }


def test_no_path_is_put_together_but_by_the_module_that_quotes(repository: Path) -> None:
    assert not read_code(repository)[1]


@pytest.mark.parametrize(
    ("component", "switch"),
    [(component, switch) for component in ("exporter", "scheduler") for switch in SWITCHES[component]],
)
def test_a_switch_gives_the_rights_of_its_requests_and_of_its_row(
    render: Any, repository: Path, component: str, switch: str
) -> None:
    """In the code, in the roles, and in the threat model; and a policy limits each write."""
    objects = render("", *LEAST, *filter(None, [SWITCHES[component][switch][0]]))
    granted = rights(*roles_of(objects, component))
    assert granted == needs(component, switch)
    rows = written_down(repository, component)
    assert rows.keys() == SWITCHES[component].keys()
    shown = {(resource.partition(".")[0], verb) for _, resource, verb in granted}
    assert shown == rows["always"] | rows[switch]
    written = {resource.partition(".")[0] for _, resource, verb in granted if verb not in ("get", "list", "watch")}
    # No request is of this resource: policies limit resourceclaims/status.
    written.discard(CLAIM_BINDING.partition(".")[0])
    if component == "scheduler":
        assert restricted(objects) == written | {"serviceaccounts/token"}
    else:
        assert restricted(objects, "exporter") >= written
    for policy in objects.kinds("ValidatingAdmissionPolicy"):
        name, spec = policy["metadata"]["name"], policy["spec"]
        assert spec["failurePolicy"] == "Fail"
        if policy["metadata"]["labels"]["app.kubernetes.io/component"] == "scheduler":
            # Marks of pods and claims, and devices that the service allocates, are refused to all others.
            is_of_others = name.endswith(("-marks", "-devices"))
            (condition, *_), comparison = spec["matchConditions"], "!=" if is_of_others else "=="
            assert condition["expression"].startswith(f'request.userInfo.username {comparison} "system:serviceaccount:')
        binding = objects.named("ValidatingAdmissionPolicyBinding", name)
        assert binding["spec"] == {"policyName": name, "validationActions": ["Deny"]}


def test_placeholders_have_a_priority_that_cluster_autoscaler_reads(render: Any) -> None:
    objects = render("", *LEAST, "scheduler.config.scaleUp.enabled=true")
    assert objects.named("PriorityClass", "topowise-placeholder")["value"] >= -10
    assert not render("").kinds("PriorityClass")


def test_a_dry_run_takes_no_right(render: Any) -> None:
    switches = "scheduler.config.preemptor.enabled=true", "scheduler.config.preemptor.dryRun=true"
    objects = render("", *LEAST, *switches)
    assert rights(*roles_of(objects, "scheduler")) == needs("scheduler")


@pytest.mark.parametrize("options", [{"kube_version": "1.29.8"}, {"more": "scheduler.restrictWrites=false"}])
def test_without_policies_the_service_cannot_write_a_pods_spec(render: Any, options: dict[str, str]) -> None:
    settings = list(filter(None, [options.pop("more", "")]))
    objects = render("", *settings, **options)
    assert not restricted(objects)
    assert ("", "pods", "patch") not in rights(objects.named("ClusterRole", "topowise-scheduler"))
    with pytest.raises(ValueError, match=r"placement\.enabled\) needs the right to patch and delete all pods"):
        render("", "scheduler.config.placement.enabled=true", *settings, **options)


@pytest.mark.parametrize("mode", ["own", "remote", "gate"])
def test_devices_are_allocated_only_with_placement_policies_and_a_user_of_the_services_own(
    render: Any, mode: str
) -> None:
    drivers = (CLAIMS[0], *DRIVERS.split(",")[2:], f"scheduler.mode={mode}")
    if mode != "gate":
        with pytest.raises(ValueError, match=r"drivers is set and scheduler\.config\.placement\.enabled false"):
            render("", *drivers)
    render("", *drivers, PLACES[0])
    with pytest.raises(ValueError, match="which only ValidatingAdmissionPolicies limit"):
        render("", *drivers, PLACES[0], "scheduler.restrictWrites=false")
    with pytest.raises(ValueError, match=r"needs a user of the service's own, and it is system:kube-scheduler"):
        render("kubeadm-static-pod", DRIVERS)
    render("kubeadm-static-pod", DRIVERS, "scheduler.static.user=topowise-scheduler")


def test_a_static_pod_has_its_rights_as_a_user_that_policies_limit_where_kube_scheduler_writes_nothing(
    render: Any,
) -> None:
    more = "scheduler.config.startupTaint.enabled=true", "scheduler.config.preemptor.enabled=true"
    objects = render("kubeadm-static-pod", *more)
    assert restricted(objects) == {"nodes", "pods/eviction"}
    own = render("kubeadm-static-pod", *more, "scheduler.static.user=topowise-scheduler")
    assert restricted(own) == {"nodes", "pods/eviction", "pods/status", "pods/binding", "events", "leases"}
    assert not objects.kinds("Deployment")
    on = ("scheduler.extender.bind", "config.requeue", "config.startupTaint", "config.preemptor")
    assert rights(*roles_of(objects, "scheduler")) == needs("scheduler", *on, "more than one replica")
    assert objects.named("Role", "topowise-scheduler")["metadata"]["namespace"] == "kube-system"
    user = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "system:kube-scheduler"}
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        assert objects.named(kind, "topowise-scheduler")["subjects"] == [user]


@pytest.mark.parametrize(
    ("switch", "resource", "why", "accepted"),
    [
        ("config.podPlacements", "pods", "patch every pod of the cluster", "exporter.restrictToOwnNode=false"),
        ("steering.enabled", "leases", "patch every Lease of the namespace", "exporter.restrictToOwnNode=false"),
    ],
)
def test_before_1_30_a_write_that_no_policy_limits_must_be_accepted(
    render: Any, switch: str, resource: str, why: str, accepted: str
) -> None:
    setting = SWITCHES["exporter"][switch][0]
    with pytest.raises(ValueError, match=why):
        render("", setting, kube_version="1.29.8")
    objects = render("", setting, accepted, kube_version="1.29.8")
    assert needs("exporter", switch) <= rights(*roles_of(objects, "exporter"))
    policies = render("", setting).kinds("ValidatingAdmissionPolicy")
    assert [resource] in [rule["resources"] for item in policies for rule in _rules(item) if "own-node" in _name(item)]


def _name(policy: Document) -> str:
    return str(policy["metadata"]["name"])


def _rules(policy: Document) -> list[Document]:
    rules: list[Document] = policy["spec"]["matchConstraints"]["resourceRules"]
    return rules


def test_without_steering_nothing_of_the_kubelet_is_writable(render: Any) -> None:
    def writable(objects: Any) -> list[str]:
        pod = objects.named("DaemonSet", "topowise-exporter")["spec"]["template"]["spec"]
        mounts = [mount for container in pod["containers"] for mount in container["volumeMounts"]]
        return [mount["mountPath"] for mount in mounts if not mount.get("readOnly")]

    assert not writable(render(""))
    assert writable(render("", "steering.enabled=true")) == ["/var/lib/kubelet/device-plugins"]


def test_before_1_33_configz_is_refused_unless_nodes_proxy_is_accepted(render: Any) -> None:
    setting = "exporter.config.kubelet.configz.enabled=true"
    with pytest.raises(ValueError, match="nodes/proxy allows"):
        render("", setting, kube_version="1.32.4")
    objects = render("", setting, "exporter.rbac.nodesProxy=true", kube_version="1.32.4")
    assert ("", "nodes/proxy", "get") in rights(objects.named("ClusterRole", "topowise-exporter"))

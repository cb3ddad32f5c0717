"""The values for each distribution render to what its page says, and the recipes for GitOps to what Helm would make."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from topowise import __version__
from topowise.runtime import config
from topowise_exporter.configuration import ExporterConfiguration

Document = dict[str, Any]

KUBELET = "/var/lib/kubelet"
SNAP = "/var/snap/microk8s/common/var/lib/kubelet"
FOLDER = Path(__file__).parents[3] / "charts/topowise/recipes/on"
K3S, RKE2 = (f"/var/lib/rancher/{name}/agent/etc/kubelet.conf.d" for name in ("k3s", "rke2"))
KUBERNETES, OPENSHIFT, EKS = "/etc/kubernetes", "/etc/openshift/kubelet.conf.d", "/etc/kubernetes/kubelet"
# Name: is configz asked, the main file, the drop-ins, the kubelet's root, what is mounted beside root and /sys.
DISTRIBUTIONS: dict[str, tuple[bool, str, str, str, set[str]]] = {
    "kubeadm": (False, f"{KUBELET}/config.yaml", "", KUBELET, set()),
    "kind": (False, f"{KUBELET}/config.yaml", "", KUBELET, set()),
    "k3s": (True, "", K3S, KUBELET, {K3S}),
    "rke2": (True, "", RKE2, KUBELET, {RKE2}),
    "microk8s": (True, "", "", SNAP, set()),
    "talos": (False, f"{KUBERNETES}/kubelet.yaml", "", KUBELET, {KUBERNETES}),
    "openshift": (False, f"{KUBERNETES}/kubelet.conf", OPENSHIFT, KUBELET, {KUBERNETES, OPENSHIFT}),
    "eks": (True, f"{EKS}/config.json", f"{EKS}/config.json.d", KUBELET, {EKS}),
    "gke": (False, "/home/kubernetes/kubelet-config.yaml", "", KUBELET, {"/home/kubernetes"}),
    "aks": (True, "/etc/default/kubeletconfig.json", "", KUBELET, {"/etc/default"}),
}
PAGE_OF = {"rke2": "k3s"}

each = pytest.mark.parametrize("name", DISTRIBUTIONS)


def test_every_file_of_values_is_known_here() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(DISTRIBUTIONS)


@each
def test_what_is_read_is_mounted_where_the_kubelet_has_it_and_configz_takes_the_small_right(
    render: Any, name: str
) -> None:
    has_configz, file, drop_ins, root, beside = DISTRIBUTIONS[name]
    objects = render(f"on/{name}")
    text = objects.named("ConfigMap", "topowise-exporter")["data"]["exporter.yaml"]
    settings = config.parse(ExporterConfiguration, text.encode())
    assert (settings.kubelet.configz.enabled, settings.kubelet.config_file) == (has_configz, file)
    assert (settings.kubelet.config_dir, settings.kubelet_root) == (drop_ins, root)
    assert settings.podresources_socket == f"{root}/pod-resources/kubelet.sock"
    pod = objects.pod("DaemonSet", "topowise-exporter")
    places = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    mounted = {volume["hostPath"]["path"]: places[volume["name"]] for volume in pod["volumes"] if "hostPath" in volume}
    assert mounted.pop("/sys") == "/host/sys"
    assert mounted == {path: path for path in {root, *beside}}
    rights = {
        resource
        for role in objects.kinds("ClusterRole")
        if role["metadata"]["name"].endswith("exporter")
        for rule in role["rules"]
        for resource in rule["resources"]
    }
    assert ("nodes/configz" in rights) is has_configz
    assert "nodes/proxy" not in rights
    if has_configz:
        with pytest.raises(ValueError, match="needs nodes/configz, which Kubernetes"):
            render(f"on/{name}", kube_version="1.32.1")
        assert render(f"on/{name}", "exporter.config.kubelet.configz.enabled=false", kube_version="1.32.1")


@each
def test_the_page_names_every_path(repository: Path, name: str) -> None:
    page = (repository / f"docs/how-to/on/{PAGE_OF.get(name, name)}.md").read_text()
    overview = (repository / "docs/how-to/on/README.md").read_text()
    _, file, drop_ins, root, _ = DISTRIBUTIONS[name]
    for path in filter(None, (file, drop_ins, root)):
        assert f"`{path}`" in page, path
        assert path.startswith("/etc/kubernetes/kubelet/config.json.") or f"`{path}`" in overview, path
    assert f"recipes/on/{name}.yaml" in page
    assert "**Which scheduler.**" in page and "Pod Security" in page
    assert f"docs/how-to/on/{PAGE_OF.get(name, name)}.md" in (FOLDER / f"{name}.yaml").read_text()


def test_openshift_lets_the_exporter_read_the_host_and_do_nothing_else(render: Any) -> None:
    objects = render("on/openshift")
    scc = objects.named("SecurityContextConstraints", "topowise-exporter")
    allowed = {name for name, value in scc.items() if name.startswith("allow") and value}
    assert allowed == {"allowHostDirVolumePlugin"}
    assert scc["requiredDropCapabilities"] == ["ALL"] and scc["readOnlyRootFilesystem"]
    pod = objects.pod("DaemonSet", "topowise-exporter")
    assert {next(iter(volume.keys() - {"name"})) for volume in pod["volumes"]} <= set(scc["volumes"])
    assert pod["containers"][0]["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert scc["seccompProfiles"] == ["runtime/default"]
    used = {}
    for binding in objects.kinds("RoleBinding"):
        if binding["roleRef"]["name"].endswith("-scc"):
            role = objects.named("Role", binding["roleRef"]["name"])
            assert role["rules"][0]["verbs"] == ["use"]
            used[binding["subjects"][0]["name"]] = role["rules"][0]["resourceNames"]
    accounts = [
        objects.pod(kind, f"topowise-{name}")["serviceAccountName"]
        for kind, name in (("DaemonSet", "exporter"), ("Deployment", "scheduler"))
    ]
    assert used == dict(zip(accounts, (["topowise-exporter"], ["nonroot-v2"]), strict=True))
    assert not render().kinds("SecurityContextConstraints")


def test_gke_admits_the_priority_classes_that_the_pods_have(render: Any) -> None:
    def classes(objects: Any) -> list[str]:
        (quota,) = objects.kinds("ResourceQuota")
        (term,) = quota["spec"]["scopeSelector"]["matchExpressions"]
        assert (term["scopeName"], term["operator"]) == ("PriorityClass", "In")
        return list(term["values"])

    objects = render("on/gke")
    pods = [item["spec"]["template"]["spec"] for item in (*objects.kinds("DaemonSet"), *objects.kinds("Deployment"))]
    assert set(classes(objects)) == {pod["priorityClassName"] for pod in pods}
    assert classes(render("on/gke", "scheduler.enabled=false")) == ["system-node-critical"]
    assert not render().kinds("ResourceQuota")


@pytest.mark.parametrize("name", ["argo-cd", "flux"])
def test_gitops_gives_what_helm_takes(chart: Path, values: Document, render: Any, name: str) -> None:
    documents = list(yaml.safe_load_all((chart / f"recipes/gitops/{name}.yaml").read_text()))
    text = yaml.safe_dump_all(documents)
    assert f"v{__version__}" in re.findall(r"(?:targetRevision|tag): (\S+)", text)
    for file in re.findall(r"(?:charts/topowise/)?((?:recipes/on/|values)[\w/-]*\.yaml)", text):
        assert (chart / file).exists(), file
    assert "pod-security.kubernetes.io/enforce: privileged" in text
    if name == "argo-cd":
        (application,) = documents
        helm_values = application["spec"]["source"]["helm"]["valuesObject"]
        tag = helm_values["scheduler"]["kubeScheduler"]["image"]["tag"]
        # Argo CD passes values to Helm without a patch.
        objects = render("on/kubeadm", f"scheduler.kubeScheduler.image.tag={tag}", kube_version="1.35")
        (container,) = objects.pod("Deployment", "topowise-scheduler")["containers"]
        assert container["image"].endswith(f":{tag}")
        assert not objects.kinds("Secret") or all(
            secret["type"].endswith("token") for secret in objects.kinds("Secret")
        )
    else:
        release = documents[-1]
        assert release["metadata"]["namespace"] == documents[0]["metadata"]["name"]
        assert release["spec"]["chart"]["spec"]["sourceRef"]["name"] == documents[1]["metadata"]["name"]

"""What Helm makes of the values: workloads, mounts, configurations, certificates, and what is refused with a reason."""

from __future__ import annotations

import base64
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rendered_chart import RECIPES, Document
from topowise.runtime import config
from topowise_exporter.configuration import ExporterConfiguration
from topowise_scheduler.configuration import SchedulerConfiguration
from topowise_scheduler.kubectl.doctor import kube_scheduler
from topowise_scheduler.ledger.nodes import STARTUP_TAINT
from topowise_scheduler.ledger.pods.exporter_pods import LABELS

Run = Callable[..., subprocess.CompletedProcess[str]]


def scheduler_config(objects: Any) -> SchedulerConfiguration:
    text = objects.named("ConfigMap", "topowise-scheduler")["data"]["scheduler.yaml"]
    return config.parse(SchedulerConfiguration, text.encode())


def exporter_config(objects: Any) -> ExporterConfiguration:
    text = objects.named("ConfigMap", "topowise-exporter")["data"]["exporter.yaml"]
    return config.parse(ExporterConfiguration, text.encode())


def kube_scheduler_config(objects: Any) -> Document:
    return yaml.safe_load(objects.named("ConfigMap", "topowise-scheduler")["data"]["kube-scheduler.yaml"])


def mounts(objects: Any) -> dict[str, str]:
    """Host path -> place in the exporter."""
    pod = objects.pod("DaemonSet", "topowise-exporter")
    places = {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"]}
    assert all(mount["readOnly"] for mount in places.values())
    volumes = [volume for volume in pod["volumes"] if "hostPath" in volume]
    return {volume["hostPath"]["path"]: places[volume["name"]]["mountPath"] for volume in volumes}


def test_labels_and_annotations_of_the_values_are_beside_the_charts_own(render: Any) -> None:
    """Once each: a key that is there twice is refused by strict readers, such as kubectl."""
    key = "app\\.kubernetes\\.io"
    objects = render(
        "",
        *(f"commonLabels.{key}/{name}=platform" for name in ("part-of", "name", "version")),
        "commonLabels.team=metal",
        "exporter.podLabels.team=nodes",
        "scheduler.podAnnotations.kubectl\\.kubernetes\\.io/default-container=kube-scheduler",
        "scheduler.podAnnotations.checksum/config=mine",
        "exporter.podAnnotations=null",
    )
    (exporter,) = objects.kinds("DaemonSet")
    (scheduler,) = objects.kinds("Deployment")
    labels = exporter["metadata"]["labels"]
    assert (labels["team"], labels["app.kubernetes.io/part-of"], labels["app.kubernetes.io/name"]) == (
        "metal",
        "topowise",
        "topowise",
    )
    pods = [item["spec"]["template"]["metadata"] for item in (exporter, scheduler)]
    assert [metadata["labels"]["team"] for metadata in pods] == ["nodes", "metal"]
    assert pods[1]["annotations"]["kubectl.kubernetes.io/default-container"] == "kube-scheduler"
    assert len(pods[1]["annotations"]["checksum/config"]) == 64


def test_mounts_follow_the_configuration(render: Any) -> None:
    assert mounts(render()) == {"/sys": "/host/sys", "/var/lib/kubelet": "/var/lib/kubelet"}
    elsewhere = render(
        "",
        "exporter.config.kubeletRoot=/var/lib/k0s/kubelet",
        "exporter.config.podresourcesSocket=/var/lib/k0s/kubelet/pod-resources/kubelet.sock",
        "exporter.config.kubelet.configFile=/etc/kubernetes/kubelet/config.json",
        "exporter.config.kubelet.configDir=/etc/kubernetes/kubelet/config.json.d",
    )
    assert mounts(elsewhere).keys() == {"/sys", "/var/lib/k0s/kubelet", "/etc/kubernetes/kubelet"}


def test_without_the_root_only_the_sockets_directory_is_mounted(render: Any) -> None:
    without = ("exporter.config.kubeletRoot=", "exporter.config.kubelet.configz.enabled=true")
    with pytest.raises(ValueError, match="is not mounted"):
        render("", *without)
    objects = render("", *without, "exporter.config.kubelet.configFile=")
    assert mounts(objects).keys() == {"/sys", "/var/lib/kubelet/pod-resources"}
    assert exporter_config(objects).kubelet_root == ""


def test_the_exporter_knows_its_node(default: Any) -> None:
    (container,) = default.pod("DaemonSet", "topowise-exporter")["containers"]
    references = [variable for variable in container["env"] if "valueFrom" in variable]
    fields = {variable["name"]: variable["valueFrom"]["fieldRef"]["fieldPath"] for variable in references}
    assert fields == {"NODE_NAME": "spec.nodeName", "NODE_ADDRESS": "status.hostIP"}


def test_a_change_of_the_configuration_replaces_the_pods(render: Any) -> None:
    def sums(*settings: str) -> list[str]:
        objects = render("", *settings)
        return [
            objects.named(kind, name)["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
            for kind, name in (("DaemonSet", "topowise-exporter"), ("Deployment", "topowise-scheduler"))
        ]

    before = sums()
    exporter, scheduler = sums("exporter.config.logging.verbosity=2")
    assert exporter != before[0] and scheduler == before[1]
    exporter, scheduler = sums("scheduler.extender.weight=7")
    assert exporter == before[0] and scheduler != before[1]


def test_kube_scheduler_is_wired_as_the_doctor_recommends(default: Any) -> None:
    """That it asks the service, and who has which Lease, is shown by test_on_a_cluster.py."""
    kube_config = kube_scheduler_config(default)
    assert list(kube_scheduler.check(kube_config)) == []
    assert [profile["schedulerName"] for profile in kube_config["profiles"]] == ["topowise-scheduler"]
    (extender,) = kube_config["extenders"]
    service = scheduler_config(default).extender
    assert (extender["urlPrefix"], extender["bindVerb"]) == (f"http://{service.address}:{service.port}", "bind")


@pytest.mark.parametrize("values", [(), ("steering.enabled=true",)])
def test_kube_scheduler_ignores_markers(render: Any, values: tuple[str, ...]) -> None:
    """Also after steering was switched off: otherwise no node would take a pod that still requests markers."""
    (profile,) = kube_scheduler_config(render("", *values))["profiles"]
    (plug_in,) = profile["pluginConfig"]
    assert plug_in["name"] == "NodeResourcesFit"
    assert plug_in["args"]["ignoredResources"] == ["topowise.io/numa"]


@pytest.mark.parametrize("option", ["steering.enabled", "scheduler.config.resourceClaims.enabled"])
def test_kube_scheduler_waits_longer_for_a_bind_that_takes_longer(render: Any, option: str) -> None:
    objects = render("", f"{option}=true")
    (extender,) = kube_scheduler_config(objects)["extenders"]
    assert extender["httpTimeout"] == "10s"
    assert "managedResources" not in extender, "all pods are the service's concern"
    settings = scheduler_config(objects)
    assert (settings.steering if option == "steering.enabled" else settings.resource_claims).enabled


@pytest.mark.parametrize("values", [(), ("steering.enabled=true",)])
def test_markers_are_managed_where_resources_are(render: Any, values: tuple[str, ...]) -> None:
    resource = "scheduler.extender.managedResources[0].name=example.com/gpu"
    (extender,) = kube_scheduler_config(render("", *values, resource))["extenders"]
    names = [item["name"] for item in extender["managedResources"]]
    assert names == ["example.com/gpu", *(["topowise.io/numa"] if values else [])]


def test_the_service_starts_before_the_scheduler_that_asks_it(default: Any) -> None:
    pod = default.pod("Deployment", "topowise-scheduler")
    token, service = pod["initContainers"]
    # Each container starts after its predecessor is ready: token requester, service, kube-scheduler.
    assert (token["name"], service["name"]) == ("token", "scheduler")
    assert token["restartPolicy"] == service["restartPolicy"] == "Always"
    assert token["startupProbe"]["exec"]["command"] == ["test", "-s", "/run/topowise/token/token"]
    assert service["startupProbe"]["httpGet"]["path"] == "/readyz"
    assert [container["name"] for container in pod["containers"]] == ["kube-scheduler"]


@pytest.mark.parametrize(
    ("cluster", "tag"), [("1.31.2-eks-a1b2c3", "v1.31.2"), ("v1.30.5+k3s1", "v1.30.5"), ("1.36.2-gke.100", "v1.36.2")]
)
def test_kube_scheduler_is_of_the_clusters_version(render: Any, cluster: str, tag: str) -> None:
    pod = render("", kube_version=cluster).pod("Deployment", "topowise-scheduler")
    assert pod["containers"][0]["image"] == f"registry.k8s.io/kube-scheduler:{tag}"


@pytest.mark.parametrize("version", ["", "1.34", "1.34.0"], ids=["Helm's own", "Argo CD's", "could be Helm's own"])
def test_no_unpinned_version_is_taken(helm: Run, chart: Path, version: str) -> None:
    version_flags = [f"--kube-version={version}"] if version else []
    done = helm("template", "topowise", str(chart), *version_flags)
    assert done.returncode != 0
    assert "scheduler.kubeScheduler.image.tag is empty" in done.stderr
    tag = "--set=scheduler.kubeScheduler.image.tag=v1.34.3"
    assert (
        "registry.k8s.io/kube-scheduler:v1.34.3" in helm("template", "topowise", str(chart), *version_flags, tag).stdout
    )
    # Where none runs none is asked for.
    without = f"--values={chart}/recipes/exporter-only.yaml"
    assert helm("template", "topowise", str(chart), *version_flags, without).returncode == 0


def test_kustomize_has_no_version_of_kube_scheduler(default: Any) -> None:
    (container,) = default.pod("Deployment", "topowise-scheduler")["containers"]
    assert container["image"] == "registry.k8s.io/kube-scheduler:set-the-version-of-your-cluster"


def test_a_digest_wins_over_the_tag(render: Any) -> None:
    digest = "sha256:" + "0" * 64
    objects = render("", f"image.digest={digest}", "image.repository=example.com/topowise")
    image = objects.pod("DaemonSet", "topowise-exporter")["containers"][0]["image"]
    assert image == f"example.com/topowise@{digest}"


@pytest.mark.parametrize("mode", ["own", "remote", "gate"])
def test_a_single_replica_has_no_leader_election_and_is_never_doubled(render: Any, mode: str) -> None:
    objects = render("", "scheduler.replicas=1", f"scheduler.mode={mode}")
    assert not scheduler_config(objects).leader_election.enabled
    if mode == "own":
        assert kube_scheduler_config(objects)["leaderElection"]["leaderElect"] is False
    assert objects.named("Deployment", "topowise-scheduler")["spec"]["strategy"] == {"type": "Recreate"}
    assert not objects.kinds("PodDisruptionBudget")


def test_mode_gate_runs_the_service_alone(render: Any) -> None:
    """Placement is on whatever the values say, and nobody reaches the extender."""
    objects = render("", "scheduler.mode=gate", "scheduler.config.placement.form=nominated")
    settings = scheduler_config(objects)
    assert (settings.placement.enabled, settings.placement.form) == (True, "nominated")
    assert (settings.requeue.enabled, settings.leader_election.enabled) == (False, True)
    assert (settings.extender.address, settings.extender.tls) == ("127.0.0.1", None)
    assert objects.named("ConfigMap", "topowise-scheduler")["data"].keys() == {"scheduler.yaml"}
    deployment = objects.named("Deployment", "topowise-scheduler")["spec"]
    pod = deployment["template"]["spec"]
    assert (deployment["replicas"], pod["serviceAccountName"]) == (2, "topowise-scheduler")
    assert "initContainers" not in pod
    (container,) = pod["containers"]
    assert container["name"] == "scheduler"
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {"metrics": 9153}
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert [volume["name"] for volume in pod["volumes"]] == ["config", "service-token"]
    assert "projected" in pod["volumes"][1]
    (rule,) = objects.named("NetworkPolicy", "topowise-scheduler")["spec"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == [9153]
    assert [service["metadata"]["name"] for service in objects.kinds("Service")] == ["topowise-scheduler-metrics"]
    assert objects.named("PodDisruptionBudget", "topowise-scheduler") and not objects.kinds("Secret")
    # It needs no version of a kube-scheduler, so it can be rendered without a cluster.
    assert "registry.k8s.io/kube-scheduler" not in yaml.safe_dump(list(objects))


@pytest.mark.parametrize("mode", ["own", "remote", "gate"])
def test_who_removes_the_startup_taint_does_not_wait_for_it(render: Any, mode: str) -> None:
    """In a cluster whose nodes are all new, no other component removes the taint."""

    def tolerated(*settings: str) -> set[str]:
        pod = render("", f"scheduler.mode={mode}", *settings).pod("Deployment", "topowise-scheduler")
        return {toleration["key"] for toleration in pod["tolerations"]}

    control_plane = "node-role.kubernetes.io/control-plane"
    assert tolerated() == {control_plane}
    enabled = "scheduler.config.startupTaint.enabled=true"
    assert tolerated(enabled) == {control_plane, STARTUP_TAINT}
    assert tolerated(enabled, "scheduler.tolerations=null") == {STARTUP_TAINT}


def test_with_hard_anti_affinity_a_rollout_may_stop_a_replica_first(render: Any) -> None:
    """By default neither of two replicas may be missing, so a third replica would wait for a third node."""

    def missing(*settings: str) -> int | str:
        strategy = render("", *settings).named("Deployment", "topowise-scheduler")["spec"]["strategy"]
        assert strategy["type"] == "RollingUpdate"
        return strategy["rollingUpdate"]["maxUnavailable"]

    assert (missing("scheduler.antiAffinity=hard"), missing()) == (1, "25%")


def test_the_rights_to_a_lease_follow_kube_schedulers_configuration(render: Any) -> None:
    changed = ("leaderElect=true", "resourceName=mine", "resourceNamespace=kube-system")
    settings = (f"scheduler.kubeScheduler.config.leaderElection.{setting}" for setting in changed)
    objects = render("", "scheduler.replicas=1", *settings)
    assert kube_scheduler_config(objects)["leaderElection"]["leaderElect"] is True
    role = objects.named("Role", "topowise-kube-scheduler")
    assert (role["metadata"]["namespace"], role["rules"][1]["resourceNames"]) == ("kube-system", ["mine"])
    binding = objects.named("RoleBinding", "topowise-kube-scheduler")
    assert binding["metadata"]["namespace"] == "kube-system"
    assert binding["subjects"][0]["namespace"] == "topowise-system"


def test_the_ports_follow_the_configuration(render: Any) -> None:
    objects = render("", "exporter.config.serving.port=9999", "monitoring.monitor.enabled=true")
    (container,) = objects.pod("DaemonSet", "topowise-exporter")["containers"]
    assert [port["containerPort"] for port in container["ports"]] == [9999]
    ingress = objects.named("NetworkPolicy", "topowise-exporter")["spec"]["ingress"]
    assert ingress[0]["ports"][0]["port"] == 9999


@pytest.mark.parametrize("off", ["serving.port=0", "serving.address=127.0.0.1", "serving.address=::1"])
def test_no_probe_uses_a_port_that_is_not_open(render: Any, off: str) -> None:
    objects = render("", f"exporter.config.{off}", "monitoring.monitor.enabled=true")
    (container,) = objects.pod("DaemonSet", "topowise-exporter")["containers"]
    assert not {"ports", "startupProbe", "livenessProbe", "readinessProbe"} & container.keys()
    assert "topowise-exporter" not in {monitor["metadata"]["name"] for monitor in objects.kinds("PodMonitor")}


@pytest.mark.parametrize("recipe", ["", "default-scheduler"])
def test_one_family_of_addresses_is_chosen_for_all_that_listens(render: Any, recipe: str) -> None:
    """In an IPv6-only cluster 0.0.0.0 is unreachable, and failing probes restart the pods."""
    objects = render(recipe, "exporter.config.serving.address=::", "scheduler.config.serving.address=::")
    assert (exporter_config(objects).serving.address, scheduler_config(objects).serving.address) == ("::", "::")
    assert scheduler_config(objects).extender.address == ("::" if recipe else "127.0.0.1")
    commands = [container["command"] for container in containers_of(objects)]
    assert recipe or [word for word in commands[0] if word.startswith("--bind-address")] == ["--bind-address=::"]
    ports = objects.named("NetworkPolicy", "topowise-scheduler")["spec"]["ingress"][0]["ports"]
    assert ports[0]["port"] == 9153


@pytest.mark.parametrize(
    ("address", "is_open"), [("0.0.0.0", True), ("::", True), ("127.0.0.1", False), ("::1", False)]
)
def test_a_port_that_the_configuration_opens_is_let_in(render: Any, address: str, is_open: bool) -> None:
    ports = {"readOnly": 8081, "grpc": 50051}
    fields = (f"{section}.{field}" for section in ports for field in (f"address={address}", f"port={ports[section]}"))
    objects = render("", *(f"scheduler.config.{field}" for field in fields))
    rules = objects.named("NetworkPolicy", "topowise-scheduler")["spec"]["ingress"]
    let_in = {entry["port"] for rule in rules for entry in rule["ports"]}
    assert let_in & set(ports.values()) == (set(ports.values()) if is_open else set())


def test_probes_speak_tls_where_the_port_does(render: Any) -> None:
    files = "exporter.config.serving.tls.certFile=/tls/crt", "exporter.config.serving.tls.keyFile=/tls/key"
    (container,) = render("", *files).pod("DaemonSet", "topowise-exporter")["containers"]
    assert container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"


def test_the_remote_extender_speaks_mutual_tls(render: Any, tmp_path: Path) -> None:
    objects = render("default-scheduler", "scheduler.service.clusterIP=10.96.0.100")
    extender = scheduler_config(objects).extender
    assert extender.address == "0.0.0.0"
    assert extender.tls is not None
    mounted = {mount["mountPath"]: mount["name"] for mount in containers_of(objects)[0]["volumeMounts"]}
    for file in (extender.tls.cert_file, extender.tls.key_file, extender.tls.client_ca_file):
        assert str(Path(file).parent) in mounted
    service = objects.named("Service", "topowise-scheduler-extender")["spec"]
    assert service["clusterIP"] == "10.96.0.100"
    assert service["sessionAffinity"] == "ClientIP"
    server = unpacked(objects, "topowise-scheduler-extender-tls", tmp_path)
    client = unpacked(objects, "topowise-scheduler-extender-client", tmp_path)
    assert server["ca.crt"].read_text() == client["ca.crt"].read_text()
    for files in (server, client):
        # Loads only if key and certificate fit each other, in the form that Python wants.
        ssl.create_default_context(cafile=str(files["ca.crt"])).load_cert_chain(files["tls.crt"], files["tls.key"])
    names = ssl._ssl._test_decode_cert(str(server["tls.crt"]))["subjectAltName"]  # type: ignore[attr-defined]
    assert ("DNS", "topowise-scheduler-extender.topowise-system.svc") in names
    assert ("IP Address", "10.96.0.100") in names


def containers_of(objects: Any) -> list[Document]:
    return objects.pod("Deployment", "topowise-scheduler")["containers"]


def unpacked(objects: Any, secret: str, folder: Path) -> dict[str, Path]:
    files = {}
    for name, text in objects.named("Secret", secret)["data"].items():
        files[name] = folder / f"{secret}-{name}"
        files[name].write_bytes(base64.b64decode(text))
    return files


def test_cert_manager_is_asked_for_the_names_of_the_service(render: Any) -> None:
    objects = render("cert-manager")
    assert not objects.kinds("Secret")
    server = objects.named("Certificate", "topowise-scheduler-extender-tls")["spec"]
    assert "topowise-scheduler-extender.topowise-system.svc" in server["dnsNames"]
    assert "server auth" in server["usages"]
    assert "client auth" in objects.named("Certificate", "topowise-scheduler-extender-client")["spec"]["usages"]
    assert server["issuerRef"]["name"] in {issuer["metadata"]["name"] for issuer in objects.kinds("Issuer")}
    issuer = ("scheduler.tls.certManager.issuerRef.name=mine", "scheduler.tls.certManager.issuerRef.kind=ClusterIssuer")
    with_issuer = render("cert-manager", *issuer)
    assert not with_issuer.kinds("Issuer")
    assert len(with_issuer.kinds("Certificate")) == 2


def test_an_existing_secret_has_to_be_named(render: Any) -> None:
    with pytest.raises(ValueError, match=r"existingSecret\.name is needed"):
        render("default-scheduler", "scheduler.tls.source=existingSecret")
    objects = render(
        "default-scheduler", "scheduler.tls.source=existingSecret", "scheduler.tls.existingSecret.name=my-certificate"
    )
    assert not objects.kinds("Secret")
    volumes = objects.pod("Deployment", "topowise-scheduler")["volumes"]
    assert {volume["secret"]["secretName"] for volume in volumes if "secret" in volume} == {"my-certificate"}


def test_old_clusters_get_no_policy_that_they_do_not_know(render: Any) -> None:
    assert render().kinds("ValidatingAdmissionPolicy")
    old = render("", kube_version="1.29.9")
    assert not old.kinds("ValidatingAdmissionPolicy")
    sys_mount = old.pod("DaemonSet", "topowise-exporter")["containers"][0]["volumeMounts"][1]
    assert "recursiveReadOnly" not in sys_mount


MARKERS = ("steering.enabled=true", "steering.addMarkers=true")
MUTATING_POLICIES = "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy"


def test_markers_are_added_to_no_pods_by_default(render: Any) -> None:
    for values in ((), MARKERS[:1], MARKERS[1:]):
        assert not [item for item in render("", *values) if item["kind"].startswith("Mutating")]


def test_an_older_cluster_without_the_api_for_markers_is_an_error(render: Any) -> None:
    with pytest.raises(ValueError, match=r"set steering\.addMarkers=false"):
        render("", *MARKERS, kube_version="1.35.2")
    documents = render("", *MARKERS, kube_version="1.35.2", api=MUTATING_POLICIES)
    versions = {item["apiVersion"] for item in documents if item["kind"].startswith("Mutating")}
    assert versions == {"admissionregistration.k8s.io/v1beta1"}


PLACEMENT = "scheduler.config.placement.enabled=true"
NO_GATES = "scheduler.placement.addGates=false"


@pytest.mark.parametrize(
    ("settings", "options", "version"),
    [
        ((), {}, ""),
        ((PLACEMENT,), {}, "v1"),
        (("scheduler.mode=gate",), {}, "v1"),
        ((PLACEMENT, NO_GATES), {}, ""),
        ((PLACEMENT,), {"kube_version": "1.35.2"}, ""),
        ((PLACEMENT,), {"kube_version": "1.35.2", "api": MUTATING_POLICIES}, "v1beta1"),
    ],
)
def test_gates_are_added_where_placement_is_on_and_the_api_is_served(
    render: Any, settings: tuple[str, ...], options: dict[str, str], version: str
) -> None:
    items = [item for item in render("", *settings, **options) if item["kind"].startswith("Mutating")]
    assert {item["apiVersion"] for item in items} == ({f"admissionregistration.k8s.io/{version}"} if version else set())
    assert len(items) == (3 if version else 0)


def test_a_misspelt_option_is_refused(render: Any) -> None:
    with pytest.raises(ValueError, match="nodename"):
        render("", "exporter.config.nodename=x")


CLAIMS = "scheduler.config.resourceClaims"


@pytest.fixture
def notes(helm: Run, chart: Path) -> Callable[..., str]:
    """What Helm prints after an installation."""

    def printed(recipe: str, *settings: str) -> str:
        values = [f"--values={chart}/recipes/{recipe}.yaml"] if recipe else []
        values += [f"--set={setting}" for setting in ("scheduler.kubeScheduler.image.tag=v1.36.2", *settings)]
        done = helm("install", "topowise", str(chart), "--dry-run=client", "--namespace=topowise-system", *values)
        if "Kubernetes cluster unreachable" in done.stderr:
            pytest.skip("this Helm (before 4) shows notes only with a cluster")
        assert done.returncode == 0, done.stderr
        return done.stdout.partition("NOTES:")[2]

    return printed


@pytest.mark.parametrize("recipe", RECIPES)
def test_notes_print_the_next_commands(notes: Callable[..., str], recipe: str) -> None:
    text = notes(recipe)
    assert "kubectl get noderesourcetopologies" in text
    assert "is installed, from ghcr.io/topowise/topowise:" in text
    assert "ErrImagePull" in text
    assert "kubectl label namespace topowise-system pod-security.kubernetes.io/enforce=privileged" in text
    if not recipe:
        assert "runs registry.k8s.io/kube-scheduler:v1.36.2, as\nscheduler.kubeScheduler.image sets.\n" in text
        assert_warned(text, "")
    _, has_extender, entry = text.partition("  extenders:\n")
    assert bool(has_extender) == (recipe in ("default-scheduler", "cert-manager", "opt-in"))
    if has_extender:
        (extender,) = yaml.safe_load(entry.partition("\n\n")[0])
        assert extender["urlPrefix"].startswith("https://")
        assert extender["tlsConfig"]["serverName"] == "topowise-scheduler-extender.topowise-system.svc"
        assert extender["nodeCacheCapable"] is True


def assert_warned(text: str, expected: str) -> None:
    for warning in ("WARNING: no ValidatingAdmissionPolicy", "the same user as a kube-scheduler"):
        assert (warning in text) == (bool(expected) and warning in expected), text


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (("scheduler.restrictWrites=false",), "WARNING: no ValidatingAdmissionPolicy limits the service's writes"),
        (("scheduler.mode=static",), "The service has the same user as a kube-scheduler"),
        (("scheduler.mode=static", "scheduler.static.user=topowise-scheduler"), ""),
    ],
)
def test_notes_warn_where_policies_do_not_limit_the_service(
    notes: Callable[..., str], settings: tuple[str, ...], expected: str
) -> None:
    assert_warned(notes("", *settings), expected)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (("scheduler.mode=gate",), "kubectl label namespace MINE topowise.io/placement=enabled"),
        ((PLACEMENT,), "kubectl label namespace MINE topowise.io/placement=enabled"),
        ((PLACEMENT, NO_GATES), "nothing adds it, as\nscheduler.placement.addGates is false."),
        (
            ("scheduler.mode=gate", f"{CLAIMS}.enabled=true", f"{CLAIMS}.drivers={{a.example,b.example}}"),
            "Devices of a.example, b.example are allocated by topowise alone, in the whole cluster.",
        ),
    ],
)
def test_notes_say_how_pods_get_the_gate(notes: Callable[..., str], settings: tuple[str, ...], expected: str) -> None:
    assert expected in notes("", *settings)
    assert expected not in notes("")


@pytest.mark.parametrize(
    ("setting", "address", "read_only"),
    [
        ("config.readOnly.port=9081", "topowise-scheduler-extender.topowise-system.svc", True),
        ("service.clusterIP=fd00::17", "[fd00::17]", True),
        ("config.readOnly.port=0", "topowise-scheduler-extender.topowise-system.svc", False),
    ],
)
def test_notes_print_the_ports_of_the_configuration(
    notes: Callable[..., str], setting: str, address: str, read_only: bool
) -> None:
    text = notes("", "scheduler.mode=remote", "scheduler.config.extender.port=9443", f"scheduler.{setting}")
    assert f"urlPrefix: https://{address}:9443" in text
    port = "9081" if setting.endswith("9081") else "8081"
    assert (f"port-forward deployment/topowise-scheduler {port}" in text) == ("port-forward" in text) == read_only


def test_the_scheduler_knows_the_exporters_of_the_chart(render: Any) -> None:
    objects = render("", "exporter.nodeSelector.pool=numa")
    known, pod = (
        scheduler_config(objects).exporters,
        objects.named("DaemonSet", "topowise-exporter")["spec"]["template"],
    )
    assert known.namespace == objects.named("DaemonSet", "topowise-exporter")["metadata"]["namespace"]
    assert LABELS.items() <= pod["metadata"]["labels"].items()
    assert known.node_selector == pod["spec"]["nodeSelector"]
    assert known.node_selector["pool"] == "numa"
    assert scheduler_config(render("", "exporter.enabled=false")).exporters.namespace == ""


@pytest.mark.parametrize("recipe", ["", "default-scheduler", "opt-in"])
def test_who_lacks_cpu_is_not_killed_for_it(render: Any, recipe: str) -> None:
    """An exporter with 0.3 s of CPU in each 45 s failed 8 probes of 5 s in a row, and 1 probe of 20 s.

    On a node short of CPU it needed 60 s to listen, and its liveness probe ended it after 30.
    """
    objects = render(recipe)
    pods = [item["spec"]["template"]["spec"] for kind in ("DaemonSet", "Deployment") for item in objects.kinds(kind)]
    probed = [
        container
        for pod in pods
        for container in (*pod.get("initContainers", ()), *pod["containers"])
        if container.get("livenessProbe", {}).get("httpGet", {}).get("path") == "/livez"
    ]
    assert len(probed) == 2
    for probe in (container["livenessProbe"] for container in probed):
        assert probe["timeoutSeconds"] >= 20
        assert probe["periodSeconds"] * probe["failureThreshold"] >= 180
    start = probed[0]["startupProbe"]
    assert start["httpGet"] == probed[0]["livenessProbe"]["httpGet"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 120

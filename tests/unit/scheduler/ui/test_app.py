"""The dashboard over ASGI: what is served, how, and that nobody's text becomes markup."""

from __future__ import annotations

import asyncio
import gzip
import json
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from sandbox.exported import exported
from scheduling import WAITS, NoApi, Service, configuration, counts, kubelet, machine, pod, scope
from topowise import nrt, pods
from topowise.attributes import PCI, pci_devices
from topowise.attributes.pci_devices import Located
from topowise.errors import ApiError
from topowise.kube import paths
from topowise.pci import Place
from topowise_scheduler import kube_scheduler, report
from topowise_scheduler.configuration import SchedulerConfiguration
from topowise_scheduler.extender import http
from topowise_scheduler.extender.callers import Callers
from topowise_scheduler.extender.explaining import Explainer
from topowise_scheduler.kubelet import Device as PluginDevice
from topowise_scheduler.kubelet import DevicePlugin, Kubelet
from topowise_scheduler.ui import Dashboard, Decisions, fits, markup, panel, spread
from topowise_scheduler.ui import state as states

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>\u202e\u0007'


class Reply:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Pods(NoApi):
    """An API server that has some pods, by their paths."""

    def __init__(self) -> None:
        self.pods: dict[str, bytes] = {}
        self.asked = 0

    async def request(self, _method: str, path: str, **_: Any) -> bytes:
        self.asked += 1
        if path not in self.pods:
            raise ApiError(404, "NotFound", "there is no such pod", request=f"GET {path}")
        return self.pods[path]


class Site:
    """A service with its dashboard, or without."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.now = 1_700_000_000.0
        decisions = Decisions(200, lambda: self.now)
        self.service = Service(seen=decisions.seen)
        self.view = self.service.view
        self.api = Pods()
        explainer = Explainer(self.api, self.view, lambda: None)
        self.dashboard = Dashboard(
            self.service.ledger,
            self.service.answers,
            self.view,
            explainer.explanations,
            lambda: None,
            decisions,
            clock=lambda: self.now,
            monotonic=self.service.clock,
        )
        served = self.service.served(observer=self.dashboard.decisions if enabled else None)
        pages = {"/ui": self.dashboard} if enabled else {}
        self.app = http.Application(served, http.Metrics(CollectorRegistry()), 1 << 20, Callers(()), pages=pages)

    def call(self, target: str, body: bytes | None = None, method: str = "", **headers: str) -> Reply:
        path, _, query = target.partition("?")
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body or b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        verb = method or ("GET" if body is None else "POST")
        asyncio.run(self.app(scope(path, verb, query.encode(), **headers), receive, send))
        start, content = sent
        given = {name.decode(): text.decode() for name, text in start["headers"]}
        return Reply(start["status"], given, content["body"])

    def state(self, resource: str = "cpu") -> Any:
        """What the parts of the page are made from."""
        self.service.clock.now += 10
        return json.loads(msgspec.json.encode(asyncio.run(self.dashboard._read(resource))))

    def parts(self, **asked: str) -> Any:
        return self.call(f"/ui/parts?{urlencode(asked)}").json["parts"]

    def fits(self, document: Any) -> fits.Fits:
        """What the answer is made from."""
        return asyncio.run(fits.fits(self.view, fits.pod_of(msgspec.yaml.encode(document)), within_s=3))

    def put(self, document: dict[str, Any]) -> None:
        """A pod comes, or changes."""
        meta = document["metadata"]
        self.api.pods[paths.pod(meta["namespace"], meta["name"])] = json.dumps(document).encode()
        self.service.put(document)

    def exact(self, name: str) -> None:
        topology = exported(machine(), configuration(), kubelet())
        metadata = msgspec.structs.replace(topology.metadata, name=name, resourceVersion="7")
        self.service.report(msgspec.structs.replace(topology, metadata=metadata))


@pytest.fixture
def site() -> Site:
    made = Site()
    for name in ("n1", "n2", "virtual"):
        made.service.ledger.reports.put_node(name)
    made.exact("n1")
    made.service.report(counts("n2", ("3", "0"), included=(), policy="restricted"))
    return made


class _Tags(HTMLParser):
    """Every element with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def assert_harmless(text: str) -> None:
    tags = _Tags(text).found
    assert all(given == {"src": "ui/app.js", "defer": None} for tag, given in tags if tag == "script")
    assert not [tag for tag, _ in tags if tag in ("img", "style", "iframe", "object")]
    assert not [name for _, given in tags for name in given if name.startswith("on") or name == "style"]
    assert "\u202e" not in text
    assert "\u0007" not in text


def test_off_by_default() -> None:
    assert SchedulerConfiguration(apiVersion="topowise.io/v1alpha1").ui.enabled is False
    site = Site(enabled=False)
    for path in ("/ui", "/ui/", "/ui/parts", "/ui/app.js", "/ui/fits"):
        assert site.call(path).status == 404


def test_the_page_needs_no_script(site: Site) -> None:
    reply = site.call("/ui")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert_harmless(reply.text)
    for shown in ("n1", "n2", "restricted", "NUMA node 0: 3 of 3 free", "NUMA node 1: 0 of 8 free", "reported virtual"):
        assert shown in reply.text
    assert "Of no pod is it known" in reply.text


def test_headers_keep_everything_out(site: Site) -> None:
    for path in ("/ui", "/ui/parts", "/ui/app.js", "/ui/style.css", "/ui/nothing"):
        headers = site.call(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def test_the_page_loads_nothing_from_elsewhere(site: Site) -> None:
    whole = site.call("/ui").text + site.call("/ui/app.js").text + site.call("/ui/style.css").text
    svg = "http://www.w3.org/2000/svg"
    assert "http" not in whole.replace(svg, "").replace("http-equiv", "")
    assert "innerHTML" not in whole


def test_what_the_ledger_knows(site: Site) -> None:
    site.dashboard._sightings.update()
    shown = site.state()
    assert shown["resources"] == ["cpu", "memory"]
    assert (shown["known"], shown["unreported"], shown["unit"]) == (3, ["virtual"], "CPUs")
    assert shown["nodes"] == [
        ["n1", 3, True, "", 0, 0, [[0, 3, 3], [1, 4, 4]], 0],
        ["n2", 2, False, "", 0, 0, [[0, 3, 8], [1, 0, 8]], 0],
    ]
    memory = site.state("memory")
    assert [node[6] for node in memory["nodes"]] == [[[0, 15360, 15360], [1, 16384, 16384]], []]
    assert site.state("nobody/has-it")["resource"] == "cpu"


def test_when_a_report_came_is_remembered(site: Site) -> None:
    site.dashboard._sightings.update()
    site.now += 60
    site.service.report(counts("n2", ("2", "0"), included=(), policy="restricted", version="8"))
    site.dashboard._sightings.update()
    assert [node[5] for node in site.state()["nodes"]] == [0, 1_700_000_060]
    # Text and a time that the script makes "3 min ago", not the HTML of one as text.
    assert 'reported <time datetime="2023-11-14T22:14:20Z"' in site.parts(node="n2")["panel"][1]
    assert "&lt;time" not in site.parts(node="n2")["panel"][1]


def test_a_report_that_is_judged_anew_is_no_new_one(site: Site) -> None:
    site.parts()
    site.now += 60
    site.service.ledger.reports.put_kubelet("n1", "v1.31.0")
    site.dashboard._sightings.update()
    assert "no new report since the service started" in site.parts(node="n1")["panel"][1]


def test_what_comes_after_the_first_page_is_new_however_soon(site: Site) -> None:
    site.parts()
    site.service.report(counts("n2", ("2", "0"), included=(), policy="restricted", version="8"))
    site.dashboard._sightings.update()
    assert "reported <time" in site.parts(node="n2")["panel"][1]
    assert "no new report since the service started" in site.parts(node="n1")["panel"][1]


def test_only_the_parts_that_have_changed_are_sent(site: Site) -> None:
    first = site.parts()
    assert first.keys() == {
        *("summary", "resource", "unit", "waiting-list", "refused-list", "decisions-list", "panel"),
        *("filtered", "spread", "map"),
    }
    have = ".".join(tag for tag, _ in first.values())
    site.now += 3
    site.service.clock.now += 3
    reply = site.call(f"/ui/parts?have={have}").json
    assert (reply["parts"], reply["now"], reply["nodes"]) == ({}, 1_700_000_003.0, 2)
    site.service.put(pod("a", "2", node="n1"))
    # Read once a second, however many look.
    assert site.parts(have=have) == {}
    site.service.clock.now += 1
    changed = site.parts(have=have)
    assert changed.keys() == {"map", "summary"}
    assert "uncertain" in changed["map"][1]


def test_many_nodes_are_tiles_in_blocks_that_are_sent_when_they_change() -> None:
    site = Site()
    for number in range(250):
        site.service.report(counts(f"node-{number:03}", ("3", "8"), included=()))
    first = site.parts()
    assert [name for name in first if name.startswith("tiles-")] == ["tiles-0", "tiles-1", "tiles-2"]
    assert first["tiles-2"][1].count('class="tile"') == 50
    assert first["map"][1].count('class="block"') == 3
    assert "node-249; single-numa-node; NUMA node 0: 3 of 8 free" in first["tiles-2"][1]
    site.service.put(pod("a", "2", node="node-120"))
    site.service.clock.now += 1
    have = {name: tag for name, (tag, _) in first.items()}
    assert site.parts(have=".".join(have.values())).keys() == {"summary", "spread", "tiles-1"}
    # Who comes back from something else needs all of it again.
    del have["map"]
    assert {"map", "spread", "tiles-0", "tiles-1", "tiles-2"} <= site.parts(have=".".join(have.values())).keys()


def test_a_decision_and_why(site: Site) -> None:
    body = {"Pod": pod("a", "3"), "NodeNames": ["n1", "n2", "virtual"]}
    site.call("/filter", json.dumps(body).encode())
    site.call("/prioritize", json.dumps(body).encode())
    (one,) = site.state()["decisions"]
    assert (one["pod"], one["fits"], one["asked"], one["outcome"]) == ("default/a", 3, 3, "reserved")
    assert one["filter_ms"] > 0
    assert "reserved" in site.call("/ui").text
    assert 'data-pod="default/a"' in site.parts()["decisions-list"][1]
    assert "No decision about it is kept" in site.parts(pod="default/nobody")["panel"][1]
    shown = site.view.explanations(kube_scheduler.decode(json.dumps(pod("a", "9")).encode()), ["n1", "n2"])
    part = panel.explained_part(shown, markup.Query(), is_sample=True)
    assert "a few nodes of each reason" in part
    assert part.count('<span class="outcome no-room">') == 2
    assert "container c needs cpu 9 together; node 0 has only cpu 3" in part


def test_few_decisions_are_sent_until_all_are_asked_for(site: Site) -> None:
    for number in range(20):
        site.call("/filter", json.dumps({"Pod": pod(f"p{number}", "1"), "NodeNames": ["n1"]}).encode())
    assert site.parts()["decisions-list"][1].count("data-pod") == 15
    assert '<a href="ui?decisions=all">Show all 20</a>' in site.parts()["decisions-list"][1]
    everything = site.parts(decisions="all")["decisions-list"][1]
    assert everything.count("data-pod") == 20
    assert "Show all" not in everything


def test_explaining_and_counting_are_no_decisions(site: Site) -> None:
    manifest = json.dumps(pod("a", "2")).encode()
    assert json.loads(site.call("/explain", manifest).body)
    assert site.call("/ui/fits", manifest).status == 200
    assert site.state()["decisions"] == []
    assert len(site.service.ledger.reservations) == 0


def test_a_bad_request_is_shown(site: Site) -> None:
    site.call("/filter", b"<script>")
    (one,) = site.state()["decisions"]
    assert one["outcome"] == "error"
    assert_harmless(site.call("/ui").text)


def test_hostile_text_stays_text(site: Site) -> None:
    service = site.service
    service.report(counts(HOSTILE, ("3", "0"), included=()))
    service.ledger.reports.put_node(HOSTILE + "2")
    document = pod("a", "2", node=HOSTILE)
    document["metadata"]["name"] = document["metadata"]["namespace"] = HOSTILE
    service.put(document)
    waits = pod(HOSTILE, "9", conditions=[{"type": "PodScheduled", "status": "False", "message": "NUMA: x"}])
    waits["metadata"]["creationTimestamp"] = HOSTILE
    service.put(waits)
    wanted = pod(HOSTILE, "2")
    site.call("/filter", json.dumps({"Pod": wanted, "NodeNames": [HOSTILE, "n2"]}).encode())
    site.dashboard.decisions.bound(f"{HOSTILE}/{HOSTILE}", f"uid-{HOSTILE}", HOSTILE, HOSTILE, 0.0)
    service.clock.now += 10
    shown = markup.Query(resource=HOSTILE, name="", policy="", node=HOSTILE)
    everywhere = dict.fromkeys(markup.ASKED, HOSTILE)
    opened = f"{HOSTILE}/{HOSTILE}"
    for target in ("ui", shown.link(), shown.link(node="", pod=opened), shown.link(**everywhere)):
        reply = site.call(f"/{target}")
        assert reply.status == 200
        assert_harmless(reply.text)
    assert reply.text.count("&lt;script&gt;") > 3
    for _, part in site.parts(resource=HOSTILE, node=HOSTILE, name="").values():
        assert_harmless(part)
    fitting = site.call("/ui/fits", json.dumps(wanted).encode()).text
    assert "&lt;script&gt;" in fitting
    assert_harmless(fitting)
    explanations = site.view.explanations(kube_scheduler.decode(json.dumps(wanted).encode()), [HOSTILE])
    assert_harmless(panel.explained_part(explanations, shown, is_sample=False))
    assert site.state()["nodes"][0][0] == HOSTILE


def test_a_picture_says_what_the_page_does_of_a_policy_that_nobody_knows(site: Site) -> None:
    site.service.report(counts("n1", "4", policy="strict"))
    _, part = site.parts(node="n1")["panel"]
    assert part.count("policy unknown") > 1
    assert "policy none" not in part


def test_a_node_with_its_picture(site: Site) -> None:
    site.service.put(pod("a", "2", node="n1"))
    _, part = site.parts(node="n1")["panel"]
    assert_harmless(part)
    assert '<svg xmlns="http://www.w3.org/2000/svg" class="topowise"' in part
    assert "default/a" in part
    assert "uncertain" in part
    assert ".topowise" in site.call("/ui/style.css").text
    assert "<svg" in site.call("/ui?node=n1").text
    assert "No exporter has reported a node nobody." in site.parts(node="nobody")["panel"][1]
    assert site.parts()["panel"][1] == ""
    assert "No exporter has reported a node nobody." in site.call("/ui?node=nobody").text


def test_quarantine_is_marked(site: Site) -> None:
    site.service.put(pod("a", "2", node="n1"))
    site.service.put(pod("a", "2", node="n1", phase="Failed", reason="TopologyAffinityError"))
    shown = site.state()
    assert "q" in shown["nodes"][0][3]
    assert shown["counters"]["TopologyAffinityError"] == 1


def test_what_fits(site: Site) -> None:
    shown = site.fits(pod("a", "2"))
    assert shown.pod == "default/a"
    # n1 has 3 and 4 CPUs free, n2 (counts) 3 and 0.
    assert [(one.node, one.count, one.first) for one in shown.nodes] == [("n1", 3, "0"), ("n2", 1, "0")]
    assert (shown.total, shown.is_least, shown.reasons) == (4, False, {})
    reply = site.call("/ui/fits", json.dumps(pod("a", "2")).encode())
    assert "<strong>4</strong> more of default/a fit on 2 of 2 nodes." in reply.text
    assert "container c needs cpu 2" in reply.text
    limits = {"resources": {"limits": {"cpu": "9", "memory": "1Gi"}}}
    deployment = {
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"template": {"spec": {"containers": [{"name": "c", **limits}]}}},
    }
    shown = site.fits(deployment)
    assert (shown.pod, shown.total, sum(shown.reasons.values())) == ("shop/web", 0, 2)
    assert "<strong>0</strong> more of shop/web" in site.call("/ui/fits", msgspec.yaml.encode(deployment)).text
    assert site.service.free("n1") == [3, 4]


def test_what_kube_scheduler_would_not_take_does_not_fit(site: Site) -> None:
    """A kubelet without the device plug-in says nothing against a pod that asks for a GPU."""
    site.service.put_node("n1", allocatable={"cpu": "8", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "2"})
    site.service.put_node("n2")
    amounts = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}
    container = {"name": "c", "resources": {"requests": amounts, "limits": amounts}}
    wanted = pod("a", containers=[container], volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}])
    shown = site.fits(wanted)
    assert [(one.node, one.count) for one in shown.nodes] == [("n1", 2)]
    assert (shown.total, shown.reasons, shown.not_looked_at) == (2, {"Insufficient nvidia.com/gpu": 1}, ("volumes",))
    text = site.call("/ui/fits", json.dumps(wanted).encode()).text
    assert "<strong>2</strong> more of default/a fit on 1 of 2 nodes." in text
    assert "<li>1 node: Insufficient nvidia.com/gpu</li>" in text
    assert "Not looked at: volumes." in text
    (one, other) = site.call("/explain", json.dumps(wanted).encode()).json
    assert (one["verdict"], other["verdict"]) == ("fits", "never")
    assert other["text"] == "Insufficient nvidia.com/gpu: asks for 1, the node has none"
    site.service.put_node("n1", {"unschedulable": True})
    assert site.fits(pod("a")).reasons == {"node(s) were unschedulable": 1}


@pytest.mark.parametrize("body", [b"", b"{", b"kind: Pod", b"[1]", b"\xff", b"a: &a [*a]", b"x" * 300_000])
def test_what_is_no_manifest(site: Site, body: bytes) -> None:
    reply = site.call("/ui/fits", body)
    assert reply.status == 200
    assert reply.text.startswith('<p class="problem" role="alert">')
    assert_harmless(reply.text)


def test_methods_and_sites(site: Site) -> None:
    assert site.call("/ui", b"x").status == 405
    assert site.call("/ui/fits").status == 405
    assert site.call("/ui/fits", b"{}", sec_fetch_site="cross-site").status == 403
    assert site.call("/ui", method="HEAD").body == b""
    assert site.call("/ui/").headers["location"] == "../ui"
    # The extender's own paths are as they were.
    assert site.call("/topowise/filter", b"{").status == 200
    assert site.call("/elsewhere").status == 404


def test_many_nodes_are_summed_up() -> None:
    site = Site()
    for number in range(300):
        site.service.report(counts(f"node-{number:03}", (str(number % 9), "8"), included=()))
    reply = site.call("/ui", accept_encoding="gzip, br")
    assert reply.headers["content-encoding"] == "gzip"
    assert "NUMA nodes by free share of cpu" in reply.text
    assert reply.text.count("data-node=") == 300
    assert len(reply.body) < 120_000
    assert int(reply.headers["content-length"]) < 10_000
    found = site.call("/ui?name=NODE-29&policy=single-numa-node").text
    assert found.count("data-node=") == 10
    assert "No node matches." in site.call("/ui?policy=none").text


def test_shares() -> None:
    zones = [states.Zone(0, free, 8) for free in (0, 1, 2, 3, 4, 6, 7, 8)]
    assert "".join(map(spread.bin_of, zones)) == "01122344"
    assert [spread.tenths(zone) for zone in zones] == [0, 1, 2, 3, 5, 7, 8, 10]
    assert spread.bin_of(states.Zone(0, None, 8)) == spread.bin_of(states.Zone(0, 0, 0)) == "x"


def test_a_node_without_managers() -> None:
    site = Site()
    topology = exported(machine(), configuration(), kubelet())
    site.service.ledger.reports.put(report.read(topology))
    plain = configuration(cpuManagerPolicy="none", memoryManagerPolicy="None", reservedMemory=())
    bare = kubelet(cpuManagerPolicy="none", memoryManagerPolicy="None", reservedMemory=())
    made = exported(machine(), plain, bare)
    site.service.report(msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, name="bare")))
    assert site.state()["nodes"][0][6] == [[0, None, 4], [1, None, 4]]
    assert "nobody counts" in site.call("/ui").text
    assert "bare" in site.parts(node="bare")["panel"][1]


def test_needs_of_a_manifest_are_read_as_kube_scheduler_does(site: Site) -> None:
    made = fits.pod_of(json.dumps(pod("a", node="n1", uid="u")).encode())
    assert (made.metadata.uid, made.spec.nodeName) == ("", "")
    assert pods.needs(made).qos == "Guaranteed"


WAITS_SINCE = "2023-11-14T22:00:00Z"


def test_waiting_pods_say_why_and_open() -> None:
    site = Site()
    for name, free in (("n1", ("3", "2")), ("n2", ("1", "0"))):
        site.service.report(counts(name, free, included=["other"]))
    site.put(pod("other", "5", node="n1", phase="Running"))
    for number in range(5):
        made = pod(f"web-{number}", "4", conditions=WAITS, creationTimestamp=WAITS_SINCE, priority=7)
        site.put(made)
    listed = site.parts()["waiting-list"][1]
    assert listed.count("data-pod=") == 1
    assert "and 4 more alike" in listed
    assert "2× no room that the kubelet could align" in listed
    assert 'datetime="2023-11-14T22:00:00Z"' in listed
    opened = site.parts(pod="default/web-0")["panel"][1]
    assert 'data-node="n1"><bdi>n1</bdi></a> comes nearest: container c needs cpu 4 together' in opened
    assert "priority 7" in opened
    assert opened.count('<span class="outcome no-room">not now</span>') == 2
    assert_harmless(opened)
    # Room comes, and the list says so before kube-scheduler has tried again.
    site.service.report(counts("n2", ("8", "0"), included=[], version="9"))
    site.service.clock.now += 2
    assert "would fit on 1 node" in site.parts()["waiting-list"][1]


def test_what_a_kubelet_refused_opens_to_node_pod_and_time(site: Site) -> None:
    refused = {"phase": "Failed", "reason": "TopologyAffinityError", "startTime": "2023-11-14T22:10:00Z"}
    site.put(pod("a", "2", node="n1"))
    site.put(pod("a", "2", node="n1", **refused))
    listed = site.parts()["refused-list"][1]
    for shown in ('data-pod="default/a"', 'data-node="n1"', "TopologyAffinityError", 'datetime="2023-11-14T22:10:00Z"'):
        assert shown in listed
    assert "quarantine" in listed
    assert "kubelet refused" in site.parts()["decisions-list"][1]
    assert "kubelet refused" in site.parts(pod="default/a")["panel"][1]
    # A new report ends the quarantine, and the refusal is still told.
    site.exact("n1")
    site.service.report(counts("n1", ("3", "0"), included=(), version="8"))
    site.service.clock.now += 2
    assert "default/a" in site.parts()["refused-list"][1]
    assert "quarantine" not in site.parts()["refused-list"][1]


def test_fragmentation_at_a_glance() -> None:
    site = Site()
    for number in range(12):
        site.service.report(counts(f"n{number:02}", ("2", "2") if number else ("1", "1", "1", "1"), included=()))
    shown = site.parts()["spread"][1]
    # 4 CPUs are free on each, in pieces of 2, and of 1 on one of them.
    assert "<strong>52 %</strong>, most on" in shown
    assert 'data-node="n00"' in shown
    assert ">75 %" in site.parts(name="n00")["map"][1]
    for size, nodes in ((1, 12), (2, 11), (4, 0), (8, 0)):
        assert f'data-room="{size}">{nodes}</a>' in shown
    assert site.parts(room="2")["map"][1].count("data-node=") == 11
    assert site.parts(state="f")["map"][1].count("data-node=") == 12
    assert site.parts(room="-1", state="odd")["map"][1].count("data-node=") == 12
    assert site.parts(state="marked")["map"][1] == '<p class="note">No node matches.</p>'


def test_very_many_nodes_are_groups_that_open() -> None:
    site = Site()
    for number in range(650):
        site.service.report(counts(f"node-{number:03}", ("3", "8"), included=()))
    first = site.parts()
    assert "tile" not in first["tiles-6"][1]
    assert "<bdi>node-600</bdi> – <bdi>node-649</bdi>" in first["tiles-6"][1]
    assert "largest free 8" in first["tiles-6"][1]
    assert '<rect class="b4" x="0" width="50"' in first["tiles-6"][1]
    assert sum(len(part) for _, part in first.values()) < 16_000
    opened = site.parts(open="6.x")
    assert opened["tiles-6"][1].count('class="tile"') == 50
    assert 'aria-expanded="true"' in opened["tiles-6"][1]
    assert "tile" not in opened["tiles-5"][1]
    page = site.call("/ui?open=1").text
    assert page.count('class="tile"') == 100
    assert page.count('class="group"') == 7


def test_nodes_are_those_on_which_a_pod_fits(site: Site) -> None:
    for name in ("n1", "n2"):
        site.service.put_node(name)
    manifest = json.dumps(pod("a", "4")).encode()
    digest = _Tags(site.call("/ui/fits", manifest).text).found[0][1]["data-fits"]
    assert digest
    shown = site.parts(fits=digest)
    assert "1 of 2 nodes match, those on which default/a fits now." in shown["filtered"][1]
    assert shown["map"][1].count("data-node=") == 1
    # It follows the nodes.
    site.service.report(counts("n2", ("8", "8"), included=(), policy="restricted", version="2"))
    site.service.clock.now += 2
    assert site.parts(fits=digest)["map"][1].count("data-node=") == 2
    site.service.put_node("n2", {"unschedulable": True})
    site.service.clock.now += 2
    assert site.parts(fits=digest)["map"][1].count("data-node=") == 1
    # Only the last are kept.
    for number in range(8):
        site.call("/ui/fits", json.dumps(pod(f"b{number}")).encode())
    assert "not kept any more" in site.parts(fits=digest)["filtered"][1]
    assert site.parts(fits=digest)["map"][1].count("data-node=") == 2


def test_a_node_shows_its_pci_tree(site: Site) -> None:
    placed = Located("0000:3b:00.0", Place(("pci0000:3a", "0000:3a:00.0"), 0))
    plugins = (DevicePlugin("nvidia.com/gpu", (PluginDevice("gpu-0", (0,)),)),)
    with_gpu = msgspec.structs.replace(machine(), devices=plugins)
    made = exported(with_gpu, configuration(), Kubelet(with_gpu, configuration()))
    named = [*(made.attributes or ()), nrt.Attribute(PCI, pci_devices.write({"gpu-0": placed}).text)]
    metadata = msgspec.structs.replace(made.metadata, name="gpus", resourceVersion="1")
    site.service.report(msgspec.structs.replace(made, metadata=metadata, attributes=named))
    part = site.parts(node="gpus")["panel"][1]
    assert "pci0000:3a &gt; 0000:3a:00.0" in part

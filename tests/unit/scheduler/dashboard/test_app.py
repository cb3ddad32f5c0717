"""The dashboard over ASGI: pages, headers, and escaping of all untrusted text."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from sandbox.exported import exported
from scheduling import WAITS, NoApi, Service, configuration, counts, exact, kubelet, machine, pod, scope
from topowise.errors import ApiError
from topowise.kube import paths
from topowise_scheduler import report
from topowise_scheduler.configuration import SchedulerConfiguration
from topowise_scheduler.dashboard import Dashboard, Decisions, markup, page
from topowise_scheduler.dashboard.cluster_state import NodeRows, State, Zone
from topowise_scheduler.ledger.holes import Holes
from topowise_scheduler.serve.extender import http
from topowise_scheduler.serve.extender.callers import Callers
from topowise_scheduler.serve.extender.explaining import Explainer

GI = 1 << 30
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
    """An API server with pods, by path."""

    def __init__(self) -> None:
        self.pods: dict[str, bytes] = {}
        self.requests = 0

    async def request(self, _method: str, path: str, **_: Any) -> bytes:
        self.requests += 1
        if path not in self.pods:
            raise ApiError(404, "NotFound", "there is no such pod", request=f"GET {path}")
        return self.pods[path]


class Site:
    """A service with or without its dashboard."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.now = 1_700_000_000.0
        decisions = Decisions(200, lambda: self.now)
        self.service = Service(seen=decisions.seen)
        self.view = self.service.view
        self.api = Pods()
        explainer = Explainer(self.api, self.view, lambda: None)
        self.holes = Holes(self.service.ledger, self.service.clock)
        self.dashboard = Dashboard(
            self.service.ledger,
            self.service.view,
            explainer.explanations,
            lambda: None,
            decisions,
            self.holes.loss,
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
        reply_headers = {name.decode(): text.decode() for name, text in start["headers"]}
        return Reply(start["status"], reply_headers, content["body"])

    def state(self) -> State:
        self.service.clock.now += 10
        return asyncio.run(self.dashboard._reader.state())

    def rows(self, resource: str = "cpu", name: str = "", state: str = "") -> NodeRows:
        return asyncio.run(self.dashboard._reader.nodes(resource, name, state))

    def part(self, element: str, **query: str) -> str:
        """The content of an element of the page."""
        page = self.call(f"/ui?{urlencode(query)}").text
        end = {"summary": "</section>", "panel": "</aside>"}.get(element, "</div>\n</section>")
        return page.partition(f'id="{element}"')[2].partition(" data-part>")[2].partition(end)[0]

    def put(self, document: dict[str, Any]) -> None:
        """Adds or updates a pod."""
        meta = document["metadata"]
        self.api.pods[paths.pod(meta["namespace"], meta["name"])] = json.dumps(document).encode()
        self.service.put(document)

    def exact(self, name: str) -> None:
        topology = exported(machine(), configuration(), kubelet())
        metadata = msgspec.structs.replace(topology.metadata, name=name, resourceVersion="7")
        self.service.report(msgspec.structs.replace(topology, metadata=metadata))


@pytest.fixture
def site() -> Site:
    site = Site()
    for name in ("n1", "n2", "virtual"):
        site.service.ledger.reports.put_node(name)
    site.exact("n1")
    site.service.report(counts("n2", ("3", "0"), included=(), policy="restricted"))
    return site


class _Tags(HTMLParser):
    """Every element with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def assert_harmless(text: str) -> None:
    tags = _Tags(text).tags
    assert all(attributes == {"src": "ui/app.js", "defer": None} for tag, attributes in tags if tag == "script")
    assert not [tag for tag, _ in tags if tag in ("img", "style", "iframe", "object")]
    assert not [name for _, attributes in tags for name in attributes if name.startswith("on") or name == "style"]
    assert "\u202e" not in text
    assert "\u0007" not in text


def test_off_by_default() -> None:
    assert SchedulerConfiguration(apiVersion="topowise.io/v1alpha1").ui.enabled is False
    site = Site(enabled=False)
    for path in ("/ui", "/ui/", "/ui/app.js"):
        assert site.call(path).status == 404


def test_the_page_needs_no_script(site: Site) -> None:
    reply = site.call("/ui")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert_harmless(reply.text)
    for shown in ("n1", "n2", "restricted", "NUMA node 0: 3 of 3 free", "NUMA node 1: 0 of 8 free", "reported virtual"):
        assert shown in reply.text
    assert "No decision yet." in reply.text


def test_headers_forbid_external_content(site: Site) -> None:
    for path in ("/ui", "/ui/app.js", "/ui/style.css", "/ui/nothing"):
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
    # Untrusted text could become markup by an assignment; the script only compares.
    assert not re.search(r"(inner|outer)HTML\s*=[^=]|insertAdjacentHTML|document.write", whole)


def test_the_state_has_the_rows_of_the_ledger(site: Site) -> None:
    state = site.state()
    assert state.resources == ("cpu", "memory")
    assert (state.reported, state.known, state.unreported) == (2, 3, ("virtual",))
    assert [(row.name, row.policy, row.is_exact, row.marks, row.pods) for row in site.rows().rows] == [
        ("n1", "single-numa-node", True, "", 0),
        ("n2", "restricted", False, "", 0),
    ]
    assert [row.zones for row in site.rows().rows] == [
        (Zone(0, 3, 3), Zone(1, 4, 4)),
        (Zone(0, 3, 8), Zone(1, 0, 8)),
    ]
    assert [row.zones for row in site.rows("memory").rows] == [
        (Zone(0, 15 * GI, 15 * GI), Zone(1, 16 * GI, 16 * GI)),
        (),
    ]
    assert "NUMA nodes: free/all cpu" in site.part("nodes-list", resource="nobody/has-it")


def test_the_state_is_read_once_a_second(site: Site) -> None:
    site.part("waiting-list")
    site.put(pod("a", "9", conditions=WAITS))
    assert "default/a" not in site.part("waiting-list")
    site.service.clock.now += 1
    assert "default/a" in site.part("waiting-list")


def test_nodes_show_their_fragmentation(site: Site) -> None:
    """Two pods leave a CPU and 3 CPUs on two NUMA nodes, and 1 and 2 GiB of memory."""
    for name, cpu in (("p", "2"), ("q", "1")):
        site.service.put(pod(name, cpu, memory="14Gi", node="fragmented"))
    site.service.report(exact(kubelet(), name="fragmented"))
    assert site.rows(name="fragmented").rows[0].loss is None
    assert '<td class="number">–</td>' in site.part("nodes", name="fragmented")
    for _ in site.holes.sync():
        pass
    assert site.rows(name="fragmented").rows[0].loss == 33
    assert '<span class="badge q">33 %</span>' in site.part("nodes", name="fragmented")


def test_nodes_are_filtered_by_name_and_state(site: Site) -> None:
    for number in range(120):
        site.service.report(counts(f"node-{number:03}", ("3", "8"), included=()))
    site.service.put(pod("a", "2", node="node-110"))
    assert (len(site.rows().rows), site.rows().matching) == (100, 122)
    assert "and 22 more; filter by name or state" in site.part("nodes-list")
    assert [row.name for row in site.rows(name="NODE-11").rows] == [f"node-{number}" for number in range(110, 120)]
    for state in ("u", "marked"):
        assert [row.name for row in site.rows(state=state).rows] == ["node-110"]
    assert site.rows(state="q").rows == ()
    assert site.rows(state="unknown").matching == 122
    assert "No node matches." in site.part("nodes-list", name="absent")
    reply = site.call("/ui", accept_encoding="gzip, br")
    assert reply.headers["content-encoding"] == "gzip"
    assert int(reply.headers["content-length"]) < 10_000


def test_free_shares() -> None:
    zones = [Zone(0, free, 8) for free in (0, 1, 2, 3, 4, 6, 7, 8)]
    assert "".join(map(page._bin, zones)) == "01122344"
    assert [page._tenths(zone) for zone in zones] == [0, 1, 2, 3, 5, 7, 8, 10]
    assert page._bin(Zone(0, None, 8)) == page._bin(Zone(0, 0, 0)) == "x"


def test_a_decision_has_its_outcome_and_times(site: Site) -> None:
    body = {"Pod": pod("a", "3"), "NodeNames": ["n1", "n2", "virtual"]}
    site.call("/filter", json.dumps(body).encode())
    site.call("/prioritize", json.dumps(body).encode())
    (decision,) = site.state().decisions
    assert (decision.pod, decision.fits, decision.candidates, decision.outcome) == ("default/a", 3, 3, "reserved")
    assert decision.filter_ms
    assert "reserved" in site.call("/ui").text
    assert 'data-pod="default/a"' in site.part("decisions-list")
    assert "the cluster has no such pod" in site.part("panel", pod="default/nobody")


def test_few_decisions_are_sent_by_default(site: Site) -> None:
    for number in range(20):
        site.call("/filter", json.dumps({"Pod": pod(f"p{number}", "1"), "NodeNames": ["n1"]}).encode())
    assert site.part("decisions-list").count("data-pod") == 15
    assert '<a href="ui?decisions=all">Show all 20</a>' in site.part("decisions-list")
    everything = site.part("decisions-list", decisions="all")
    assert everything.count("data-pod") == 20
    assert "Show all" not in everything


def test_a_bad_request_is_shown(site: Site) -> None:
    site.call("/filter", b"<script>")
    (decision,) = site.state().decisions
    assert decision.outcome == "error"
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
    candidate = pod(HOSTILE, "2")
    site.call("/filter", json.dumps({"Pod": candidate, "NodeNames": [HOSTILE, "n2"]}).encode())
    site.dashboard.decisions.bound(f"{HOSTILE}/{HOSTILE}", f"uid-{HOSTILE}", HOSTILE, HOSTILE, 0.0)
    service.clock.now += 10
    shown = markup.Query(resource=HOSTILE, node=HOSTILE)
    everywhere = dict.fromkeys(markup.Query.__struct_fields__, HOSTILE)
    opened = f"{HOSTILE}/{HOSTILE}"
    for target in ("ui", shown.link(), shown.link(node="", pod=opened), shown.link(**everywhere)):
        reply = site.call(f"/{target}")
        assert reply.status == 200
        assert_harmless(reply.text)
    assert reply.text.count("&lt;script&gt;") > 3
    assert site.rows().rows[0].name == HOSTILE


def test_an_unknown_policy_is_unknown_in_picture_and_page(site: Site) -> None:
    site.service.report(counts("n1", "4", policy="strict"))
    part = site.part("panel", node="n1")
    assert part.count("policy unknown") > 1
    assert "policy none" not in part


def test_a_node_with_its_picture(site: Site) -> None:
    site.service.put(pod("a", "2", node="n1"))
    part = site.part("panel", node="n1")
    assert_harmless(part)
    assert '<svg xmlns="http://www.w3.org/2000/svg" class="topowise"' in part
    assert "default/a" in part
    assert "uncertain" in part
    assert ".topowise" in site.call("/ui/style.css").text
    assert "<svg" in site.call("/ui?node=n1").text
    assert "No exporter has reported a node nobody." in site.part("panel", node="nobody")
    assert site.part("panel") == ""


def test_quarantine_is_marked(site: Site) -> None:
    site.service.refuse(pod("a", "2"), "n1")
    assert "q" in site.rows().rows[0].marks
    assert site.state().counters["refusals"] == 1


def test_a_stale_report_is_marked_with_its_cause_and_age(site: Site) -> None:
    assert "s" not in site.rows().rows[0].marks
    site.service.put_exporter("n1", ready=False)
    site.service.ledger.tick()
    site.service.clock.now += 121
    site.service.ledger.tick()
    assert "s" in site.rows().rows[0].marks
    part = site.part("panel", node="n1")
    assert "stale report" in part
    assert "exporter-down; the report came 121 s ago" in part


def test_methods_and_sites(site: Site) -> None:
    assert site.call("/ui", b"x").status == 405
    assert site.call("/ui", sec_fetch_site="cross-site").status == 403
    assert site.call("/ui", method="HEAD").body == b""
    assert site.call("/ui/").headers["location"] == "../ui"
    # The extender's own paths are unchanged.
    assert site.call("/topowise/filter", b"{").status == 200
    assert site.call("/elsewhere").status == 404


def test_a_node_without_managers() -> None:
    site = Site()
    topology = exported(machine(), configuration(), kubelet())
    site.service.ledger.reports.put(report.read(topology))
    plain = configuration(cpuManagerPolicy="none", memoryManagerPolicy="None", reservedMemory=())
    bare = kubelet(cpuManagerPolicy="none", memoryManagerPolicy="None", reservedMemory=())
    bare_topology = exported(machine(), plain, bare)
    site.service.report(
        msgspec.structs.replace(bare_topology, metadata=msgspec.structs.replace(bare_topology.metadata, name="bare"))
    )
    assert site.rows().rows[0].zones == (Zone(0, None, 4), Zone(1, None, 4))
    assert "no manager accounts for it" in site.call("/ui").text
    assert "bare" in site.part("panel", node="bare")


WAITS_SINCE = "2023-11-14T22:00:00Z"


def test_waiting_pods_have_reasons_and_details() -> None:
    site = Site()
    for name, free in (("n1", ("3", "2")), ("n2", ("1", "0"))):
        site.service.report(counts(name, free, included=["other"]))
    site.put(pod("other", "5", node="n1", phase="Running"))
    for number in range(5):
        document = pod(f"web-{number}", "4", conditions=WAITS, creationTimestamp=WAITS_SINCE, priority=7)
        site.put(document)
    listed = site.part("waiting-list")
    assert listed.count("data-pod=") == 1
    assert "and 4 more alike" in listed
    assert "2× no room that the kubelet could align" in listed
    assert 'datetime="2023-11-14T22:00:00Z"' in listed
    assert "docs/how-to/explain.md#why-a-pod-waits" in listed
    opened = site.part("panel", pod="default/web-0")
    assert 'data-node="n1"><bdi>n1</bdi></a> comes nearest: container c needs cpu 4 together' in opened
    assert "priority 7" in opened
    assert opened.count('<span class="outcome no-room">not now</span>') == 2
    assert_harmless(opened)
    # New free CPUs appear in the list before kube-scheduler's next attempt.
    site.service.report(counts("n2", ("8", "0"), included=[], version="9"))
    site.service.clock.now += 2
    assert "would fit on 1 node" in site.part("waiting-list")


def test_pods_are_found_by_a_part_of_their_name(site: Site) -> None:
    site.put(pod("trainer-0", "2", node="n1"))
    site.put(pod("trainer-1", "2", node="n2"))
    site.put(pod("web", "4", conditions=WAITS))
    several = site.part("panel", find="Trainer")
    assert several.count("data-pod=") == 2
    assert 'data-pod="default/trainer-0"' in several
    # The only match, or the pod of exactly this name, opens at once.
    assert "waits, priority" in site.part("panel", find="we")
    assert "<bdi>default/trainer-1</bdi>" in site.part("panel", find="trainer-1")
    missing = site.part("panel", find=HOSTILE)
    assert "The cluster has no such pod" in missing
    assert_harmless(missing)
    # A link from the result to a pod ends the search.
    assert "find=" not in several


def test_an_empty_cluster_says_what_to_do_first() -> None:
    listed = Site().part("nodes-list")
    assert "app.kubernetes.io/component=exporter" in listed
    assert "kubectl topowise doctor" in listed


def test_a_refused_pod_links_to_its_node_pod_and_time(site: Site) -> None:
    refused = {"phase": "Failed", "reason": "TopologyAffinityError", "startTime": "2023-11-14T22:10:00Z"}
    site.service.bind(pod("a", "2"), "n1")
    site.put(pod("a", "2", node="n1", **refused))
    listed = site.part("refused-list")
    for shown in ('data-pod="default/a"', 'data-node="n1"', "TopologyAffinityError", 'datetime="2023-11-14T22:10:00Z"'):
        assert shown in listed
    assert "quarantine" in listed
    assert "kubelet refused" in site.part("decisions-list")
    assert "kubelet refused" in site.part("panel", pod="default/a")
    # A new report ends the quarantine, and the refusal stays in the list.
    site.exact("n1")
    site.service.report(counts("n1", ("3", "0"), included=(), version="8"))
    site.service.clock.now += 2
    assert "default/a" in site.part("refused-list")
    assert "quarantine" not in site.part("refused-list")

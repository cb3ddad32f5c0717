"""HTTP callers: requests of browsers are refused, requests of schedulers are served."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from scheduling import Service, call, counts, pod, scope
from topowise_scheduler.serve.extender import callers, http
from topowise_scheduler.serve.extender.callers import Callers
from volcano import serving

QUESTION = json.dumps({"Pod": pod("made-up", "4"), "NodeNames": ["n1"]}).encode()
PATHS = (
    "/filter",
    "/prioritize",
    "/preempt",
    "/bind",
    "/explain",
    "/volcano/predicate",
    "/volcano/allocateFunc",
    "/volcano/deallocateFunc",
    "/volcano/preemptable",
    "/volcano/onSessionOpen",
    "/ui/form",
    "/nothing",
)


class Site:
    """A service whose HTTP server accepts a single host name."""

    def __init__(self, known: Callers | None = None) -> None:
        self.service = Service("TightFit")
        self.service.report(counts("n1", ("8", "8"), included=()))
        self.page_paths: list[str] = []

        async def page(scope: Any, receive: Any, send: Any) -> None:
            self.page_paths.append(scope["path"])
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
            await send({"type": "http.response.body", "body": b"page"})

        self.app = http.Application(
            self.service.served(),
            http.Metrics(CollectorRegistry()),
            1 << 20,
            known or Callers(callers.names(("topowise.example",))),
            volcano=serving(self.service),
            pages={"/ui": page},
        )

    def call(self, path: str, method: str = "POST", body: bytes = QUESTION, **headers: str) -> tuple[int, bytes]:
        return call(self.app, path, body, method, **headers)


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "attacker.example:8080"}, 403),
        ({"host": "127.0.0.1.attacker.example"}, 403),
        ({"host": "localhost.attacker.example"}, 403),
        ({"host": "topowise.example.attacker.example"}, 403),
        ({"host": "x.topowise.svc.attacker.example"}, 403),
        ({"host": ""}, 403),
        ({"origin": "https://attacker.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"sec_fetch_site": "anything"}, 403),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"content_type": "multipart/form-data; boundary=x"}, 415),
        ({"content_type": "text/plain;application/json"}, 415),
        ({"content_type": ""}, 415),
    ],
    ids=str,
)
def test_requests_of_another_sites_page_are_refused_on_every_path(
    site: Site, path: str, headers: dict[str, str], status: int
) -> None:
    said, body = site.call(path, **headers)
    assert said == status
    assert body.endswith(b"\n")
    assert body.count(b"\n") == 1
    assert len(site.service.ledger.reservations) == 0
    assert site.page_paths == []


@pytest.mark.parametrize("path", ["/explain", "/ui", "/ui/app.js", "/filter"])
def test_reading_from_another_site_is_refused_too(site: Site, path: str) -> None:
    for headers in ({"host": "attacker.example"}, {"origin": "http://a.example"}, {"sec_fetch_site": "cross-site"}):
        assert site.call(path, "GET", b"", **headers)[0] == 403
    assert site.page_paths == []


@pytest.mark.parametrize("method", ["OPTIONS", "GET", "PUT"])
def test_no_page_is_given_consent(site: Site, method: str) -> None:
    assert site.call("/filter", method, origin="https://attacker.example")[0] == 403
    assert site.call("/filter", method)[0] == 405


def test_a_verb_refuses_every_page_even_the_services_own(site: Site) -> None:
    assert site.call("/filter", origin="http://127.0.0.1:8080", sec_fetch_site="same-origin")[0] == 403
    assert site.call("/ui/form", origin="http://127.0.0.1:8080", sec_fetch_site="same-origin")[0] == 200
    assert site.call("/ui", "GET", sec_fetch_site="none")[0] == 200


def test_a_host_that_is_missing_or_said_twice_is_refused(site: Site) -> None:
    base_scope = scope("/filter")
    for hosts in ([], [(b"host", b"localhost"), (b"host", b"attacker.example")]):
        headers = [*hosts, (b"content-type", b"application/json")]
        sent: list[Any] = []

        async def send(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        asyncio.run(site.app({**base_scope, "headers": headers}, None, send))  # type: ignore[arg-type]
        assert sent[0]["status"] == 400


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8080",
        "127.0.0.1",
        "[::1]:8080",
        "[::1]",
        "localhost:8080",
        "LOCALHOST",
        "localhost.",
        "10.96.0.17:8443",
        "[fd00::17]:8443",
        "topowise.example:8080",
        "Topowise.Example",
    ],
)
def test_schedulers_are_served_under_every_name_of_ours(site: Site, host: str) -> None:
    for kind in ("application/json", "application/json; charset=utf-8", "Application/JSON"):
        status, body = site.call("/filter", host=host, content_type=kind)
        assert (status, json.loads(body)["NodeNames"]) == (200, ["n1"])


def test_only_services_of_the_own_namespace_are_accepted_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POD_NAMESPACE")
    (tmp_path / "namespace").write_text("topowise\n")
    site = Site(Callers(callers.names((), tmp_path)))
    for name in ("extender.topowise.svc", "a.topowise.svc:8080", "extender.topowise.svc.cluster.local"):
        assert site.call("/filter", host=name)[0] == 200
    for name in ("extender.other.svc", "svc", "topowise.svc", "extender.topowise.svc.example", "a.b.topowise.svc"):
        assert site.call("/filter", host=name)[0] == 403


def test_under_tls_the_certificate_proves_the_name(site: Site) -> None:
    behind_tls = Site(Callers(None))
    assert behind_tls.call("/filter", host="whatever.example")[0] == 200
    assert behind_tls.call("/filter", host="whatever.example", origin="https://whatever.example")[0] == 403


def test_manifests_are_taken_as_yaml_too(site: Site) -> None:
    for kind in ("application/yaml", "application/json"):
        assert site.call("/explain", body=json.dumps(pod("x", "1")).encode(), content_type=kind)[0] == 200
    assert site.call("/filter", content_type="application/yaml")[0] == 415


def test_unknown_hosts_are_not_remembered(site: Site) -> None:
    for number in range(1000):
        site.call("/filter", host=f"h{number}.example")
        site.call("/filter", host=f"127.0.0.1:{number}")
    assert len(site.app._callers._known) <= 64
    assert site.call("/filter", host="localhost:1")[0] == 200

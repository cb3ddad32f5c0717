"""The dashboard of a running service in a browser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from browser import Page, opened
from daemons import Start, assert_eventually
from dashboard_cluster import comes, condition, decide, publish, started
from refusal_words import refusals
from sandbox.apiserver import ApiServer
from scheduler_process import Service
from scheduling import counts
from topowise.kube.api import Api


@pytest.fixture
async def service(server: ApiServer, api: Api, tmp_path: Path, start: Start) -> Service:
    return await started(server, api, tmp_path, start, enabled=True)


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    async with opened(tmp_path) as page:
        yield page


async def test_a_browser_shows_it(service: Service, server: ApiServer, page: Page, tmp_path: Path) -> None:
    await decide(service, server, "trainer", "6")
    url = f"{service.pages}/ui"
    await page.open(url, width=1280)
    await page.has("#live", "live")
    await page.has("#nodes-list", "metal-1", "metal-2", "single-numa-node")
    await page.has("#decisions", "default/trainer", "bound", "1 of 2")
    # Live: a decision comes without a reload.
    await decide(service, server, "giant", "9")
    await page.has("#decisions", "default/giant", "no room")
    await page.run("document.querySelector('#decisions [data-pod=\"default/giant\"]').click()")
    await page.has("#panel", "default/giant", "At present", "never", "needs cpu 9", "no room")
    # A node by keyboard, and away again.
    await page.run("document.querySelector('#nodes-list a').focus()")
    await page.press("Enter", windowsVirtualKeyCode=13, text="\r")
    await page.has("#panel", "metal-1", "default/trainer", "uncertain")
    assert await page.run("document.querySelectorAll('#panel svg rect').length") > 10
    assert await page.run("getComputedStyle(document.querySelector('#panel svg .canvas')).fill") == "rgb(244, 246, 248)"
    assert await page.run("document.activeElement.id") == "panel"
    await page.press("Escape")
    assert await page.run("document.querySelector('#panel').hidden") is True

    async def is_back() -> bool:
        return bool(await page.run("document.activeElement.dataset.node") == "metal-1")

    await assert_eventually(is_back)
    await page.run(
        "document.querySelector('#find input').value = 'train';document.querySelector('#find button').click()"
    )
    await page.has("#panel", "default/trainer", "bound")
    await page.press("Escape")
    await page.run(
        "document.querySelector('#filter [name=name]').value = 'metal-2';"
        "document.querySelector('#filter').dispatchEvent(new Event('input'))"
    )

    async def is_filtered() -> bool:
        return "metal-1" not in await page.text("#nodes-list")

    await assert_eventually(is_filtered)
    await page.has("#nodes-list", "metal-2")
    picture = await page.picture()
    assert picture.startswith(b"\x89PNG")
    (tmp_path / "dashboard.png").write_bytes(picture)
    assert page.conditions == []


async def test_the_view_keeps_its_position_while_reports_and_pods_come(
    service: Service, server: ApiServer, api: Api, page: Page
) -> None:
    await page.open(f"{service.pages}/ui", width=1280)
    await page.has("#live", "live")
    await page.has("#nodes-list", "metal-2")
    await page.watch_shifts()
    said = f"0/2 nodes are available: 2 {refusals.NOT_NOW}."
    for number in range(4):
        await comes(api, f"waits-{number}", "8", conditions=condition("False", said))
    await comes(api, "refused", "2", node="metal-2", phase="Failed", reason="TopologyAffinityError")
    await publish(api, counts("metal-1", ("6", "6"), included=()))
    await page.has("#nodes-list", "6/8")
    await page.has("#waiting", "default/waits-0", "3 more alike", "2× no room that the kubelet could align")
    await page.has("#refused", "default/refused", "metal-2", "TopologyAffinityError")
    assert await page.shifts() == []
    # The page describes the report; a waiting pod opens to its nearest node, which opens too.
    await page.run("document.querySelector('#refused [data-node=metal-2]').click()")
    await page.has("#panel", "metal-2")
    await page.run("document.querySelector('#nodes-list [data-node=metal-1]').click()")
    await page.has("#panel", "metal-1", "policy single-numa-node")
    await page.run("document.querySelector('#waiting [data-pod=\"default/waits-0\"]').click()")
    await page.has("#panel", "default/waits-0", "comes nearest: container c needs cpu 8 together", "not now")
    await page.run("document.querySelector('#panel .answer [data-node]').click()")
    await page.has("#panel", "policy single-numa-node")
    await page.press("Escape")
    assert await page.run("document.querySelector('#panel').hidden") is True
    assert page.conditions == []


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
async def test_it_fits_on_the_screen(service: Service, page: Page, width: int, scheme: str) -> None:
    await page.open(f"{service.pages}/ui?node=metal-1", width=width, scheme=scheme)
    await page.has("#live", "live")
    await page.has("#panel", "metal-1")
    assert await page.run("document.documentElement.scrollWidth") <= width
    assert await page.faint() == []
    ground = await page.run("getComputedStyle(document.body).backgroundColor")
    assert ground == {"dark": "rgb(15, 20, 26)", "light": "rgb(244, 246, 248)"}[scheme]
    assert page.conditions == []


async def test_a_browser_without_javascript_shows_it(service: Service, server: ApiServer, page: Page) -> None:
    await decide(service, server, "trainer", "6")
    await page.open(f"{service.pages}/ui?node=metal-2", width=1000, script=False)
    await page.has("body", "metal-1", "default/trainer", "bound", "policy single-numa-node")


async def test_a_hidden_tab_asks_nothing(service: Service, page: Page) -> None:
    await page.open(f"{service.pages}/ui", width=1000)
    await page.has("#live", "live")
    await page.run(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
        "window.asked = 0; const real = window.fetch;"
        "window.fetch = (...args) => { window.asked += 1; return real(...args); }"
    )
    await asyncio.sleep(2.5)
    before = await page.run("window.asked")
    await asyncio.sleep(2.5)
    assert await page.run("window.asked") == before <= 1
    await page.run("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")

    async def asks() -> bool:
        return bool(await page.run("window.asked") > before)

    await assert_eventually(asks)

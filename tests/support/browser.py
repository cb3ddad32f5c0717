"""A headless browser, if Chromium is installed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from daemons import assert_eventually

# The contrast ratios (WCAG 2, 1.4.3) of texts below 4.5.
_CONTRAST = """
(() => {
  const rgba = (text) => [...text.match(/[\\d.]+/g).map(Number), 1].slice(0, 4);
  const over = (top, below) => top.slice(0, 3).map((one, at) => one * top[3] + below[at] * (1 - top[3]));
  const behind = (element) => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) {
      const layer = rgba(getComputedStyle(one).backgroundColor.replace("transparent", "rgba(0, 0, 0, 0)"));
      layers.unshift(layer);
      if (layer[3] === 1) break;
    }
    return layers.reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const light = (colour) => colour
    .map((one) => one / 255).map((one) => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
  const found = [];
  for (const element of document.querySelectorAll("body *:not(svg *, option, script)")) {
    const text = [...element.childNodes].filter((one) => one.nodeType === 3).map((one) => one.data.trim()).join("");
    if (!text || !element.checkVisibility()) continue;
    const ground = behind(element);
    const [a, b] = [light(over(rgba(getComputedStyle(element).color), ground)), light(ground)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${element.tagName}.${element.className} ${text.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return found;
})()
"""
# The sum of what has moved by itself since (layout shift, web.dev/cls).
# Present changes are painted within two frames, however long a busy machine takes for a frame.
_SHIFTS = """
window.shifts = [];
new Promise((painted) => requestAnimationFrame(() => requestAnimationFrame(painted))).then(() =>
  new PerformanceObserver((list) => {
    for (const one of list.getEntries()) {
      const names = one.sources.map((source) => source.node?.id || source.node?.nodeName);
      if (!one.hadRecentInput) window.shifts.push([one.value, ...names]);
    }
  }).observe({ type: "layout-shift" }));
"""

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page:
    """A tab of a browser, by the DevTools protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self.conditions: list[str] = []

    async def call(self, method: str, **params: Any) -> Any:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        while True:
            message = await self._socket.receive_json(timeout=20)
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.conditions.append(json.dumps(message["params"]))

    async def run(self, code: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def text(self, selector: str) -> str:
        return str(await self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    async def has(self, selector: str, *parts: str) -> None:
        shown = ""

        async def is_there() -> bool:
            nonlocal shown
            shown = await self.text(selector)
            return all(part in shown for part in parts)

        with contextlib.suppress(AssertionError):
            await assert_eventually(is_there)
        assert [part for part in parts if part not in shown] == [], shown

    async def open(self, url: str, *, width: int, scheme: str = "light", script: bool = True) -> None:
        await self.call("Emulation.setScriptExecutionDisabled", value=not script)
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=media)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        await self.call("Page.navigate", url=url)

    async def faint(self) -> list[str]:
        """Texts that are hard to read."""
        return [str(element) for element in await self.run(_CONTRAST)]

    async def watch_shifts(self) -> None:
        """From now on `shifts` has what moves."""
        await self.run(_SHIFTS)

    async def shifts(self) -> list[Any]:
        """What has moved without anybody having done something."""
        return list(await self.run("window.shifts"))

    async def press(self, key: str, **more: Any) -> None:
        """A key of the keyboard."""
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, **more)

    async def picture(self) -> bytes:
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])


@asynccontextmanager
async def opened(directory: Path, *more: str) -> AsyncIterator[Page]:
    """A tab of a browser that ends with the block; `more` are options of Chromium's. Skips where there is none."""
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH")
    profile = directory / "chromium"
    options = ["--headless=new", "--disable-gpu", "--remote-debugging-port=0", f"--user-data-dir={profile}", *more]
    if not os.geteuid():
        options.append("--no-sandbox")
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(CHROMIUM, *options, "about:blank", stdout=quiet, stderr=quiet)
    port = profile / "DevToolsActivePort"
    try:
        await assert_eventually(lambda: port.exists() and "\n" in port.read_text(), within=30)
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{port.read_text().split()[0]}/json/new?about:blank"
            async with session.put(url) as response:
                tab = await response.json()
            async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await page.call(f"{domain}.enable")
                yield page
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()

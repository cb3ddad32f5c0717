"""A headless browser, where there is one."""

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
                made = Page(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await made.call(f"{domain}.enable")
                yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()

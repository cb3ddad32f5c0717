"""Whatever goes wrong with a request is an ApiError."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from topowise.errors import ApiError, ConfigError, SourceError
from topowise.kube import reflector
from topowise.kube.api import Api, decoded
from topowise.kube.credentials import Credentials


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async def refuse(request: web.Request) -> web.Response:
        headers = {"Retry-After": request.query.get("after") or "\u00b2", "Content-Type": "application/json"}
        return web.Response(status=503, body=b'{"message":"\xfcberlastet"}', headers=headers)

    application = web.Application()
    application.router.add_get("/garbage", refuse)

    async def elsewhere(_: web.Request) -> web.Response:
        raise web.HTTPFound("/garbage")

    application.router.add_get("/elsewhere", elsewhere)

    async def chatter(request: web.Request) -> web.Response:
        assert isinstance(request.transport, asyncio.Transport)
        request.transport.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
        return web.Response()

    application.router.add_get("/chatter", chatter)
    server = TestServer(application)
    await server.start_server()
    yield str(server.make_url("")).rstrip("/")
    await server.close()


async def anonymous(renew: bool) -> str:
    return ""


async def test_a_refusal_in_another_encoding_is_a_refusal(address: str) -> None:
    async with Api(Credentials(address, None, anonymous), "test") as api:
        with pytest.raises(ApiError, match="berlastet") as caught:
            await api.request("GET", "/garbage")
    assert caught.value.status == 503
    assert caught.value.retry_after is None


async def test_redirects_are_refused(address: str) -> None:
    async with Api(Credentials(address, None, anonymous), "test") as api:
        with pytest.raises(ApiError, match="302"):
            await api.request("GET", "/elsewhere")


async def test_an_answer_that_is_no_http_gives_the_same_error_each_time(address: str) -> None:
    shown = set()
    async with Api(Credentials(address, None, anonymous), "test") as api:
        for seconds in ("241", "287"):
            with pytest.raises(ApiError, match="SSH") as caught:
                await api.request("GET", "/chatter", query={"timeoutSeconds": seconds})
            shown.add(str(caught.value))
    # Or a log that says each change would say each try.
    assert len(shown) == 1


async def test_a_cancelled_request_leaves_no_connection_in_use() -> None:
    all_arrived = asyncio.Barrier(32)

    async def wait_for_all(_: web.Request) -> web.Response:
        await all_arrived.wait()
        return web.Response()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=b"{}")

    application = web.Application()
    application.router.add_get("/all", wait_for_all)
    application.router.add_get("/x", answer)
    server = TestServer(application)
    await server.start_server()
    try:
        async with Api(Credentials(str(server.make_url("")).rstrip("/"), None, anonymous), "test", timeout=60) as api:
            # More requests than connections, cancelled in each state: queued, connecting, sent, answered.
            for turns in range(60):
                tasks = [asyncio.create_task(api.request("GET", "/x")) for _ in range(40)]
                for _ in range(turns):
                    await asyncio.sleep(0)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            # The server answers when all connections of the pool carry a request at the same time.
            await asyncio.gather(*(api.request("GET", "/all") for _ in range(32)))
    finally:
        await server.close()


@pytest.mark.parametrize("problem", [SourceError("/token", "gone"), ConfigError("kubeconfig", "half written")])
async def test_credentials_that_cannot_be_read_now_are_no_answer(address: str, problem: Exception) -> None:
    async def authorization(renew: bool) -> str:
        raise problem

    async with Api(Credentials(address, None, authorization), "test") as api:
        with pytest.raises(ApiError, match=str(problem)) as caught:
            await api.request("GET", "/garbage")
    assert caught.value.status == 0


async def test_a_token_of_two_lines_is_no_answer_and_not_in_the_error(address: str) -> None:
    async def authorization(renew: bool) -> str:
        return "Bearer sec\nret"

    async with Api(Credentials(address, None, authorization), "test") as api:
        with pytest.raises(ApiError) as caught:
            await api.request("GET", "/garbage")
    assert "sec" not in str(caught.value)


def test_a_list_that_is_no_text_is_no_list() -> None:
    with pytest.raises(ApiError, match="not a list"):
        decoded(b'{"metadata":{"resourceVersion":"\xff"}}', reflector._Page, "a list", "GET /x")


@pytest.mark.parametrize("retry_after", ["86400", "9" * 400])
async def test_a_proxy_that_asks_for_a_day_is_asked_again_after_minutes(address: str, retry_after: str) -> None:
    async with Api(Credentials(address, None, anonymous), "test") as api:
        with pytest.raises(ApiError) as caught:
            await api.request("GET", "/garbage", query={"after": retry_after})
    assert caught.value.retry_after == 300

"""Slow clients of the extender's port do not delay a kube-scheduler."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from pki import Authority
from scheduling import Service, counts, pod
from topowise.runtime.config import ServingTls
from topowise.runtime.cpu_allowance import Allowance
from topowise_scheduler.configuration import Extender
from topowise_scheduler.serve.extender import http
from topowise_scheduler.serve.extender.callers import Callers
from topowise_scheduler.serve.extender.connections import LIMITS, Limits
from topowise_scheduler.serve.extender.replies import Query, Reply, Verb

SHORT = Limits(head_s=0.3, body_s=0.8, silence_s=0.3, idle_s=1.0, unread_s=0.5, head_bytes=4096, connections=8)
MAX_BODY = 1 << 20


def application() -> http.Application:
    service = Service("TightFit")
    service.report(counts("n1", ("8", "8"), included=()))
    return http.Application(service.served(), http.Metrics(CollectorRegistry()), MAX_BODY, Callers(("x",)))


class Client:
    """A connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, bytes]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        (length,) = (int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"content-length: "))
        return int(head[9:12]), await self.reader.readexactly(length)

    async def ask(self) -> dict[str, Any]:
        """A request of a kube-scheduler."""
        await self.send(request(QUESTION))
        status, body = await self.answer()
        assert status == 200
        return json.loads(body)

    async def is_closed(self, within: float) -> bool:
        try:
            async with asyncio.timeout(within):
                while await self.reader.read(1 << 16):
                    pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True


QUESTION = json.dumps({"Pod": pod("p", "1"), "NodeNames": ["n1"]}, default=str).encode()


def request(body: bytes, verb: str = "filter", head: bytes = b"") -> bytes:
    return b"POST /%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s" % (
        verb.encode(),
        head,
        len(body),
        body,
    )


@asynccontextmanager
async def serving(
    limits: Limits = SHORT, tls: ServingTls | None = None, served: http.Application | None = None
) -> AsyncIterator[Callable[..., Awaitable[Client]]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    task = asyncio.create_task(http.serve(Extender(port=port, tls=tls), served or application(), limits))
    opened: list[Client] = []

    async def connect(**options: Any) -> Client:
        for _ in range(100):
            try:
                client = Client(*await asyncio.open_connection("127.0.0.1", port, **options))
            except ConnectionRefusedError:
                await asyncio.sleep(0.02)
            else:
                opened.append(client)
                return client
        raise AssertionError("nobody listens")

    try:
        yield connect
    finally:
        for client in opened:
            client.writer.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


HALF = b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"


@pytest.mark.parametrize(
    ("first", "then", "pause", "within"),
    [
        pytest.param(b"POST /filter HTTP/1.1\r\nX-Slow: ", b"a", 0.05, 1.5, id="a head"),
        pytest.param(HALF, b" ", 0.1, 2.5, id="a body, a byte now and then"),
        pytest.param(HALF, b" ", 0.6, 2.5, id="a body, silence"),
        pytest.param(b"", b"\r\n", 0.05, 3.0, id="line breaks on an idle connection"),
    ],
)
async def test_a_client_that_trickles_is_not_waited_for(first: bytes, then: bytes, pause: float, within: float) -> None:
    async with serving() as connect:
        slow = await connect()

        async def trickle() -> None:
            await slow.send(first)
            while True:
                await asyncio.sleep(pause)
                await slow.send(then)

        task = asyncio.create_task(trickle())
        assert await slow.is_closed(within)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("first", "then", "limits"),
    [
        (b"POST /filter HTTP/1.1\r\nX-Long: ", b"a" * 1024, SHORT._replace(head_s=60, silence_s=60)),
        (
            b"POST /filter HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
            b"x: y\r\n" * 100,
            SHORT._replace(body_s=60, silence_s=60),
        ),
    ],
    ids=["a head without end", "trailers"],
)
async def test_a_flood_is_cut_off(first: bytes, then: bytes, limits: Limits) -> None:
    async with serving(limits) as connect:
        long = await connect()
        await long.send(first)
        with pytest.raises(ConnectionError):
            for _ in range(100):
                await long.send(then)
                await asyncio.sleep(0.01)


async def test_a_long_head_is_cut_off_if_its_body_arrives_with_it_too(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as connect:
        for head in (b"X-Long: %s\r\n" % (b"a" * 5000), b"".join(b"x%d:\r\n" % number for number in range(700))):
            long = await connect()
            await long.send(request(QUESTION, head=head))
            assert b"NodeNames" not in await asyncio.wait_for(long.reader.read(1 << 16), 2)
        assert (await (await connect()).ask())["NodeNames"] == ["n1"]
    assert not [entry for entry in caplog.records if entry.levelno >= logging.ERROR]


async def test_a_flood_of_line_breaks_is_cut_off() -> None:
    async with serving(SHORT._replace(idle_s=60, head_s=60)) as connect:
        polite, flooding = await connect(), await connect()
        with pytest.raises(ConnectionError):
            for _ in range(100):
                await flooding.send(b"\r\n" * 1000)
                await asyncio.sleep(0.01)
        # Old clients send a line break after each body.
        for _ in range(5):
            assert (await polite.ask())["NodeNames"] == ["n1"]
            await polite.send(b"\r\n")


async def test_an_answer_that_the_client_does_not_read_is_dropped() -> None:
    async with serving(SHORT._replace(idle_s=60)) as connect:
        deaf = await connect()
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
        names = [f"node-{number:06}" for number in range(40_000)]
        question = json.dumps({"Pod": pod("p", "1"), "NodeNames": names}, default=str).encode()
        with pytest.raises(ConnectionError):
            for _ in range(200):
                await deaf.send(request(question))
                await asyncio.sleep(0.02)


async def test_an_idle_connection_outlives_gos_and_a_busy_connection_the_limit() -> None:
    assert LIMITS.idle_s > 90
    async with serving(SHORT._replace(idle_s=1.5)) as connect:
        unused, used = await connect(), await connect()
        for _ in range(4):
            await asyncio.sleep(0.5)
            assert (await used.ask())["NodeNames"] == ["n1"]
        assert await unused.is_closed(within=2)
        assert await used.is_closed(within=3)


async def test_a_scheduler_is_served_while_a_client_opens_hundreds(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(SHORT._replace(idle_s=60)) as connect:
        scheduler = await connect()
        await scheduler.ask()
        connections = [await connect() for _ in range(40)]
        assert (await scheduler.ask())["NodeNames"] == ["n1"]
        again = await connect()
        assert (await again.ask())["NodeNames"] == ["n1"]
        assert (await scheduler.ask())["NodeNames"] == ["n1"]
        closed = await asyncio.gather(*(connection.is_closed(within=0.2) for connection in connections))
        assert sum(closed) >= 40 - SHORT.connections
        with caplog.at_level(logging.WARNING):
            await asyncio.sleep(0.4)
        shown = [entry for entry in caplog.records if entry.getMessage().startswith("Closed connections")]
        assert [entry.kv.keys() for entry in shown] == [{"too_many"}]  # type: ignore[attr-defined]


async def test_the_most_recently_used_connections_are_kept() -> None:
    async with serving(SHORT._replace(idle_s=60, connections=4)) as connect:
        askers = []
        for _ in range(4):
            asker = await connect()
            await asker.ask()
            askers.append(asker)
            await asyncio.sleep(0.02)
        await askers[0].ask()
        newest = await connect()
        assert (await newest.ask())["NodeNames"] == ["n1"]
        assert await askers[1].is_closed(within=0.5)
        assert (await askers[0].ask())["NodeNames"] == ["n1"]


@pytest.mark.parametrize("count", [2, 2000])
async def test_a_request_before_the_previous_answer_costs_the_connection(count: int) -> None:
    """uvicorn would queue all requests and process them after the client closes the connection."""
    async with serving() as connect:
        kube_scheduler, greedy = await connect(), await connect()
        greedy.writer.write(request(QUESTION) * count)
        assert await greedy.is_closed(within=30)
        for _ in range(3):
            assert (await kube_scheduler.ask())["NodeNames"] == ["n1"]


async def test_a_question_whose_client_has_gone_is_not_worked_on() -> None:
    """No allowance is left when both clients send a request, so both wait."""
    allowance, started = Allowance(0.5, 0.0), []

    async def explain(body: bytes | None, query: Query) -> Reply:
        started.append(query["pod"][0])
        return Reply(b"[]")

    verbs = {"explain": Verb(lambda why: Reply(why.encode()), query=explain)}
    people = http.Application(verbs, http.Metrics(CollectorRegistry()), MAX_BODY, Callers(("x",)), allowance=allowance)
    async with serving(LIMITS, served=people) as connect:
        allowance.charge(1.0)
        clients = {name: await connect() for name in ("gone", "there")}
        for name, client in clients.items():
            await client.send(b"GET /explain?pod=%s HTTP/1.1\r\nHost: x\r\n\r\n" % name.encode())
        clients["gone"].writer.close()
        assert await clients["there"].answer() == (200, b"[]")
    assert started == ["there"]


async def test_questions_beyond_the_allowance_wait_and_refusals_are_charged_too() -> None:
    allowance = Allowance(1e-9, 1.0)
    people = http.Application({}, http.Metrics(CollectorRegistry()), MAX_BODY, Callers(("x",)), allowance=allowance)
    async with serving(LIMITS, served=people) as connect:
        client = await connect()
        for _ in range(20):
            await client.send(b"GET /nosuch HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await client.answer())[0] == 404
        allowance.charge(1.0)
        await client.send(b"GET /nosuch HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not await client.is_closed(within=0.3)
    # By then the allowance is exceeded by more than the cost of the question.
    assert allowance.delay() > 20 * 0.0002 / 1e-9


async def test_with_tls_only_clients_with_a_certificate_are_answered(tmp_path: Path) -> None:
    known, untrusted = Authority(tmp_path / "ours", "ours"), Authority(tmp_path / "others", "others")
    certificate, key = known.issue("server")
    tls = ServingTls(cert_file=str(certificate), key_file=str(key), client_ca_file=str(known.certificate))
    async with serving(tls=tls) as connect:

        async def ask(pair: tuple[Path, Path] | None, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bool:
            context = ssl.create_default_context(cafile=str(known.certificate))
            context.set_ciphers("DEFAULT:@SECLEVEL=0")
            context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_1, newest
            if pair is not None:
                context.load_cert_chain(*pair)
            try:
                return (await (await connect(ssl=context)).ask())["NodeNames"] == ["n1"]
            except (OSError, asyncio.IncompleteReadError):
                return False

        client = known.issue("client", usage="clientAuth")
        assert await ask(client)
        assert await ask(client, ssl.TLSVersion.TLSv1_2)
        assert not await ask(client, ssl.TLSVersion.TLSv1_1)
        for chain in (None, untrusted.issue("client"), known.issue("late", days=-1), known.issue_later("early")):
            assert not await ask(chain)
        assert not await ask(known.issue("for-servers", usage="serverAuth"))


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET nothing HTTP/1.1\r\n\r\n",
        b"GET /%ff%00 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"POST /filter HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /filter HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /filter HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        b"POST /filter HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_what_is_no_request_costs_a_connection_and_no_line(
    garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as connect:
        scheduler = await connect()
        await scheduler.ask()
        for _ in range(3):
            connection = await connect()
            await connection.send(garbage)
            answer = await asyncio.wait_for(connection.reader.read(1 << 16), 1)
            assert not answer or answer.split()[1] in (b"400", b"404", b"405", b"200")
        assert (await scheduler.ask())["NodeNames"] == ["n1"]
    assert not [entry for entry in caplog.records if entry.levelno >= logging.ERROR]


async def test_a_client_that_hangs_up_in_a_body_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as connect:
        gone = await connect()
        await gone.send(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        gone.writer.transport.abort()
        scheduler = await connect()
        await scheduler.ask()
    assert not [entry for entry in caplog.records if entry.levelno >= logging.WARNING and "topowise" in entry.name]


async def test_large_bodies_share_the_budget_and_small_bodies_always_fit() -> None:
    async with serving(SHORT._replace(body_s=20, silence_s=20)) as connect:
        halves = [await connect() for _ in range(5)]
        for half in halves:
            await half.send(
                b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                % (900 << 10)
            )
            await half.send(b" " * (600 << 10))
        await asyncio.sleep(0.3)
        assert (await (await connect()).ask())["NodeNames"] == ["n1"]
        said = []
        for half in halves:
            await half.send(b" " * (300 << 10))
            said.append(json.loads((await half.answer())[1])["Error"])
        assert any("together with others" in message for message in said)
        assert any("not ExtenderArgs" in message for message in said)
        # All bytes are returned to the budget.
        last = await connect()
        await last.send(request(b" " * (900 << 10)))
        assert "not ExtenderArgs" in json.loads((await last.answer())[1])["Error"]

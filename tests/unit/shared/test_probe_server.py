"""The port of metrics and probes, and clients that want more of it than a probe does. Nothing here depends on speed."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import pytest
from prometheus_client import CollectorRegistry, Counter

from topowise.errors import SourceError
from topowise.runtime import health, listening, probe_server
from topowise.runtime.cpu_allowance import Allowance, Paced
from topowise.runtime.probe_server import LIMITS, Limits, ProbeServer, Response

GENEROUS = LIMITS._replace(share=1.0, burst_s=60.0, per_second=1e6, at_once=1e6)
STORM, KUBELET, PROMETHEUS = "127.0.0.2", "127.0.0.3", "127.0.0.4"
# By this multiplier the three addresses above have queues of their own.
MULTIPLIER = 0x9E3779B1


def pages(counts: dict[str, int]) -> dict[str, Callable[[], Response]]:
    def page(name: str) -> Callable[[], Response]:
        def answer() -> Response:
            counts[name] = counts.get(name, 0) + 1
            return Response(200, name.encode())

        return answer

    def broken() -> Response:
        raise OSError("no such file")

    return {"/livez": page("livez"), "/metrics": page("metrics"), "/broken": broken}


@contextmanager
def listeners() -> Iterator[tuple[list[socket.socket], int]]:
    with ExitStack() as stack:
        sockets = listening.listen_by_peer("127.0.0.1", 0, MULTIPLIER)
        for sock in sockets:
            stack.enter_context(sock)
        yield sockets, sockets[0].getsockname()[1]


@asynccontextmanager
async def serving(limits: Limits = GENEROUS) -> AsyncIterator[tuple[ProbeServer, int, dict[str, int]]]:
    counts: dict[str, int] = {}
    server = ProbeServer(pages(counts), limits)
    with listeners() as (sockets, port):
        task = asyncio.create_task(server.run(sockets))
        try:
            yield server, port, counts
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def connect(port: int, peer: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(peer, 0))


async def ask(port: int, request: bytes, peer: str = KUBELET) -> bytes:
    """All that comes until the server closes the connection; b"" too if it is reset."""
    try:
        reader, writer = await connect(port, peer)
        writer.write(request)
        async with asyncio.timeout(30):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


async def eventually(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not check():
            await asyncio.sleep(0.01)


async def test_a_connection_gets_one_answer_however_much_it_asks() -> None:
    async with serving() as (server, port, counts):
        await ask(port, get("/metrics") * 500, STORM)
        assert (await ask(port, get("/livez"))).endswith(b"\r\n\r\nlivez")
    assert counts == {"metrics": 1, "livez": 1}
    assert server.served == 2


@pytest.mark.parametrize(
    ("request_head", "status", "end"),
    [
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", b"200 OK", b"\r\n\r\nmetrics"),
        (b"HEAD /livez HTTP/1.1\r\nHost: x\r\n\r\n", b"200 OK", b"Content-Length: 5\r\nConnection: close\r\n\r\n"),
        (b"GET /nosuch HTTP/1.1\r\n\r\n", b"404 Not Found", b"expected one of /livez, /metrics, /broken\n"),
        (b"POST /livez HTTP/1.1\r\n\r\n", b"405 Method Not Allowed", b"expected GET\n"),
        (b"GET /livez\r\n\r\n", b"400 Bad Request", b"expected a request of HTTP/1.1\n"),
        (b"\r\n\r\n", b"400 Bad Request", b"expected a request of HTTP/1.1\n"),
        (b"GET /broken HTTP/1.1\r\n\r\n", b"500 Internal Server Error", b"the log says more\n"),
    ],
)
async def test_a_wrong_request_gets_an_error(request_head: bytes, status: bytes, end: bytes) -> None:
    async with serving() as (_, port, _):
        answer = await ask(port, request_head)
        assert answer.startswith(b"HTTP/1.1 " + status + b"\r\n")
        assert answer.endswith(end)
        assert (await ask(port, get("/livez"))).endswith(b"livez")


async def test_a_head_in_parts_is_waited_for() -> None:
    async with serving() as (_, port, _):
        reader, writer = await connect(port, KUBELET)
        for part in (b"GET /li", b"vez HTTP/1.1\r\n", b"Host: x\r\n\r", b"\n"):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)
        assert (await reader.read()).endswith(b"livez")
        writer.close()


async def test_a_large_answer_waits_for_its_reader() -> None:
    body = bytes(range(256)) * (1 << 15)
    server = ProbeServer({"/large": lambda: Response(200, body)}, GENEROUS)
    with listeners() as (sockets, port):
        task = asyncio.create_task(server.run(sockets))
        reader, writer = await connect(port, PROMETHEUS)
        writer.write(get("/large"))
        await eventually(lambda: server.turns > 0)
        await asyncio.sleep(0.05)
        assert (await reader.read()).endswith(body)
        writer.close()
        task.cancel()


async def test_connections_of_a_peer_beyond_its_rate_are_closed_and_other_peers_are_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(GENEROUS._replace(per_second=1e-9, at_once=3.0)) as (server, port, counts):
        answers = [await ask(port, get("/metrics"), STORM) for _ in range(10)]
        assert [answer != b"" for answer in answers] == [True] * 3 + [False] * 7
        for peer in (KUBELET, PROMETHEUS):
            assert (await ask(port, get("/livez"), peer)).endswith(b"livez")
        assert server.closed == {"too many a second": 7}
    assert counts == {"metrics": 3, "livez": 2}
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage() for record in warnings] == ["Closed connections to the port of metrics and probes"]


async def test_a_peer_that_hoards_connections_loses_its_own() -> None:
    async with serving(GENEROUS._replace(connections=6, of_one_peer=4)) as (server, port, _):
        kubelet = await connect(port, KUBELET)
        await eventually(lambda: server.accepted == 1)
        hoarded = [await connect(port, STORM) for _ in range(20)]
        await eventually(lambda: server.accepted == 21)
        assert server.closed == {"too many at once": 16}
        prometheus = [await connect(port, PROMETHEUS) for _ in range(2)]
        await eventually(lambda: server.accepted == 23)
        # The port is full by now, and the peer that has most gives way.
        assert server.closed == {"too many at once": 17}
        for reader, writer in (kubelet, *prometheus):
            writer.write(get("/livez"))
            assert (await reader.read()).endswith(b"livez")
        for _, writer in (kubelet, *prometheus, *hoarded):
            writer.close()


async def test_peers_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_server, "_MOST_PEERS", 3)
    async with serving(GENEROUS._replace(per_second=1e-9, at_once=1.0)) as (server, port, _):
        for last in (2, 3, 2, 4, 5):
            await ask(port, get("/livez"), f"127.0.0.{last}")
        assert list(server._peers) == ["127.0.0.2", "127.0.0.4", "127.0.0.5"]
        # What is remembered holds.
        assert await ask(port, get("/livez"), "127.0.0.2") == b""


async def test_a_client_that_sends_no_end_of_its_head_is_shown_out() -> None:
    async with serving(GENEROUS._replace(lifetime_s=0.3, head_bytes=1000)) as (server, port, _):
        endless = await ask(port, b"GET /livez HTTP/1.1\r\nX: " + b"a" * (1 << 20), STORM)
        slow = await ask(port, b"GET /livez HTTP/1.1\r\nX: ", STORM)
        silent = await ask(port, b"", STORM)
        assert (endless, slow, silent) == (b"", b"", b"")
        assert server.closed == {"long head": 1, "slow": 2}
        assert (await ask(port, get("/livez"))).endswith(b"livez")


def test_a_flood_of_a_peer_waits_in_its_own_queue() -> None:
    """The flood is there first. What is counted is turns, each of which does next to nothing."""
    counts: dict[str, int] = {}
    server = ProbeServer(pages(counts), GENEROUS._replace(turn_s=0.0, connections=1000, of_one_peer=1000))
    with listeners() as (sockets, port), ExitStack() as stack:
        for sock in sockets:
            server.listen_on(sock)
        for peer, path, count in ((STORM, "/metrics", 100), (KUBELET, "/livez", 1), (PROMETHEUS, "/livez", 1)):
            for _ in range(count):
                client = stack.enter_context(
                    socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(peer, 0))
                )
                client.sendall(get(path))
        for _ in range(2):
            server.turn()
        assert counts["livez"] == 2
        assert counts["metrics"] <= 2 * LIMITS.accepts
        server.close()


async def test_a_server_without_clients_does_nothing_and_with_debts_waits() -> None:
    async with serving() as (server, port, _):
        await ask(port, get("/livez"))
        await eventually(lambda: server.turns > 0)
        turns = server.turns
        await asyncio.sleep(0.3)
        assert server.turns == turns
    server = ProbeServer(pages(counts := {}), GENEROUS._replace(share=1e-9, burst_s=1e-12))
    with listeners() as (sockets, port), ExitStack() as stack:

        def send() -> None:
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(get("/livez"))

        send()
        task = asyncio.create_task(server.run(sockets))
        await eventually(lambda: counts == {"livez": 1})
        send()
        for _ in range(1000):
            await asyncio.sleep(0)
        assert (server.turns, counts) == (1, {"livez": 1})
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_second_process_cannot_listen_on_the_same_port() -> None:
    with listeners() as (sockets, port):
        assert len(sockets) in (1, 16)
        with pytest.raises(SourceError, match="Address already in use"):
            listening.listen_by_peer("127.0.0.1", port)


async def test_where_the_kernel_has_no_queues_by_peer_a_single_queue_serves_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening, "_SO_ATTACH_REUSEPORT_CBPF", 9999)
    async with serving() as (server, port, _):
        for peer in (STORM, KUBELET, PROMETHEUS):
            assert (await ask(port, get("/livez"), peer)).endswith(b"livez")
        assert len(server._listening) == 1


def test_metrics_are_rendered_once_a_second_however_often_they_are_asked_for() -> None:
    registry, now = CollectorRegistry(), [0.0]
    counter = Counter("topowise_test", "A test.", registry=registry)
    exposition = health.Exposition(registry, lambda: now[0], lambda: 0.0)
    texts = set()
    for _ in range(1000):
        counter.inc()
        texts.add(exposition.text())
        now[0] += 0.01
    assert exposition.renderings == len(texts) == 10


def test_a_rendering_that_takes_long_is_kept_for_long() -> None:
    now, cpu = [0.0], iter([0.0, 0.05, 1.0, 1.05])
    exposition = health.Exposition(CollectorRegistry(), lambda: now[0], lambda: next(cpu))
    for tenth in range(60):
        now[0] = tenth / 10
        exposition.text()
    assert exposition.renderings == 2


def test_an_allowance_is_a_burst_and_then_a_share_of_the_time() -> None:
    now = [0.0]
    allowance = Allowance(0.1, 1.0, peak=0.5, clock=lambda: now[0])
    assert allowance.delay() == 0.0
    allowance.charge(0.4)
    # Half of the time while there is a burst.
    assert allowance.delay() == pytest.approx(0.4)
    now[0] = 0.4
    allowance.charge(0.84)
    assert allowance.delay() == pytest.approx(2.0)
    now[0] = 1000.0
    allowance.charge(1.5)
    assert allowance.delay() == pytest.approx(5.0)


async def test_paced_work_runs_in_order_and_never_waits_for_waiting_work() -> None:
    cpu, order = [0.0], []
    allowance, answered = Allowance(0.5, 0.001), asyncio.Event()

    async def work(name: str, *, asks: bool = False) -> None:
        if asks:
            await answered.wait()
        for number in range(4):
            cpu[0] += 0.001
            order.append(f"{name}{number}")
            await asyncio.sleep(0)

    async with asyncio.timeout(30):
        first = asyncio.ensure_future(Paced(work("a", asks=True), allowance, cpu=lambda: cpu[0]))
        rest = [asyncio.ensure_future(Paced(work(name), allowance, cpu=lambda: cpu[0])) for name in "bcd"]
        await asyncio.gather(*rest)
        answered.set()
        await first
    first_done, *_, last_done = sorted("abcd", key=lambda name: order.index(f"{name}3"))
    assert (first_done, last_done) == ("b", "a")
    assert len(order) == 16


async def test_work_that_is_cancelled_while_it_waits_for_its_turn_gives_it_up() -> None:
    allowance, ended = Allowance(1e-9, 0.0), []
    allowance.charge(1.0)

    async def work(name: str) -> None:
        try:
            await asyncio.sleep(0)
        finally:
            ended.append(name)

    tasks = [asyncio.ensure_future(Paced(work(name), allowance)) for name in "abc"]
    await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
    # None had begun.
    assert ended == []
    await allowance_is_free(allowance)


async def allowance_is_free(allowance: Allowance) -> None:
    task = asyncio.create_task(allowance.take_turn(0))
    await asyncio.sleep(0.01)
    assert allowance._is_taken
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not allowance._is_taken


async def test_paced_work_without_a_waiter_is_ended() -> None:
    awaited, ended = [True], []

    async def work() -> None:
        try:
            while True:
                await asyncio.sleep(0)
                awaited[0] = False
        finally:
            # As a connection to the API server that is closed.
            await asyncio.sleep(0)
            ended.append(True)

    assert await Paced(work(), Allowance(1.0, 1.0), lambda: awaited[0]) is None
    assert ended == [True]


async def test_a_cancellation_and_an_error_go_through_paced_work() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    allowance = Allowance(1.0, 1.0)

    async def pace() -> None:
        await Paced(work(), allowance)

    for debt in (0.0, 1e9):
        task = asyncio.create_task(pace())
        await asyncio.sleep(0.01)
        # A cancellation does not wait for the allowance.
        allowance.charge(debt)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert ended == ["cancelled"] * 2

    async def fails() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        await Paced(fails(), Allowance(1.0, 1.0))

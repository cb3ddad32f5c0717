"""Other writers of the same object are named, and overwritten once a minute at most."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from topowise.errors import ApiError
from topowise_exporter.publish import other_writers
from topowise_exporter.publish.other_writers import FIELD_MANAGER, PAUSE_S, product
from topowise_exporter.publish.writer import Writer

RTE = "resource-topology-exporter"
KOORDLET = "koordlet"


class Server:
    """An object as an API server keeps it: a change counter, and content owned by its last writer."""

    def __init__(self) -> None:
        self.now = 0.0
        self.content: str | None = None
        self.generation = 0
        self.uid = 0
        self.writes: dict[str, float] = {}
        self.labels: dict[str, str] = {}
        self.patches: list[float] = []
        self.gets = 0
        self.lose_answers = False

    def write(self, manager: str, content: str) -> None:
        if self.content is None:
            self.uid, self.generation = self.uid + 1, 0
        if content != self.content:
            self.generation += 1
            self.writes = {manager: self.now}
        self.content = content

    def delete(self) -> None:
        self.content, self.writes = None, {}

    async def request(self, method: str, path: str, *, body: bytes = b"", **_: object) -> bytes:
        if method == "PATCH":
            self.patches.append(self.now)
            self.write(FIELD_MANAGER, msgspec.json.decode(body))
            if self.lose_answers:
                raise ApiError(504, "Timeout", "lost", request=path)
        else:
            self.gets += 1
        if self.content is None:
            raise ApiError(404, "NotFound", "none", request=path)
        entries = [
            {"manager": manager, "operation": "Apply", "time": f"{int(at)}", "fieldsV1": {"f:zones": {}}}
            for manager, at in self.writes.items()
        ]
        meta = {"uid": str(self.uid), "generation": self.generation, "labels": self.labels, "managedFields": entries}
        return msgspec.json.encode({"metadata": meta, "content": self.content})


def make(server: Server, spread: float = 1.0) -> Writer[str]:
    return Writer(
        server,  # type: ignore[arg-type]
        "/object",
        str.__eq__,
        lambda text: str(msgspec.json.decode(text)["content"]),
        "Object",
        clock=lambda: server.now,
        uniform=lambda low, high: low * spread,
    )


async def run(
    server: Server, writer: Writer[str], seconds: float, *, own: Any, foreign: Any = None, step: float = 0.5
) -> None:
    """`own(now)` is published at every step, `foreign(now)` written by RTE; compared once a minute or so."""
    end, last_check = server.now + seconds, server.now
    while server.now < end:
        server.now += step
        if foreign is not None:
            server.write(RTE, foreign(server.now))
        if server.now - last_check >= 50:
            last_check = server.now
            await writer.check()
        await writer.publish(own(server.now))


def most_in_a_minute(times: list[float]) -> int:
    return max((sum(start <= at < start + PAUSE_S for at in times) for start in times), default=0)


async def written(content: str) -> tuple[Server, Writer[str]]:
    """A server and a writer that has written this."""
    server = Server()
    writer = make(server)
    await writer.publish(content)
    return server, writer


async def test_changes_are_written_at_once_without_another_writer() -> None:
    server = Server()
    writer = make(server)
    await run(server, writer, 30, own=str)
    assert len(server.patches) == 60
    assert not writer.foreign_writers


@pytest.mark.parametrize("own", [lambda now: "ours", str], ids=["same content", "ever new content"])
async def test_against_a_writer_of_two_writes_a_second_the_exporter_writes_once_a_minute(own: Any) -> None:
    server, writer = await written("ours")
    await run(server, writer, 600, own=own, foreign=lambda now: f"theirs at {now}")
    against = server.patches[2:]
    assert 5 <= len(against) <= 10
    assert most_in_a_minute(against) == 1
    assert most_in_a_minute(server.patches) <= 2
    assert writer.foreign_writers == {RTE}


async def test_the_pause_is_spread() -> None:
    assert await _time_of_second_correction(1.0) == PAUSE_S
    assert await _time_of_second_correction(1.2) == pytest.approx(1.2 * PAUSE_S)


async def _time_of_second_correction(spread: float) -> float:
    server = Server()
    writer = make(server, spread)
    await writer.publish("ours")
    for _ in range(200):
        server.write(RTE, f"theirs at {server.now}")
        await writer.check()
        await writer.publish("ours")
        server.now += 1
    return server.patches[2] - server.patches[1]


async def test_after_a_single_edit_news_wait_a_minute_and_then_flow_again() -> None:
    server, writer = await written("ours")
    server.now = 10
    server.write("kubectl-edit", "edited")
    assert await writer.check() == "it was changed by a user with kubectl (field manager kubectl-edit)"
    assert await writer.publish("ours") == "written"
    server.now = 11
    assert await writer.publish("news") == "held-back"
    server.now = 10 + PAUSE_S
    for news in ("news", "more news", "even more"):
        assert await writer.publish(news) == "written"


async def test_a_write_against_another_writer_with_a_lost_answer_is_not_repeated_at_once() -> None:
    server, writer = await written("ours")
    server.write(RTE, "theirs")
    await writer.check()
    server.lose_answers = True
    with pytest.raises(ApiError):
        await writer.publish("ours")
    server.lose_answers = False
    assert await writer.publish("ours") == "held-back"


async def test_a_write_with_a_lost_answer_is_not_taken_for_a_foreign_write() -> None:
    server, writer = await written("one")
    server.lose_answers = True
    with pytest.raises(ApiError):
        await writer.publish("two")
    server.lose_answers = False
    assert await writer.publish("three") == "written"
    assert not writer.foreign_writers
    assert await writer.publish("four") == "written"


async def test_who_is_overwritten_unseen_is_noticed_and_named_at_the_next_reading() -> None:
    server, writer = await written("one")
    server.write(KOORDLET, "theirs")
    await writer.publish("two")
    assert writer.foreign_writers == {other_writers.UNKNOWN}
    server.write(KOORDLET, "theirs again")
    await writer.check()
    assert writer.foreign_writers == {KOORDLET}


async def test_a_label_names_who_has_lost_its_fields() -> None:
    server, writer = await written("one")
    server.labels = {"app.kubernetes.io/managed-by": "Koordinator"}
    server.write(KOORDLET, "theirs")
    await writer.publish("two")
    assert writer.foreign_writers == {KOORDLET}


async def test_another_topowise_exporter_is_distinguished_from_unknown_writers() -> None:
    server, writer = await written("one")
    server.now = 5
    server.write(FIELD_MANAGER, "of the other")
    assert await writer.check() == "it was changed by another topowise-exporter"


async def test_fields_with_an_earlier_owner_are_no_foreign_write() -> None:
    server = Server()
    server.write(RTE, "theirs")
    writer = make(server)
    await writer.publish("ours")
    server.writes[RTE] = 0
    await run(server, writer, 120, own=str)
    assert not writer.foreign_writers


async def test_a_writer_that_deletes_and_recreates_the_object_is_foreign() -> None:
    server, writer = await written("ours")
    server.delete()
    server.write(RTE, "theirs")
    await writer.publish("news")
    assert writer.foreign_writers
    assert await writer.publish("more") == "held-back"


async def test_a_deletion_alone_is_made_good_at_once() -> None:
    server, writer = await written("ours")
    server.delete()
    assert await writer.check() == "it was deleted"
    assert await writer.publish("ours") == "written"
    assert await writer.publish("news") == "written"
    assert not writer.foreign_writers


async def test_who_has_stopped_is_forgotten_before_an_alert_of_ten_minutes_fires() -> None:
    server, writer = await written("ours")
    server.write(RTE, "theirs")
    await writer.check()
    assert writer.foreign_writers == {RTE}
    await run(server, writer, 590, own=lambda now: "ours")
    assert not writer.foreign_writers
    assert len(server.patches) == 2


@pytest.mark.parametrize(
    ("manager", "name"),
    [
        (RTE, "resource-topology-exporter (RTE) (field manager resource-topology-exporter)"),
        ("nfd-topology-updater", "NFD's topology updater (field manager nfd-topology-updater)"),
        (KOORDLET, "Koordinator's koordlet (field manager koordlet)"),
        ("numatopo", "Volcano's resource-exporter (field manager numatopo)"),
        ("kubectl-client-side-apply", "a user with kubectl (field manager kubectl-client-side-apply)"),
        ("ours-of-2019", "an unknown writer (field manager ours-of-2019)"),
    ],
)
def test_products_are_named_as_people_know_them(manager: str, name: str) -> None:
    assert product(manager) == name

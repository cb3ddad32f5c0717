"""The store: a revision counter, a bounded window, watches as positions in it."""

from __future__ import annotations

import asyncio

import pytest

from sandbox.apiserver import builtin
from sandbox.apiserver.errors import Json, StatusError
from sandbox.apiserver.store import Store

NODES = builtin.catalog()["nodes"]
PODS = builtin.catalog()["pods"]


def node(name: str, **extra: object) -> Json:
    return {"metadata": {"name": name, "uid": f"uid-of-{name}"}, **extra}


def owned(name: str, *owners: str) -> Json:
    references = [{"uid": f"uid-of-{owner}"} for owner in owners]
    return {"metadata": {"name": name, "namespace": "default", "uid": name, "ownerReferences": references}}


def test_every_write_of_any_kind_gets_the_next_number() -> None:
    store = Store()
    numbers = [store.put(NODES, node("a")).number, store.put(PODS, owned("p")).number]
    numbers.append(store.remove(NODES, ("", "a")).number)
    assert numbers == [numbers[0], numbers[0] + 1, numbers[0] + 2]
    assert store.number == numbers[-1]


def test_a_stored_revision_says_its_number_and_leaves_the_argument_alone() -> None:
    store, obj = Store(), node("a")
    revision = store.put(NODES, obj)
    assert revision.metadata["resourceVersion"] == str(revision.number)
    assert "resourceVersion" not in obj["metadata"]


def test_a_revision_is_encoded_in_any_version() -> None:
    revision = Store().put(NODES, node("a", spec={"x": 1}))
    assert revision.body("v7").startswith(b'{"kind":"Node","apiVersion":"v7","metadata":{')
    assert revision.tail().startswith(b'{"metadata":{')


def test_objects_are_ordered_by_namespace_and_name() -> None:
    store = Store()
    for name in ("b", "c", "a"):
        store.put(NODES, node(name))
    assert [obj["metadata"]["name"] for obj in store.objects("nodes")] == ["a", "b", "c"]


def test_a_watch_takes_what_came_after_its_version() -> None:
    store = Store()
    first = store.put(NODES, node("a"))
    store.put(NODES, node("a", spec={}))
    store.remove(NODES, ("", "a"))
    watch = store.watch("nodes", first.number)
    assert [event.type for event in watch.take()] == ["MODIFIED", "DELETED"]
    assert watch.take() == []


def test_a_version_before_the_window_is_expired() -> None:
    store = Store(window=2)
    numbers = [store.put(NODES, node(name)).number for name in "abcd"]
    assert len(store.watch("nodes", numbers[1]).take()) == 2
    with pytest.raises(StatusError) as refused:
        store.watch("nodes", numbers[0])
    assert (refused.value.code, refused.value.reason) == (410, "Expired")
    assert refused.value.message == f"too old resource version: {numbers[0]} ({numbers[1]})"


def test_a_busy_kind_does_not_expire_a_quiet_kind() -> None:
    store = Store(window=2)
    start = store.number
    for _ in range(5):
        store.put(PODS, owned("p"))
    assert store.watch("nodes", start).take() == []


def test_a_watch_that_falls_out_of_the_window_is_closed() -> None:
    store = Store(window=2)
    watch = store.watch("nodes", store.number)
    for name in "abc":
        store.put(NODES, node(name))
    assert watch.take() == []
    assert watch.closed
    assert store.watches() == []


async def test_a_waiting_watch_is_woken_by_a_change() -> None:
    store = Store()
    watch = store.watch("nodes", store.number)
    waiting = asyncio.ensure_future(watch.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    store.put(NODES, node("a"))
    await asyncio.wait_for(waiting, 1)
    assert len(watch.take()) == 1


def test_expiring_makes_every_version_so_far_too_old() -> None:
    store = Store()
    current = store.put(NODES, node("a")).number
    store.expire()
    with pytest.raises(StatusError):
        store.watch("nodes", current)
    assert store.watch("nodes", store.number).take() == []


def test_snapshots_keep_a_moment_and_only_the_newest_few() -> None:
    store = Store()
    store.put(NODES, node("a"))
    number, before = store.snapshot("nodes")
    store.put(NODES, node("b"))
    snapshot = store.snapshot_at("nodes", number)
    assert snapshot is before
    assert [revision.metadata["name"] for revision in before] == ["a"]
    for i in range(40):
        store.put(NODES, node(f"n{i}"))
        store.snapshot("nodes")
    assert store.snapshot_at("nodes", number) is None


def test_orphans_are_objects_without_any_owner_left() -> None:
    store = Store()
    for name in ("a", "b"):
        store.put(NODES, node(name))
    store.put(PODS, owned("of-a", "a"))
    store.put(PODS, owned("of-both", "a", "b"))
    store.remove(NODES, ("", "a"))
    assert store.orphans_of("uid-of-a") == [("pods", ("default", "of-a"))]
    store.remove(NODES, ("", "b"))
    assert store.orphans_of("uid-of-b") == [("pods", ("default", "of-both"))]

"""Watches: what comes first, what comes after, and how they end."""

from __future__ import annotations

import asyncio

from sandbox.apiserver.client import CONFIGMAPS, MERGE, NRT, TABLE, Client, configmap, nrt


async def test_without_a_version_the_present_comes_first_as_added_events(api: Client) -> None:
    before, after = api.name(), api.name()
    created = await api.ok("POST", NRT, nrt(before))
    async with api.watch(NRT) as watch:
        assert watch.status == 200
        assert watch.headers["Content-Type"].startswith("application/json")
        assert await watch.about(before) == ("ADDED", created)
        later = await api.ok("POST", NRT, nrt(after))
        assert await watch.about(after) == ("ADDED", later)


async def test_from_a_list_on_only_what_comes_after_is_sent(api: Client) -> None:
    name = api.name()
    await api.ok("POST", NRT, nrt(name))
    version = (await api.ok("GET", NRT))["metadata"]["resourceVersion"]
    changed = await api.ok("PATCH", f"{NRT}/{name}", {"zones": []}, MERGE)
    async with api.watch(NRT, resourceVersion=version) as watch:
        assert await watch.about(name) == ("MODIFIED", changed)
        await api.ok("DELETE", f"{NRT}/{name}")
        kind, last = await watch.about(name)
        assert kind == "DELETED"
        assert last["zones"] == []
        assert int(last["metadata"]["resourceVersion"]) > int(changed["metadata"]["resourceVersion"])


async def test_a_write_that_changes_nothing_is_no_event(api: Client) -> None:
    name = api.name()
    created = await api.ok("POST", NRT, nrt(name))
    async with api.watch(NRT, resourceVersion=created["metadata"]["resourceVersion"]) as watch:
        await api.ok("PUT", f"{NRT}/{name}", created)
        await api.ok("DELETE", f"{NRT}/{name}")
        assert (await watch.about(name))[0] == "DELETED"


async def test_objects_that_leave_the_selection_are_deleted_and_objects_that_enter_are_added(api: Client) -> None:
    name, group = api.name(), api.name()
    created = await api.ok("POST", CONFIGMAPS, configmap(name, labels={"group": group}))
    version = created["metadata"]["resourceVersion"]
    async with api.watch(CONFIGMAPS, resourceVersion=version, labelSelector=f"group={group}") as watch:
        left = await api.ok("PATCH", f"{CONFIGMAPS}/{name}", {"metadata": {"labels": {"group": "gone"}}}, MERGE)
        kind, last = await watch.about(name)
        assert kind == "DELETED"
        # It is shown as it was when still selected, numbered by the change that took it away.
        assert last["metadata"]["labels"] == {"group": group}
        assert last["metadata"]["resourceVersion"] == left["metadata"]["resourceVersion"]
        await api.ok("PATCH", f"{CONFIGMAPS}/{name}", {"metadata": {"labels": {"group": group}}}, MERGE)
        assert (await watch.about(name))[0] == "ADDED"
        await api.ok("PATCH", f"{CONFIGMAPS}/{name}", {"data": {"a": "1"}}, MERGE)
        assert (await watch.about(name))[0] == "MODIFIED"


async def test_a_field_selector_watches_a_single_object(api: Client) -> None:
    watched = api.name()
    # With etcd 3.4 a real server's cache of a quiet kind is behind the newest version, so the watch states a version.
    version = (await api.ok("POST", CONFIGMAPS, configmap(api.name())))["metadata"]["resourceVersion"]
    async with api.watch(CONFIGMAPS, resourceVersion=version, fieldSelector=f"metadata.name={watched}") as watch:
        await api.ok("POST", CONFIGMAPS, configmap(api.name()))
        await api.ok("POST", CONFIGMAPS, configmap(watched))
        event = await watch.next()
        assert event is not None
        assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", watched)


async def test_a_watch_ends_after_its_timeout(api: Client) -> None:
    started = asyncio.get_running_loop().time()
    async with api.watch(NRT, resourceVersion=0, timeoutSeconds=1) as watch:
        assert all(event["type"] == "ADDED" for event in await watch.rest())
    assert 0.5 < asyncio.get_running_loop().time() - started < 5


async def test_a_bookmark_comes_two_seconds_before_the_end(api: Client) -> None:
    """If there is anything to say: of a collection in which nothing has happened the real server may send none."""
    name, loop = api.name(), asyncio.get_running_loop()
    created = await api.ok("POST", NRT, nrt(name))
    version = created["metadata"]["resourceVersion"]
    async with api.watch(NRT, resourceVersion=version, timeoutSeconds=4, allowWatchBookmarks="true") as watch:
        changed = await api.ok("PATCH", f"{NRT}/{name}", {"zones": []}, MERGE)
        assert await watch.about(name) == ("MODIFIED", changed)
        mark = await watch.next()
        marked = loop.time()
        # Perhaps twice.
        assert all(event["type"] == "BOOKMARK" for event in await watch.rest())
        # The real server looks every 1 to 1.25 s who is due in the second that has begun.
        assert 0.2 < loop.time() - marked < 3.3
    assert mark is not None
    assert (mark["type"], mark["object"]["kind"]) == ("BOOKMARK", "NodeResourceTopology")
    assert int(mark["object"]["metadata"]["resourceVersion"]) >= int(changed["metadata"]["resourceVersion"])


async def test_a_watch_of_less_than_two_seconds_ends_without_a_bookmark(api: Client) -> None:
    name = api.name()
    created = await api.ok("POST", NRT, nrt(name))
    version = created["metadata"]["resourceVersion"]
    async with api.watch(NRT, resourceVersion=version, timeoutSeconds=1, allowWatchBookmarks="true") as watch:
        await api.ok("PATCH", f"{NRT}/{name}", {"zones": []}, MERGE)
        assert [event["type"] for event in await watch.rest()] == ["MODIFIED"]


async def test_a_watch_of_tables_sends_its_columns_once(api: Client) -> None:
    first, second = api.name(), api.name()
    version = (await api.ok("GET", NRT))["metadata"]["resourceVersion"]
    async with api.watch(NRT, resourceVersion=version, accept=TABLE) as watch:
        for name in (first, second):
            await api.ok("POST", NRT, nrt(name))
        tables = [await watch.next(), await watch.next()]
    shown = [
        (event["type"], event["object"]["kind"], event["object"]["rows"][0]["cells"][0]) for event in tables if event
    ]
    assert shown == [("ADDED", "Table", first), ("ADDED", "Table", second)]
    headers = [event["object"]["columnDefinitions"] for event in tables if event]
    assert headers[0]
    assert not headers[1]


async def test_custom_objects_are_watched_in_the_version_asked_for(api: Client) -> None:
    name = api.name()
    path = NRT.replace("v1alpha2", "v1alpha1")
    version = (await api.ok("GET", NRT))["metadata"]["resourceVersion"]
    async with api.watch(path, resourceVersion=version) as watch:
        await api.ok("POST", NRT, nrt(name, attributes=[{"name": "a", "value": "b"}]))
        kind, seen = await watch.about(name)
    assert (kind, seen["apiVersion"]) == ("ADDED", "topology.node.k8s.io/v1alpha1")
    # v1alpha1 knows no attributes of the node.
    assert "attributes" not in seen

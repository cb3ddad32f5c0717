"""Patches and ownership as functions of values."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.apiserver import fields, listkeys, ownership, patches, schema
from sandbox.apiserver.errors import Json, StatusError

RULES = fields.BuiltinRules()
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a"], {"a": "b"}, {"a": "b"}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patches_follow_rfc_7386(target: Any, patch: Any, result: Any) -> None:
    assert patches.merge(target, patch) == result


@given(JSON_VALUES, JSON_VALUES)
def test_a_merge_patch_changes_no_argument_and_applies_twice_as_once(target: Any, patch: Any) -> None:
    copies = copy.deepcopy((target, patch))
    once = patches.merge(target, patch)
    assert (target, patch) == copies
    assert patches.merge(once, patch) == once


@pytest.mark.parametrize(
    ("operations", "result"),
    [
        ([{"op": "add", "path": "/list/1", "value": "x"}], {"list": [1, "x", 2], "map": {"a/b": 1}}),
        ([{"op": "add", "path": "/list/-", "value": 3}], {"list": [1, 2, 3], "map": {"a/b": 1}}),
        ([{"op": "remove", "path": "/list/0"}], {"list": [2], "map": {"a/b": 1}}),
        ([{"op": "replace", "path": "/map/a~1b", "value": 2}], {"list": [1, 2], "map": {"a/b": 2}}),
        ([{"op": "copy", "from": "/list/0", "path": "/c"}], {"list": [1, 2], "map": {"a/b": 1}, "c": 1}),
        ([{"op": "move", "from": "/list", "path": "/l"}], {"l": [1, 2], "map": {"a/b": 1}}),
        ([{"op": "test", "path": "/list", "value": [1, 2]}], {"list": [1, 2], "map": {"a/b": 1}}),
        ([{"op": "replace", "path": "", "value": {}}], {}),
    ],
)
def test_json_patches_follow_rfc_6902(operations: list[Json], result: Any) -> None:
    document = {"list": [1, 2], "map": {"a/b": 1}}
    original = copy.deepcopy(document)
    assert patches.json_patch(document, operations) == result
    assert document == original


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        ({"op": "remove", "path": "/nothing"}, 422),
        ({"op": "replace", "path": "/nothing", "value": 1}, 422),
        ({"op": "add", "path": "/list/5", "value": 1}, 422),
        ({"op": "remove", "path": "/list/" + "9" * 5000}, 422),
        ({"op": "remove", "path": "/list/\u00b2"}, 422),
        ({"op": "test", "path": "/list", "value": True}, 422),
        ({"op": "add", "path": "list", "value": 1}, 400),
        ({"op": "add", "path": "/x"}, 400),
        ({"op": "frob", "path": "/x"}, 400),
    ],
)
def test_json_patches_that_do_not_fit_are_refused(operation: Json, code: int) -> None:
    with pytest.raises(StatusError) as refused:
        patches.json_patch({"list": [1]}, [operation])
    assert refused.value.code == code


def test_true_does_not_equal_1_in_a_json_patch_test() -> None:
    with pytest.raises(StatusError):
        patches.json_patch({"a": 1}, [{"op": "test", "path": "/a", "value": True}])


def strategic(target: Json, patch: Json) -> Any:
    return patches.strategic(target, patch, listkeys.STRATEGIC)


def test_a_strategic_patch_joins_keyed_lists_and_replaces_plain_lists() -> None:
    target = {"containers": [{"name": "a", "image": "1"}, {"name": "b"}], "args": ["x"]}
    patch = {"containers": [{"name": "a", "image": "2"}, {"name": "c"}], "args": ["y"]}
    expected = {"containers": [{"name": "a", "image": "2"}, {"name": "b"}, {"name": "c"}], "args": ["y"]}
    assert strategic(target, patch) == expected


def test_strategic_directives_delete_replace_and_retain() -> None:
    target = {"env": [{"name": "a"}, {"name": "b"}], "finalizers": ["x", "y"], "map": {"a": 1, "b": 2}, "gone": {}}
    patch = {
        "env": [{"name": "a", "$patch": "delete"}],
        "$deleteFromPrimitiveList/finalizers": ["x"],
        "$setElementOrder/env": [{"name": "b"}],
        "map": {"$patch": "replace", "c": 3},
        "gone": {"$patch": "delete"},
    }
    assert strategic(target, patch) == {"env": [{"name": "b"}], "finalizers": ["y"], "map": {"c": 3}}
    assert strategic({"a": 1, "b": 2}, {"$retainKeys": ["a"], "a": 3}) == {"a": 3}


def test_ports_of_containers_and_of_services_have_different_keys() -> None:
    container = {"ports": [{"containerPort": 80, "name": "a"}]}
    assert strategic(container, {"ports": [{"containerPort": 80, "name": "b"}]}) == {
        "ports": [{"containerPort": 80, "name": "b"}]
    }
    service = {"ports": [{"port": 80, "targetPort": 1}]}
    assert strategic(service, {"ports": [{"port": 81}]}) == {"ports": [{"port": 80, "targetPort": 1}, {"port": 81}]}


def test_field_sets_survive_their_spelling() -> None:
    obj = {
        "metadata": {"labels": {"a": "b"}, "finalizers": ["x"], "name": "not owned"},
        "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80}], "args": []}]},
    }
    flat = frozenset(fields.flatten(obj, RULES))
    assert fields.from_v1(fields.to_v1(flat)) == flat
    assert fields.to_v1(flat) == {
        "f:metadata": {"f:labels": {"f:a": {}}, "f:finalizers": {'v:"x"': {}}},
        "f:spec": {
            "f:containers": {
                'k:{"name":"c"}': {
                    ".": {},
                    "f:name": {},
                    "f:args": {},
                    "f:ports": {'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}},
                }
            }
        },
    }


def test_paths_are_spelled_as_conflicts_print_them() -> None:
    path = ("f:spec", "f:containers", 'k:{"name":"a"}', "f:image")
    assert fields.to_text(path) == '.spec.containers[name="a"].image'


def test_schemas_say_which_lists_are_taken_apart() -> None:
    items = {"type": "object", "properties": {"id": {"type": "string"}}}
    keyed = {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"], "items": items}
    rules = fields.SchemaRules(
        {"properties": {"keyed": keyed, "plain": {"type": "array"}, "set": {"x-kubernetes-list-type": "set"}}}
    )
    flat = fields.flatten({"keyed": [{"id": "a"}], "plain": [{"id": "a"}], "set": ["x"]}, rules)
    assert set(flat) == {
        ("f:keyed", 'k:{"id":"a"}'),
        ("f:keyed", 'k:{"id":"a"}', "f:id"),
        ("f:plain",),
        ("f:set", 'v:"x"'),
    }


def writer(manager: str, operation: str = "Apply", time: str = "t1") -> ownership.Writer:
    return ownership.Writer(manager, operation, "v1", time)


def applied(live: Json, config: Json, manager: str, *, force: bool = False, time: str = "t1") -> Json:
    config = {"metadata": {}, **config}
    return ownership.apply(live, config, writer(manager, time=time), RULES, force=force)


EMPTY: Json = {"metadata": {}}


def test_an_apply_that_changes_nothing_keeps_even_its_time() -> None:
    first = applied(EMPTY, {"data": {"a": "1"}}, "m", time="t1")
    assert applied(first, {"data": {"a": "1"}}, "m", time="t2") == first


def test_an_applied_element_goes_when_it_is_no_longer_declared() -> None:
    two = {"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]}}
    manifest = {"spec": {"containers": [{"name": "a", "image": "1"}]}}
    assert applied(applied(EMPTY, two, "m"), manifest, "m")["spec"] == manifest["spec"]


def test_conflicts_name_every_field_and_manager() -> None:
    live = applied(EMPTY, {"data": {"a": "1", "b": "1"}}, "first")
    with pytest.raises(StatusError) as refused:
        applied(live, {"data": {"a": "2", "b": "2"}}, "second")
    assert refused.value.code == 409
    assert refused.value.message == 'Apply failed with 2 conflicts: conflicts with "first":\n- .data.a\n- .data.b'


def test_force_takes_the_field_from_its_manager() -> None:
    live = applied(EMPTY, {"data": {"a": "1", "b": "1"}}, "first")
    forced = applied(live, {"data": {"a": "2"}}, "second", force=True)
    owned = {entry["manager"]: entry["fieldsV1"] for entry in forced["metadata"]["managedFields"]}
    assert owned == {"second": {"f:data": {"f:a": {}}}, "first": {"f:data": {"f:b": {}}}}


def test_an_update_is_attributed_to_who_made_it() -> None:
    live = applied(EMPTY, {"data": {"a": "1", "b": "1"}}, "first")
    new = {**live, "data": {"a": "1", "b": "2", "c": "3"}}
    recorded = ownership.record_update(live, new, writer("editor", "Update"), RULES)
    owned = {entry["manager"]: entry["fieldsV1"] for entry in recorded["metadata"]["managedFields"]}
    assert owned == {"first": {"f:data": {"f:a": {}}}, "editor": {"f:data": {"f:b": {}, "f:c": {}}}}


def test_schemas_prune_default_and_validate() -> None:
    spec: Json = {
        "type": "object",
        "required": ["size"],
        "properties": {
            "size": {"type": "integer", "maximum": 5, "default": 2},
            "kind": {"type": "string", "enum": ["a"]},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "map": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    }
    pruned, dropped = schema.prune({"metadata": {}, "free": {"x": 1}, "map": {"k": "v"}, "odd": 1}, spec)
    assert (pruned, dropped) == ({"metadata": {}, "free": {"x": 1}, "map": {"k": "v"}}, ["odd"])
    assert schema.default({}, spec) == {"size": 2}
    wrong = schema.validate({"size": 9, "kind": "b", "map": {"k": 1}}, spec)
    assert [(cause["field"], cause["reason"]) for cause in wrong] == [
        ("size", "FieldValueInvalid"),
        ("kind", "FieldValueNotSupported"),
        ("map.k", "FieldValueTypeInvalid"),
    ]

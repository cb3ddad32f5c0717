"""Shapes and parts of the day as a configuration declares them."""

from __future__ import annotations

from datetime import time

import pytest

from topowise import pods
from topowise_scheduler import declared_shapes
from topowise_scheduler.configuration import Defragmenter


def test_a_shape_is_a_pod_of_one_guaranteed_container() -> None:
    shape = declared_shapes.shape({"cpu": 16, "memory": "64Gi", "example.com/gpu": 4, "count": 2})
    assert (str(shape), shape.count) == ("cpu 16, memory 64Gi, example.com/gpu 4", 2)
    declared_pod = shape.pod(7)
    assert pods.needs(declared_pod).requests == {"cpu": 16000, "memory": 64 << 30, "example.com/gpu": 4}
    assert declared_pod.spec.priority == 7
    assert [toleration.key for toleration in declared_pod.spec.tolerations or ()] == ["example.com/gpu"]


def test_the_default_number_is_1() -> None:
    assert declared_shapes.shape({"cpu": "500m"}).count == 1


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"count": 2}, "names no resource"),
        ({"cpu": 1, "count": 0}, "count of a shape is 0, expected a number from 1 to 1000"),
        ({"cpu": 1, "count": "two"}, "count of a shape is 'two'"),
        ({"cpu": "many"}, "cpu of a shape is 'many', expected a quantity"),
    ],
)
def test_a_shape_that_cannot_be_read_is_named(declared: dict[str, str | int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Defragmenter(shapes=(declared,))


def test_a_shape_is_declared_once() -> None:
    with pytest.raises(ValueError, match="more than once"):
        Defragmenter(shapes=({"cpu": 4, "count": 1}, {"cpu": 4, "count": 2}))


@pytest.mark.parametrize(
    ("window", "moment", "is_in"),
    [
        ("22:00-06:00", time(23), True),
        ("22:00-06:00", time(5, 59), True),
        ("22:00-06:00", time(6), False),
        ("22:00-06:00", time(12), False),
        ("01:30-02:00", time(1, 30), True),
        ("01:30-02:00", time(2), False),
    ],
)
def test_a_part_of_the_day_may_end_on_the_next(window: str, moment: time, is_in: bool) -> None:
    assert (moment in declared_shapes.window(window)) == is_in
    assert Defragmenter(quiet_hours=(window,)).is_quiet(moment) == is_in


def test_without_quiet_hours_every_hour_is() -> None:
    assert Defragmenter().is_quiet(time(12))


@pytest.mark.parametrize("text", ["22-6", "24:00-06:00", "10:00-10:00", "", "10:00-11:00 UTC"])
def test_what_is_no_time_window_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time window"):
        Defragmenter(quiet_hours=(text,))

"""What a pod may write into its annotation topowise.io/device-affinity."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from topowise import pods
from topowise.errors import ParseError
from topowise_scheduler.device_affinity import ANNOTATION, Wish, read, wishes_of

GPU, NIC = "nvidia.com/gpu", "rdma/hca"


@pytest.mark.parametrize(
    ("text", "wishes"),
    [
        (f"require {GPU},{NIC}: pcie-switch", [Wish("require", (GPU, NIC), "pcie-switch")]),
        (f"prefer {GPU}: pcie-root", [Wish("prefer", (GPU,), "pcie-root")]),
        (f"{GPU}: pcie-root-port", [Wish("prefer", (GPU,), "pcie-root-port")]),
        (
            f"  require {GPU} , {NIC} :pcie-root ;\n prefer {GPU}: pcie-switch;\n",
            [Wish("require", (GPU, NIC), "pcie-root"), Wish("prefer", (GPU,), "pcie-switch")],
        ),
        (f"{GPU}: pcie-root; {GPU}: pcie-root", [Wish("prefer", (GPU,), "pcie-root")]),
        # Prefixes that are words of the form.
        ("require/gpu: pcie-root", [Wish("prefer", ("require/gpu",), "pcie-root")]),
    ],
)
def test_entries_are_read(text: str, wishes: list[Wish]) -> None:
    found = read(text)
    assert list(found) == wishes
    assert read("; ".join(map(str, found))) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";;",
        "pcie-switch",
        GPU,
        f"{GPU} pcie-switch",
        f"{GPU}:",
        f"{GPU}: PIX",
        f"{GPU},: pcie-root",
        f"require: pcie-root; {GPU}",
        f"require prefer {GPU}: pcie-root",
        "gpu: pcie-root",
        f"{GPU}: pcie-root" + " " * 1024,
        ";".join(f"x/{at}: pcie-root" for at in range(9)),
        ",".join(f"x/{at}" for at in range(9)) + ": pcie-root",
    ],
)
def test_what_cannot_be_read_is_one_line_that_says_what_happens(text: str) -> None:
    with pytest.raises(ParseError, match=ANNOTATION) as raised:
        read(text)
    assert "\n" not in str(raised.value)
    assert str(raised.value).endswith("; the pod is not placed until it is corrected")


def needs(*containers: dict[str, Any], **spec: Any) -> pods.Needs:
    document = {"metadata": {"name": "p"}, "spec": {"containers": containers, **spec}}
    return pods.needs(pods.decode(msgspec.json.encode(document)))


def test_resources_must_be_such_that_a_container_gets() -> None:
    asking = {"name": "c", "resources": {"limits": {GPU: 2, NIC: 0}}}
    assert wishes_of({ANNOTATION: f"{GPU}: pcie-root"}, needs(asking))
    for bad in (NIC, "nvidia.com/gpus"):
        with pytest.raises(ParseError, match=f"'{bad}': expected a resource"):
            wishes_of({ANNOTATION: f"{GPU},{bad}: pcie-root"}, needs(asking))
    with pytest.raises(ParseError, match="no init container"):
        wishes_of({ANNOTATION: f"{GPU}: pcie-root"}, needs(initContainers=[asking]))


def test_without_the_annotation_nothing_is_wished() -> None:
    for given in ({}, {"other": "x"}, {ANNOTATION: ""}, {ANNOTATION: " "}):
        assert wishes_of(given, needs()) == ()

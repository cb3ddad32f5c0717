"""Valid and invalid values of the pod annotation topowise.io/device-affinity."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from topowise import pods
from topowise.errors import ParseError
from topowise_scheduler.options.device_affinity.affinity_terms import ANNOTATION, AffinityTerm, read, terms_of

GPU, NIC = "nvidia.com/gpu", "rdma/hca"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"require {GPU},{NIC}: pcie-switch", [AffinityTerm("require", (GPU, NIC), "pcie-switch")]),
        (f"prefer {GPU}: pcie-root", [AffinityTerm("prefer", (GPU,), "pcie-root")]),
        (f"{GPU}: pcie-root-port", [AffinityTerm("prefer", (GPU,), "pcie-root-port")]),
        (
            f"  require {GPU} , {NIC} :pcie-root ;\n prefer {GPU}: pcie-switch;\n",
            [AffinityTerm("require", (GPU, NIC), "pcie-root"), AffinityTerm("prefer", (GPU,), "pcie-switch")],
        ),
        (f"{GPU}: pcie-root; {GPU}: pcie-root", [AffinityTerm("prefer", (GPU,), "pcie-root")]),
        # Resource prefixes that equal keywords.
        ("require/gpu: pcie-root", [AffinityTerm("prefer", ("require/gpu",), "pcie-root")]),
    ],
)
def test_entries_are_read(text: str, expected: list[AffinityTerm]) -> None:
    terms = read(text)
    assert list(terms) == expected
    assert read("; ".join(map(str, terms))) == terms


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
def test_a_parse_error_is_a_single_line_with_its_consequence(text: str) -> None:
    with pytest.raises(ParseError, match=ANNOTATION) as raised:
        read(text)
    assert "\n" not in str(raised.value)
    assert str(raised.value).endswith("; the pod is not placed until it is corrected")


def needs(*containers: dict[str, Any], **spec: Any) -> pods.Needs:
    document = {"metadata": {"name": "p"}, "spec": {"containers": containers, **spec}}
    return pods.needs(pods.decode(msgspec.json.encode(document)))


def test_terms_need_resources_that_a_container_requests() -> None:
    container = {"name": "c", "resources": {"limits": {GPU: 2, NIC: 0}}}
    assert terms_of({ANNOTATION: f"{GPU}: pcie-root"}, needs(container))
    for resource in (NIC, "nvidia.com/gpus"):
        with pytest.raises(ParseError, match=f"'{resource}': expected a resource"):
            terms_of({ANNOTATION: f"{GPU},{resource}: pcie-root"}, needs(container))
    with pytest.raises(ParseError, match="no init container"):
        terms_of({ANNOTATION: f"{GPU}: pcie-root"}, needs(initContainers=[container]))


def test_without_the_annotation_there_are_no_terms() -> None:
    for values in ({}, {"other": "x"}, {ANNOTATION: ""}, {ANNOTATION: " "}):
        assert terms_of(values, needs()) == ()

"""Manifests that an API server rejects are errors, with its own text; tests/contract compares the texts with it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml

from invalid_pods import ACCEPTED, REJECTED, pod
from topowise import pods
from topowise.errors import SourceError
from topowise_scheduler.kubectl import validation

from .conftest import Ask, Save


@pytest.mark.parametrize("name", REJECTED)
def test_a_rejected_pod_has_the_errors_of_the_api_server(name: str) -> None:
    document, expected = REJECTED[name]
    assert sorted(validation.problems(msgspec.convert(document, pods.Pod), "spec")) == sorted(expected)


@pytest.mark.parametrize("name", ACCEPTED)
def test_an_accepted_pod_has_no_errors(name: str) -> None:
    assert not list(validation.problems(msgspec.convert(ACCEPTED[name], pods.Pod), "spec"))


@pytest.mark.parametrize("command", ["explain", "fits", "simulate", "defrag"])
def test_no_command_answers_about_a_rejected_manifest(command: str, ask: Ask, saved: Save, tmp_path: Path) -> None:
    rejected, _ = REJECTED["a negative request"]
    documents = {
        "Pod": rejected,
        "Deployment": {"kind": "Deployment", "metadata": {"name": "web"}, "spec": {"template": rejected}},
    }
    for kind, document in documents.items():
        file = tmp_path / f"{kind}.yaml"
        file.write_text(yaml.safe_dump(document))
        path = "spec" if kind == "Pod" else "spec.template.spec"
        expected = (
            f'{file}: {kind} "web" is invalid: {path}.containers[0].resources.requests[cpu]: Invalid value: "-1": '
            "must be greater than or equal to 0"
        )
        with pytest.raises(SourceError) as caught:
            ask(command, "-f", str(file), "--nodes-file", saved())
        assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ("0.5", "500m"), ("1024Mi", "1Gi"), ("1Ki", "1Ki"), ("1023Ki", "1023Ki"), ("1.5Gi", "1536Mi"), ("1000M", "1G"),
        ("1000m", "1"), (1024, "1024"), (2000, "2k"), ("0", "0"), ("-1Gi", "-1Gi"), (None, "0"), (1.5, "1500m"),
    ],
)  # fmt: skip
def test_quantities_are_formatted_as_by_the_api_server(amount: pods.Quantity, text: str) -> None:
    assert validation.canonical(amount) == text


def test_a_pod_without_resources_is_valid(ask: Ask, saved: Save, tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(pod({})))
    assert ask("explain", "-f", str(file), "--nodes-file", saved()).status == 0

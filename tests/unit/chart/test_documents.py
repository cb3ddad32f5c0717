"""What the operators' pages link to and quote is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

# The API server's and the kubelet's words.
_FOREIGN = {"ResourceExhausted", "cannot patch resource", "Invalid"}


def test_quoted_words_match_the_code(repository: Path, chart: Path) -> None:
    shown = "\n".join(path.read_text() for path in (repository / "plugin").rglob("*.py"))
    shown += "\n".join(path.read_text() for path in (repository / "exporter").rglob("*.py"))
    shown += (chart / "dashboards/topowise.json").read_text() + (
        chart / "templates/exporter/admission.yaml"
    ).read_text()
    # Code blocks are commands, and pieces of code have quotes of their own.
    prose = re.sub(r"```.*?```|`[^`]*`", "", (repository / "docs/how-to/alerts.md").read_text(), flags=re.DOTALL)
    quoted = {phrase.removesuffix(": ...") for phrase in re.findall(r'"([^"]+)"', " ".join(prose.split()))}
    assert len(quoted) > 5
    assert not {phrase for phrase in quoted - _FOREIGN if phrase not in shown}


def test_kubeadm_is_given_the_whole_configuration(repository: Path, chart: Path) -> None:
    """With the recipe's part alone it would take its own version, image repository and arguments for kube-scheduler."""
    commands = re.findall(r"^[#$] (.+)$", (repository / "docs/how-to/install.md").read_text(), re.MULTILINE)
    files = {re.findall(r"--config (\S+)", command)[0] for command in commands if command.startswith("kubeadm ")}
    fetched = {command.rpartition("> ")[2] for command in commands if "configmap kubeadm-config" in command}
    assert files == fetched != set()
    assert not {path.name for path in (chart / "recipes/kubeadm").iterdir()} & files


def test_kustomizations_are_for_clusters_that_know_all_of_their_kinds(repository: Path, default: Any) -> None:
    section = (
        (repository / "docs/how-to/install.md").read_text().partition("## With kustomize")[2].partition("\n## ")[0]
    )
    assert {policy["apiVersion"] for policy in default.kinds("ValidatingAdmissionPolicy")} == {
        "admissionregistration.k8s.io/v1"
    }
    assert "for Kubernetes 1.30 and later" in section

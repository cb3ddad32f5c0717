"""hack/kubernetes-binaries: its arguments, and the Go program that it writes for each binary.

A script in place of the Go command copies the program and its environment, so no test compiles Kubernetes.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "hack/kubernetes-binaries"
_GO = """\
#!/bin/sh
# The last argument is the program's source, and the argument before it is the target.
while [ $# -gt 2 ]; do case $1 in -ldflags) echo "$2" > "$0.flags" ;; esac; shift; done
{ echo "// $PWD $GOFLAGS"; cat "$2"; } > "$1"
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Returns a folder with the files that the script reads in a checkout of openshift/microshift."""
    folder = tmp_path / "tree"
    _kubelet(folder, "")
    lines = ("MAJOR=1", "MINOR=36", "VERSION=v1.36.2", "COMMIT=abc", "TREE_STATE=clean")
    (folder / "Makefile.kube_git.var").write_text("".join(f"KUBE_GIT_{line}\n" for line in lines))
    (tmp_path / "go").write_text(_GO)
    (tmp_path / "go").chmod(0o755)
    return folder


def _kubelet(tree: Path, parameter: str) -> None:
    source = tree / "vendor/k8s.io/kubernetes/cmd/kubelet/app/server.go"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(f"func NewKubeletCommand({parameter}) *cobra.Command {{\n")


def run(tree: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "GO": str(tree.parent / "go"), **environment}
    return subprocess.run([str(SCRIPT), *arguments], capture_output=True, text=True, check=False, env=variables)


def test_every_program_is_built_into_the_target(tree: Path, tmp_path: Path) -> None:
    done = run(tree, str(tree), str(tmp_path / "bin"))
    assert done.returncode == 0, done.stderr
    names = {"kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubelet"}
    assert {path.name for path in (tmp_path / "bin").iterdir()} == names
    program = (tmp_path / "bin/kube-scheduler").read_text()
    assert program.startswith(f"// {tree} -mod=vendor")
    assert 'app "k8s.io/kubernetes/cmd/kube-scheduler/app"' in program
    assert "cli.Run(app.NewSchedulerCommand())" in program
    flags = (tmp_path / "go.flags").read_text()
    assert "-X k8s.io/component-base/version.gitVersion=v1.36.2 " in flags
    assert "-X k8s.io/component-base/version.gitMinor=36 " in flags


@pytest.mark.parametrize(
    ("parameter", "call"),
    [("", "NewKubeletCommand()"), ("ctx context.Context", "NewKubeletCommand(context.Background())")],
)
def test_the_kubelet_gets_a_context_if_its_minor_takes_it(tree: Path, parameter: str, call: str) -> None:
    _kubelet(tree, parameter)
    assets = tree.parent / "assets"
    done = run(tree, str(tree), KUBEBUILDER_ASSETS=str(assets))
    assert done.returncode == 0, done.stderr
    program = (assets / "kubelet").read_text()
    assert f"app.{call})" in program
    assert ('"context"' in program) == bool(parameter)


def test_only_named_programs_are_built(tree: Path, tmp_path: Path) -> None:
    assert run(tree, str(tree), str(tmp_path / "bin"), "kubelet", "kube-scheduler").returncode == 0
    assert sorted(path.name for path in (tmp_path / "bin").iterdir()) == ["kube-scheduler", "kubelet"]


def test_wrong_arguments_build_nothing(tree: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "bin")
    for arguments, code, text in (
        ((), 2, "no TREE is given"),
        (
            (str(tree), target, "kubelet", "kube-proxy"),
            2,
            "unknown program kube-proxy, expected any of: kube-apiserver",
        ),
        ((str(tmp_path), target), 1, "has no Makefile.kube_git.var, expected a checkout of openshift/microshift"),
    ):
        done = run(tree, *arguments)
        assert (done.returncode, text in done.stderr) == (code, True), done.stderr
    done = run(tree, str(tree), target, GO=str(tmp_path / "no-go"))
    assert (done.returncode, "no-go is not found" in done.stderr) == (1, True)
    assert not Path(target).exists()

"""How an image gets into a cluster: which command is run, and what is said where none can be."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from images import __main__ as main
from images import engines
from images.application import ImageError

ARCHIVE = Path("/dist/topowise-amd64.tar")


def tools(folder: Path, *names: str) -> None:
    """Programs that say what they were called with."""
    for name in names:
        (folder / name).write_text('#!/bin/sh\necho "$0" "$@" > "$(dirname "$0")/called"\n')
        (folder / name).chmod(0o755)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only program of $PATH besides a shell's."""
    shell = tmp_path / "shell"
    shell.mkdir()
    for name in ("sh", "dirname"):
        (shell / name).symlink_to(f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{shell}")
    return tmp_path


@pytest.mark.parametrize(
    "there, into, expected",
    [
        (("ctr",), "", "ctr --namespace k8s.io images import"),
        (("ctr", "k3s"), "", "k3s ctr images import"),
        (("ctr", "k3s", "kind"), "", "kind load image-archive"),
        (("ctr", "k3s", "kind"), "containerd", "ctr --namespace k8s.io images import"),
    ],
)
def test_the_cluster_that_is_here_gets_it(folder: Path, there: tuple[str, ...], into: str, expected: str) -> None:
    tools(folder, *there)
    assert " ".join(engines.command(ARCHIVE, into, "")).startswith(f"{expected} {ARCHIVE}")


def test_kind_gets_the_cluster_name(folder: Path) -> None:
    tools(folder, "kind")
    archive = folder / "image.tar"
    archive.touch()
    engines.load(archive, "", "topowise")
    assert (folder / "called").read_text().split()[1:] == ["load", "image-archive", str(archive), "--name", "topowise"]


def test_without_any_it_is_said_what_to_do(folder: Path) -> None:
    with pytest.raises(
        ImageError, match=r"none of kind, k3s, ctr is installed; copy /dist/topowise-amd64\.tar to each node"
    ):
        engines.command(ARCHIVE, "", "")


def test_without_an_engine_it_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["build"]) == 1
    said = capsys.readouterr().err
    assert re.fullmatch(r"images: no buildah, podman or docker here; .*apt-get install buildah mmdebstrap\n", said)

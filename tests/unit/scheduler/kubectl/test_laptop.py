"""The plugin as a single file: its content is complete, its cache directory is safe; and krew's manifest."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from laptop import archive
from topowise import __version__

from .conftest import Save

pytestmark = pytest.mark.nightly

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("plugin") / archive.NAME
    archive.pack(target, archive.of_this_python(with_numpy=False))
    return target


def run(program: Path, cache: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs with the standard library only, without installed packages."""
    return start([sys.executable, "-I", "-S", str(program), *words], cache)


def start(command: list[str], cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(cache)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_the_archive_prints_the_same_as_the_package(program: Path, tmp_path: Path, saved: Save) -> None:
    assert program.stat().st_size < 2 << 20
    for words in (["nodes"], ["node", "metal-a"], ["nodes", "-o", "yaml"], ["doctor"]):
        command = [*words, "-f", saved()]
        expected = start([sys.executable, "-m", "topowise_scheduler.kubectl", *command], tmp_path)
        result = run(program, tmp_path, *command)
        assert (result.returncode, result.stdout, result.stderr) == (
            expected.returncode,
            expected.stdout,
            expected.stderr,
        )
    assert run(program, tmp_path, "--version").stdout == f"{__version__}\n"
    (unpacked,) = (tmp_path / "kubectl-topowise").iterdir()
    assert list(unpacked.rglob("*.pyc"))


def test_without_numpy_the_error_names_the_package(program: Path, tmp_path: Path, saved: Save) -> None:
    for command in ("explain", "fits", "simulate", "defrag"):
        result = run(program, tmp_path, command, "late", "-n", "ml", "--nodes-file", saved())
        assert (result.returncode, result.stdout) == (2, "")
        said = f"error: {command}: needs numpy, expected it in {sys.executable}: python3 -m pip install numpy\n"
        assert result.stderr == said


def test_with_numpy_all_commands_work(program: Path, tmp_path: Path, saved: Save) -> None:
    result = start([sys.executable, str(program), "explain", "late", "-n", "ml", "--nodes-file", saved()], tmp_path)
    assert result.stdout.startswith("Pod ml/late: fits "), result.stderr


def test_a_cache_that_cannot_be_trusted_is_not_used(
    program: Path, tmp_path: Path, saved: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_to_all = tmp_path / "kubectl-topowise"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    before = set(Path("/tmp").glob("kubectl-topowise-*"))
    for cache in (tmp_path, Path("/proc/nowhere")):
        assert "metal-a" in run(program, cache, "nodes", "-f", saved()).stdout
    assert not list(open_to_all.iterdir())
    assert set(Path("/tmp").glob("kubectl-topowise-*")) == before


def test_unused_versions_are_removed_from_the_cache(program: Path, tmp_path: Path) -> None:
    cache = tmp_path / "kubectl-topowise"
    old, lately = cache / "0-cp311", cache / "1-cp311"
    for entry in (old, lately):
        entry.mkdir(parents=True)
    cache.chmod(0o700)
    os.utime(old, (0, 0))
    assert run(program, tmp_path, "--version").returncode == 0
    assert not old.exists()
    assert lately.exists()


def test_an_unsupported_python_is_an_error(tmp_path: Path) -> None:
    target = tmp_path / archive.NAME
    archive.pack(target, {"cp399": {}} | {"cp398": {"msgspec/__init__.py": Path(__file__)}})
    result = run(target, tmp_path, "nodes")
    assert result.returncode == 2
    expected = (
        f"error: kubectl-topowise is made for cp398, and python3 is {archive.running()}; start it with one of these\n"
    )
    assert result.stderr == expected


def test_the_same_files_make_the_same_file(program: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    archive.pack(again, archive.of_this_python(with_numpy=False))
    assert again.read_bytes() == program.read_bytes()
    licence = archive.REPOSITORY / "LICENSE"
    digests = {archive.packed(program, licence, tmp_path / f"{number}.tar.gz") for number in range(2)}
    assert len(digests) == 1


def test_the_archive_has_no_heavy_packages_and_no_daemons() -> None:
    files, packages = archive.needed()
    assert packages == {"msgspec", "xxhash", "yaml", "prometheus_client", "numpy"}
    daemons = ("serve", "controllers", "dashboard")
    assert not [name for name in files if name.startswith(tuple(f"topowise_scheduler/{entry}" for entry in daemons))]
    assert not [name for name in files if name.startswith("topowise/wire")]


def test_krews_manifest_names_the_archive(program: Path, tmp_path: Path) -> None:
    packed = tmp_path / archive.archive_name("linux-amd64")
    digest = archive.packed(program, archive.REPOSITORY / "LICENSE", packed)
    document = yaml.safe_load(archive.manifest("1.2.3", {"linux-amd64": digest}, "https://host/v1.2.3"))
    spec = document["spec"]
    (platform,) = spec["platforms"]
    assert (document["metadata"]["name"], spec["version"]) == ("topowise", "v1.2.3")
    assert platform["selector"] == {"matchLabels": {"os": "linux", "arch": "amd64"}}
    assert platform["uri"] == "https://host/v1.2.3/kubectl-topowise-linux-amd64.tar.gz"
    assert platform["sha256"] == hashlib.sha256(packed.read_bytes()).hexdigest()
    with tarfile.open(fileobj=io.BytesIO(packed.read_bytes())) as unpacked:
        members = {entry.name: entry.mode for entry in unpacked.getmembers()}
    assert {entry["from"] for entry in platform["files"]} == members.keys()
    assert members[platform["bin"]] == 0o755
    assert "\n" not in spec["shortDescription"] and len(spec["shortDescription"]) <= 50

"""What is taken out of the image is needed by nothing that stays."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

from images import application, unused

# Every module that the daemons use of the official client, and what they then have loaded.
LOADED = """
import json, sys
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import load_kube_config
print(json.dumps([sys.modules["kubernetes"].__file__, *sys.modules]))
"""


def installed_client() -> Path:
    module_spec = find_spec("kubernetes")
    assert module_spec is not None and module_spec.origin is not None
    return Path(module_spec.origin).parent


def trimmed(site: Path) -> Path:
    """The files of the official client that stay in the image, beside a file that does not."""
    for name in (*unused.CLIENT, "client/rest.py", "aio/utils/__init__.py", "aio/client/__init__.py"):
        target = site / "kubernetes" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(installed_client() / name, target)
    unused.remove(site)
    return site


def test_the_part_for_kubeconfigs_loads_nothing_that_is_left_out(tmp_path: Path) -> None:
    site = trimmed(tmp_path)
    code = f"import sys; sys.path.insert(0, {str(site)!r})\n{LOADED}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    origin, *modules = json.loads(done.stdout)
    assert Path(origin).is_relative_to(site)
    makers = packages_distributions()
    loaded = {maker.lower().replace("_", "-") for name in modules for maker in makers.get(name.partition(".")[0], ())}
    assert not loaded & unused.DISTRIBUTIONS


def test_the_rest_of_the_client_is_gone(tmp_path: Path) -> None:
    site = trimmed(tmp_path)
    assert not (site / "kubernetes/client").exists()
    assert sum(path.stat().st_size for path in site.rglob("*.py")) < 200_000


def test_tests_stubs_and_sources_are_gone(tmp_path: Path) -> None:
    trimmed(tmp_path)
    for name in (
        "numpy/tests/test_x.py",
        "numpy/a.pyi",
        "uvloop/loop.c",
        "numpy/_core/_simd.cpython-311.so",
        "numpy/a.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    unused.remove(tmp_path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert {name for name in left if not name.startswith("kubernetes/")} == {"numpy/a.py"}


def test_a_library_without_debug_information_is_smaller_and_still_loads(tmp_path: Path) -> None:
    module_spec = find_spec("uvloop.loop")
    assert module_spec is not None and module_spec.origin is not None
    library = trimmed(tmp_path) / "uvloop" / Path(module_spec.origin).name
    library.parent.mkdir()
    shutil.copyfile(module_spec.origin, library)
    before = library.stat().st_size
    unused.remove(tmp_path)
    assert library.stat().st_size < before / 4
    load = "import ctypes, os, sys; ctypes.CDLL(sys.argv[1], os.RTLD_NOW)"
    subprocess.run([sys.executable, "-c", load, str(library)], check=True)


def test_a_pattern_that_no_installed_file_matches_is_reported(tmp_path: Path) -> None:
    (trimmed(tmp_path) / "a.h").touch()
    without_match = unused.remove(tmp_path)
    assert "**/*.h" not in without_match
    assert "numpy/f2py" in without_match


def test_what_is_left_out_is_locked_and_no_dependency_of_ours() -> None:
    lock = (application.REPOSITORY / "hack/requirements.txt").read_text()
    assert set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE)) >= unused.DISTRIBUTIONS
    section = (application.REPOSITORY / "docs/dependencies.md").read_text().partition("## Brought")[0]
    assert not [name for name in unused.DISTRIBUTIONS if f"| {name} |" in section]


def test_the_image_is_installed_from_the_rest_of_the_lock_with_its_hashes(tmp_path: Path) -> None:
    text = application.lock(tmp_path).read_text()
    named = re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE)
    assert "grpcio" in named and "numpy" in named
    assert not set(named) & unused.DISTRIBUTIONS
    assert all("--hash=sha256:" in entry for entry in re.split(r"\n(?=\S)", text) if "==" in entry)

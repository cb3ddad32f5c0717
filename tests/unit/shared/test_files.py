"""What stands where a file should: a FIFO, a device, a directory, a socket, something huge or without an end."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from topowise import files
from topowise.errors import SourceError
from topowise_exporter.kubelet.settings.file import FileSource, load
from topowise_exporter.kubelet.state_files import StateFile
from topowise_exporter.machine.sysfs import Tree
from topowise_exporter.restart import StartCheck


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def terminal(path: Path) -> None:
    path.symlink_to("/dev/tty")


def folder(path: Path) -> None:
    path.mkdir()


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


IN_ITS_PLACE = pytest.mark.parametrize("make", [fifo, endless, terminal, folder, listener, huge])


@pytest.fixture(autouse=True)
def little_memory() -> object:
    """An endless file ends a test, and not the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@IN_ITS_PLACE
def test_in_place_of_a_file(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "file")
    with pytest.raises(OSError) as caught:
        files.read_regular(tmp_path / "file", 1 << 20)
    assert caught.value.strerror


@IN_ITS_PLACE
def test_in_place_of_an_attribute_of_sysfs(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "online")
    tree = Tree(str(tmp_path), [])
    assert tree.text("online", "taken as missing") is None
    assert tree.integer("online") is None
    assert tree.cpus("online") is None
    assert tree.problems[0].endswith("; taken as missing")


@IN_ITS_PLACE
async def test_in_place_of_the_kubelet_s_configuration(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "config.yaml")
    with pytest.raises(SourceError, match=r"config\.yaml: cannot be read"):
        await FileSource(str(tmp_path / "config.yaml")).read(None)
    with pytest.raises(SourceError, match="cannot be read"):
        load("", [str(tmp_path / "config.yaml")])


@IN_ITS_PLACE
def test_in_place_of_a_state_file(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "cpu_manager_state")
    state: StateFile[bytes] = StateFile(tmp_path / "cpu_manager_state", lambda text, source: text)
    for _ in range(2):
        with pytest.raises(SourceError, match="cpu_manager_state: cannot be read"):
            state.read()
    assert StartCheck(tmp_path).problems == {}


def test_a_file_of_the_kernel_that_tells_no_size_is_read_to_its_end() -> None:
    assert b"MemTotal" in files.read_regular("/proc/meminfo", 1 << 20)
    with pytest.raises(OSError, match="more than 10 bytes"):
        files.read_regular("/proc/meminfo", 10)


def test_a_link_to_a_file_is_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert files.read_regular(tmp_path / "link", 7) == b"content"
    with pytest.raises(OSError, match="it has 7 bytes, expected up to 6"):
        files.read_regular(tmp_path / "link", 6)


def test_nothing_is_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for make in (fifo, endless, folder, huge):
        make(tmp_path / make.__name__)
        with pytest.raises(OSError):
            files.read_regular(tmp_path / make.__name__, 1 << 20)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208

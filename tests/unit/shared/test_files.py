"""What stands where a file should: a FIFO, a device, a directory, a socket, something huge or without an end."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from pki import Authority
from topowise import files
from topowise.errors import ConfigError, SourceError
from topowise.kube import credentials, kubeconfig
from topowise.kubeletconfig import KubeletConfiguration
from topowise.runtime import config
from topowise.runtime.config import ServingTls
from topowise.runtime.listening import Certificate
from topowise_exporter.configuration import ExporterConfiguration
from topowise_exporter.kubelet.allocations import Allocatable
from topowise_exporter.kubelet.settings.configz import ConfigzSource
from topowise_exporter.kubelet.settings.sources import FileSource, load
from topowise_exporter.kubelet.state_files import StateFile
from topowise_exporter.machine.inventory import Machine
from topowise_exporter.machine.sysfs import Tree
from topowise_exporter.state_file_check import StartCheck
from topowise_scheduler.configuration import SchedulerConfiguration
from topowise_scheduler.serve import grpc_server
from topowise_scheduler.serve.extender import callers


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def terminal(path: Path) -> None:
    path.symlink_to("/dev/tty")


def folder(path: Path) -> None:
    path.mkdir()


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix_socket:
        unix_socket.bind(str(path))


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


def a_file(path: Path) -> None:
    files.read_regular(path, 1 << 20)


def sysfs(path: Path) -> None:
    tree = Tree(str(path.parent), [])
    assert (tree.text(path.name, "taken as missing"), tree.integer(path.name), tree.cpus(path.name)) == (None,) * 3
    assert tree.problems[0].endswith("; taken as missing")
    raise OSError(tree.problems[0])


async def kubelet_configuration(path: Path) -> None:
    await FileSource(str(path)).read(None)


def drop_in(path: Path) -> None:
    load("", [str(path)])


def state_file(path: Path) -> None:
    state: StateFile[bytes] = StateFile(path, lambda text, source: text)
    with pytest.raises(SourceError):
        state.read()
    state.read()


async def ca_of_the_kubelet(path: Path) -> None:
    token = path.with_name("token")
    token.write_text("t")
    await ConfigzSource(str(path), "127.0.0.1", token_file=token).read(None)


def configuration_of_the_exporter(path: Path) -> None:
    config.load(ExporterConfiguration, str(path))


def configuration_of_the_scheduler(path: Path) -> None:
    config.load(SchedulerConfiguration, str(path))


def kubeconfig_file(path: Path) -> None:
    kubeconfig.read(str(path))


@IN_ITS_PLACE
@pytest.mark.parametrize(
    ("read", "problem"),
    [
        (a_file, "."),
        (sysfs, "file: "),
        (kubelet_configuration, "file: cannot be read"),
        (drop_in, "cannot be read"),
        (state_file, "file: cannot be read"),
        (ca_of_the_kubelet, "file: is not a usable CA bundle"),
        (configuration_of_the_exporter, "file: cannot be read"),
        (configuration_of_the_scheduler, "file: cannot be read"),
        (kubeconfig_file, "file: cannot be read"),
    ],
)
async def test_in_place_of_a_file(
    make: Callable[[Path], None], tmp_path: Path, read: Callable[[Path], Awaitable[None] | None], problem: str
) -> None:
    make(tmp_path / "file")
    with pytest.raises((OSError, SourceError, ConfigError), match=problem):
        result = read(tmp_path / "file")
        if result is not None:
            await result


@IN_ITS_PLACE
def test_in_place_of_state_files_nothing_is_compared(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "cpu_manager_state")
    machine = Machine((), (), (), (), (), (), (), ())
    assert StartCheck(tmp_path).compare(KubeletConfiguration(), machine, Allocatable(), 0.0) == {}


@IN_ITS_PLACE
def test_in_place_of_a_file_of_the_service_account(
    make: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(credentials.IN_CLUSTER, "127.0.0.1")
    (tmp_path / "token").write_text("t")
    make(tmp_path / "ca.crt")
    with pytest.raises(SourceError, match=r"ca\.crt: is not a usable CA bundle"):
        credentials.in_cluster(tmp_path)
    make(tmp_path / "namespace")
    assert "*.svc" not in callers.names((), tmp_path / "namespace")


@IN_ITS_PLACE
@pytest.mark.parametrize("entry", ["certificate-authority", "client-certificate", "client-key"])
def test_in_place_of_what_a_kubeconfig_names(make: Callable[[Path], None], tmp_path: Path, entry: str) -> None:
    authority = Authority(tmp_path / "pki", "ca")
    certificate, key = authority.issue("client")
    named = {"certificate-authority": authority.certificate, "client-certificate": certificate, "client-key": key}
    make(tmp_path / "odd")
    named[entry] = tmp_path / "odd"
    cluster = {"server": "https://127.0.0.1:6443", "certificate-authority": str(named.pop("certificate-authority"))}
    document = {
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {name: str(path) for name, path in named.items()}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    (tmp_path / "kubeconfig").write_bytes(msgspec.json.encode(document))
    static = kubeconfig.read(str(tmp_path / "kubeconfig"))
    assert static is not None
    with pytest.raises(ConfigError, match=r"cannot be used: .*odd"):
        static.context()


@IN_ITS_PLACE
@pytest.mark.parametrize("file", ["cert_file", "key_file", "client_ca_file"])
def test_in_place_of_a_certificate_that_is_served(make: Callable[[Path], None], tmp_path: Path, file: str) -> None:
    authority = Authority(tmp_path / "pki", "ca")
    certificate, key = authority.issue("server")
    make(tmp_path / "odd")
    paths = {"cert_file": certificate, "key_file": key, "client_ca_file": authority.certificate}
    settings = ServingTls(**{**{name: str(path) for name, path in paths.items()}, file: str(tmp_path / "odd")})
    for serve in (Certificate, grpc_server.read_certificate):
        with pytest.raises(SourceError, match="odd"):
            serve(settings)


def test_certificates_that_are_regular_files_are_used(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    certificate, key = authority.issue("server")
    Certificate(ServingTls(str(certificate), str(key), str(authority.certificate)))
    both = tmp_path / "both.pem"
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    context = files.trusting(authority.certificate)
    files.load_chain(context, str(both), None)
    assert context.get_ca_certs()[0]["subject"] == ((("commonName", "ca"),),)


def test_a_kernel_file_without_a_size_is_read_to_its_end() -> None:
    assert b"MemTotal" in files.read_regular("/proc/meminfo", 1 << 20)
    with pytest.raises(OSError, match="more than 10 bytes"):
        files.read_regular("/proc/meminfo", 10)


def test_a_link_to_a_file_is_a_file(tmp_path: Path) -> None:
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

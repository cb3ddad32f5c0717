"""From nothing to a lab in which pods can be placed, with a line for each part."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import images.__main__ as building
from images import engines, load
from images.application import REPOSITORY
from lab import base, chart, controlplane, earlier, instruments, machine, programs, qemu, running, series
from lab.cluster import Lab
from lab.errors import LabError
from lab.native.cluster import NativeLab
from lab.qemu import Ports
from lab.running import NATIVE, Plan, Processes
from sandbox.processes import free_ports

_PAUSE: Final = "localhost/lab-pause:1"
_PARTS: Final = 9
_IMPORT_S: Final = 900.0


class Progress:
    """A line when a part begins."""

    def __init__(self, parts: int) -> None:
        self._parts, self._part, self._start = parts, 0, time.monotonic()

    def part(self, title: str) -> None:
        self._part += 1
        seconds = time.monotonic() - self._start
        print(f"lab: {seconds:5.0f} s  part {self._part} of {self._parts}: {title}", flush=True)


def up(names: Sequence[str], before: str = "") -> Lab:
    """Starts the lab; `before` names a commit whose daemons are the start of an upgrade. Raises LabError; the caller
    then ends the started processes."""
    progress = Progress(_PARTS)
    for name in names:
        machine.read(name)
    binaries = controlplane.binaries()
    programs.check(programs.EMULATED)
    chart.fetch_helm()
    directory = running.new()
    progress.part(f"the guests' Debian (kept in {base.cache()})")
    base.made()
    progress.part("the image (dist/) and the disk that the guests share")
    _shared(directory, binaries, before)
    progress.part("etcd, kube-apiserver, kube-controller-manager")
    plan = _plan(names)
    running.write(directory, plan)
    controlplane.start(Processes(directory), plan)
    lab = Lab(directory, plan)
    progress.part(f"guests {', '.join(lab.guests)} boot ({plan.accelerator})")
    for name in lab.guests:
        lab.power_on(name)
    _install(lab)
    for guest in lab.guests.values():
        guest.until_booted()
    progress.part("topowise-scheduler and kube-scheduler")
    # Pods of DaemonSets are placed by it too.
    controlplane.start_schedulers(lab.processes, plan)
    progress.part("images into containerd")
    # Unpacking an image takes a single CPU of a guest.
    with ThreadPoolExecutor(len(lab.guests)) as threads:
        list(threads.map(partial(_import, lab), lab.guests))
    progress.part("kubelets join")
    for name in lab.guests:
        lab.join(name)
    for name in lab.guests:
        lab.until_ready(name)
    progress.part("device plug-ins, and the exporter of the chart")
    chart.until_rolled_out(lab.api)
    for name in lab.guests:
        lab.until_devices(name)
    progress.part("objects as the guests are")
    lab.watch()
    if different := lab.settle():
        raise LabError(f"objects differ from their guests: {'; '.join(different)[:600]}")
    print(f"lab: is up; KUBECONFIG={lab.kubeconfig}, make lab ARGS=down ends it", flush=True)
    return lab


def _plan(names: Sequence[str]) -> Plan:
    own, remaining = free_ports(4), iter(free_ports(3 * len(names)))
    guests = {name: Ports(*(next(remaining) for _ in range(3))) for name in names}
    return Plan(own[0], own[1], own[2], own[3], qemu.accelerator(), guests)


def _shared(directory: Path, binaries: Path, before: str) -> None:
    """Makes the file system with kubelet and images in a second; all guests have it as their second disk."""
    folder = directory / "shared-files"
    folder.mkdir()
    image = building.archive(load.architecture())
    if not image.exists():
        subprocess.run([sys.executable, "-m", "images", "build"], check=True, cwd=REPOSITORY)
    _pause(folder / "pause.tar")
    shutil.copy(image, folder / "topowise.tar")
    if before:
        _earlier(directory / earlier.TAG, before, folder / f"{earlier.TAG}.tar")
    shutil.copy(binaries / "kubelet", folder / "kubelet")
    size = sum(path.stat().st_size for path in folder.iterdir()) // (1 << 20) * 6 // 5 + 64
    target = str(directory / "shared")
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", "-d", str(folder), target, f"{size}M"], check=True)
    shutil.rmtree(folder)


def _earlier(folder: Path, commit: str, target: Path) -> None:
    folder.mkdir()
    earlier.unpack(commit, folder)
    today = f"{instruments.IMAGE}-{load.architecture()}"
    if not engines.find().has(today):
        raise LabError(f"{today} is not in the local store, only its archive; run make images first")
    earlier.image(folder, today, f"{instruments.IMAGE.rpartition(':')[0]}:{earlier.TAG}", target)


def _pause(target: Path) -> None:
    """Makes the pause image, which holds the name spaces of a pod: the guests' own busybox, asleep."""
    engine = engines.find()
    if engine.name != "buildah":
        raise LabError(f"the pause image needs buildah, found {engine.name}; apt-get install buildah")
    container = engine.run("from", "scratch")
    engine.run("add", container, str(base.made().busybox), "/bin/busybox")
    engine.run("config", "--entrypoint", '["/bin/busybox", "sleep", "2147483647"]', container)
    engine.run("commit", "--rm", container, _PAUSE)
    engine.run("push", _PAUSE, f"docker-archive:{target}:{_PAUSE}")


def _import(lab: Lab, name: str) -> None:
    there = ("pause", "topowise", *([earlier.TAG] if (lab.directory / earlier.TAG).exists() else []))
    for archive in there:
        command = f"ctr -n k8s.io images import /opt/lab/{archive}.tar"
        # containerd may still be starting.
        lab.guests[name].run(f"until ctr version > /dev/null 2>&1; do sleep 0.5; done; {command}", seconds=_IMPORT_S)


def _install(lab: Lab) -> None:
    """Creates the objects that a cluster needs before its nodes join."""
    chart.install(lab.kubeconfig)
    lab.api.create("/apis/node.k8s.io/v1/runtimeclasses", series.runtime_class())
    lab.api.create(f"/api/v1/namespaces/{instruments.NAMESPACE}/configmaps", instruments.config_map())
    for each in lab.machines.values():
        lab.api.create(f"/apis/apps/v1/namespaces/{instruments.NAMESPACE}/daemonsets", instruments.daemon_set(each))


def again() -> Lab:
    """Returns the running lab. Raises LabError."""
    directory, plan = running.plan()
    lab = NativeLab(directory, plan) if plan.accelerator == NATIVE else Lab(directory, plan)
    lab.processes.check()
    lab.watch()
    return lab

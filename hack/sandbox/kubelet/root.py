"""The kubelet's root directory: the checkpoints of its managers, and a directory for each pod that it has admitted."""

from __future__ import annotations

import os
from pathlib import Path

from sandbox import simulated_time
from sandbox.kubelet.state_files import StateFiles


class Root:
    """`directory` is made if it is not there."""

    def __init__(self, directory: Path) -> None:
        self.files = StateFiles(directory)
        self.socket = directory / "pod-resources/kubelet.sock"
        self._pods = directory / "pods"
        self._pods.mkdir(parents=True, exist_ok=True)

    def pods(self) -> list[str]:
        """Returns the uids of pods that have a directory."""
        return [entry.name for entry in self._pods.iterdir()]

    def make_pod(self, uid: str) -> None:
        """The pod's worker begins (makePodDataDirs)."""
        (self._pods / uid).mkdir(exist_ok=True)

    def remove_pod(self, uid: str) -> None:
        """Nothing of the pod is left (cleanupOrphanedPodDirs)."""
        (self._pods / uid).rmdir()

    def make_socket_file(self) -> None:
        """Creates a plain file in place of a socket: every process recreates it, which signals its start."""
        self.socket.parent.mkdir(exist_ok=True)
        scratch = self.socket.with_name(".kubelet.sock")
        scratch.touch()
        now = simulated_time.utc_now().timestamp()
        os.utime(scratch, (now, now))
        scratch.replace(self.socket)

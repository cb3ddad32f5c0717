"""Keeps a short-lived token of another service account in a directory, as the kubelet does for a pod's own account.

A pod has one service account, and the kubelet projects tokens of that account alone. In the chart's mode own it is
kube-scheduler's account; the service beside kube-scheduler has another account with fewer rights. A container with
kube-scheduler's account requests the service's tokens (TokenRequest) and writes each token to a volume of the service.
The service never holds a token of kube-scheduler's account.
"""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path
from typing import Final

import msgspec

from topowise import files
from topowise.errors import ApiError, SourceError
from topowise.kube import credentials, paths
from topowise.kube.api import Api, decoded
from topowise.runtime import tasks
from topowise.runtime.backoff import Backoff
from topowise.runtime.log import V2, kv

log = logging.getLogger(__name__)

LIFETIME_S: Final = 3600
"""Not 3607: for a pod's token of 3607 s, which the kubelet requests by default, the API server grants a year."""

# The API server may grant less than requested, and never less than ten minutes.
_SHORTEST_S: Final = 600
_REQUEST_TIMEOUT_S: Final = 10.0


class _Granted(msgspec.Struct, frozen=True):
    """A TokenRequest as the API server answers it."""

    class Spec(msgspec.Struct, frozen=True):
        expirationSeconds: int

    class Status(msgspec.Struct, frozen=True):
        token: str

    spec: Spec
    status: Status


class AccountToken:
    """Writes `token`, `ca.crt` and `namespace` to `directory`, for the service account `account` of `namespace`.
    `source` is the directory of the pod's own account: the CA is copied from there."""

    def __init__(self, api: Api, account: str, directory: Path, *, source: Path = credentials.SERVICE_ACCOUNT) -> None:
        self._api = api
        self._account = account
        self._directory = directory
        self._source = source

    async def run(self) -> None:
        """Renews the token several times in its lifetime until cancelled."""
        backoff = Backoff()
        while True:
            try:
                lifetime = await self.renew()
            except (ApiError, OSError) as exc:
                log.warning("Cannot renew a token, trying again", extra=kv(account=self._account, why=exc))
                retry_after = exc.retry_after if isinstance(exc, ApiError) else None
                await asyncio.sleep(backoff.next_delay(at_least=retry_after))
                continue
            backoff.reset()
            log.log(V2, "Renewed a token", extra=kv(account=self._account, seconds=lifetime))
            # Early: a machine that was paused, or an account that was made anew, is without a token until then.
            await asyncio.sleep(lifetime * random.uniform(0.1, 0.2))

    async def renew(self) -> int:
        """Requests one token and writes it; its lifetime in seconds. Raises ApiError or OSError."""
        namespace = files.read_regular(self._source / "namespace")
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": LIFETIME_S},
        }
        where = namespace.decode(errors="replace").strip()
        path = paths.path(paths.NAMESPACES, where, "serviceaccounts", self._account, "token")
        answer = await self._api.request("POST", path, body=msgspec.json.encode(request), timeout=_REQUEST_TIMEOUT_S)
        granted = decoded(answer, _Granted, "a TokenRequest", f"POST {path}")
        self._write("ca.crt", files.read_regular(self._source / "ca.crt"))
        self._write("namespace", namespace)
        # Last: the container that reads the directory starts when the token is there.
        self._write("token", granted.status.token.encode())
        return max(_SHORTEST_S, granted.spec.expirationSeconds)

    def _write(self, name: str, content: bytes) -> None:
        """Replaces a file in one step: a reader sees the file of before or the new file, never a part."""
        temporary = self._directory / f".{name}.new"
        temporary.unlink(missing_ok=True)
        # The other container may have another user; both have the pod's group.
        temporary.touch(mode=0o640, exist_ok=False)
        temporary.write_bytes(content)
        temporary.replace(self._directory / name)


async def run(account: str, directory: Path, *, source: Path = credentials.SERVICE_ACCOUNT) -> int:
    """Keeps the token until the process is stopped; the exit status. Raises SourceError."""
    if not directory.is_dir():
        raise SourceError(str(directory), "is no directory, expected a volume that the other container mounts as well")
    async with Api(credentials.in_cluster(source), "topowise-token") as api:
        return await tasks.run_until_stopped({"token": AccountToken(api, account, directory, source=source).run()})

"""The extender as kube-scheduler calls it (pkg/scheduler/extender.go, k8s.io/kube-scheduler/extender/v1).

Keys are Go's field names, empty pointers are null, a pod is sent as the informer has it. Anything but 200 is an error,
and so is a node that was not asked about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp
import msgspec

from sandbox.kubescheduler.cache import PodInfo, Refused

PLUGIN: Final = "Extender"
# What Go's net/http sends of itself.
_HEADERS: Final = {
    "Content-Type": "application/json",
    "User-Agent": "Go-http-client/1.1",
    "Accept-Encoding": "gzip",
}
_TOP_SCORE: Final = 10
_NODE_SCORE: Final = 100


class ExtenderError(Exception):
    """The call failed, and with it the attempt, unless the extender may be ignored."""


class _FilterResult(msgspec.Struct, frozen=True):
    NodeNames: list[str] | None = None
    FailedNodes: dict[str, str] | None = None
    FailedAndUnresolvableNodes: dict[str, str] | None = None
    Error: str = ""


class _Priority(msgspec.Struct, frozen=True):
    Host: str
    Score: int


class _MetaPod(msgspec.Struct, frozen=True):
    UID: str


class _MetaVictims(msgspec.Struct, frozen=True):
    Pods: list[_MetaPod] | None = None
    NumPDBViolations: int = 0


class _PreemptionResult(msgspec.Struct, frozen=True):
    NodeNameToMetaVictims: dict[str, _MetaVictims | None] | None = None


class _BindingResult(msgspec.Struct, frozen=True):
    Error: str = ""


class Extender:
    """`prefix` may be changed between calls, as the address behind a Service is. A verb that is "" is not called."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        prefix: str,
        *,
        filter_verb: str = "filter",
        prioritize_verb: str = "prioritize",
        preempt_verb: str = "preempt",
        bind_verb: str = "bind",
        weight: int = 5,
        is_ignorable: bool = False,
        timeout: float = 2.0,
    ) -> None:
        self._session = session
        self.prefix = prefix
        self.filter_verb = filter_verb
        self.prioritize_verb = prioritize_verb
        self.preempt_verb = preempt_verb
        self.bind_verb = bind_verb
        self.weight = weight
        self.is_ignorable = is_ignorable
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self.calls: Counter[str] = Counter()
        """By verb; failures as "verb error"."""

    async def filter(self, info: PodInfo, names: Sequence[str]) -> tuple[list[str], dict[str, Refused]]:
        """Returns the remaining nodes, and the reasons against the excluded nodes. Raises ExtenderError."""
        if not self.filter_verb:
            return list(names), {}
        answer = await self._call(self.filter_verb, _arguments(info, names))
        result = _decoded(self.filter_verb, answer, _FilterResult)
        if result.Error:
            self.calls["filter error"] += 1
            raise ExtenderError(result.Error)
        sent = set(names)
        remaining = result.NodeNames or []
        unknown = [name for name in remaining if name not in sent]
        if unknown:
            raise ExtenderError(f'extender "{self.prefix}" claims a filtered node "{unknown[0]}" which is not found')
        ever = result.FailedAndUnresolvableNodes or {}
        refused = {name: Refused((text,), PLUGIN) for name, text in (result.FailedNodes or {}).items()}
        refused |= {name: Refused((text,), PLUGIN, ever=True) for name, text in ever.items()}
        # A node in none of the three is refused for ever and without a word.
        left_out = sent - set(remaining) - refused.keys()
        return remaining, refused | {name: Refused((), PLUGIN, ever=True) for name in left_out}

    async def prioritize(self, info: PodInfo, names: Sequence[str]) -> dict[str, int]:
        """Scores by node, nothing if the call fails: that is ignored."""
        if not self.prioritize_verb:
            return {}
        try:
            answer = await self._call(self.prioritize_verb, _arguments(info, names))
            return {
                priority.Host: priority.Score for priority in _decoded(self.prioritize_verb, answer, list[_Priority])
            }
        except ExtenderError:
            return {}

    def weighed(self, score: int) -> int:
        """As it counts beside the in-tree plug-ins' 0..100."""
        return score * self.weight * (_NODE_SCORE // _TOP_SCORE)

    async def preempt(self, info: PodInfo, victims: Mapping[str, Sequence[str]]) -> dict[str, tuple[list[str], int]]:
        """Uids of the victims and broken budgets by node, for proposed victims. Raises ExtenderError."""
        if not self.preempt_verb:
            return {name: (list(uids), 0) for name, uids in victims.items()}
        proposed = {
            name: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0} for name, uids in victims.items()
        }
        body = b'{"Pod":%b,"NodeNameToVictims":null,"NodeNameToMetaVictims":%b}' % (
            info.raw,
            msgspec.json.encode(proposed),
        )
        result = _decoded(self.preempt_verb, await self._call(self.preempt_verb, body), _PreemptionResult)
        return {
            name: ([pod.UID for pod in victims.Pods or ()], victims.NumPDBViolations)
            for name, victims in (result.NodeNameToMetaVictims or {}).items()
            if victims is not None
        }

    async def bind(self, info: PodInfo, node: str) -> None:
        """Raises ExtenderError."""
        meta = info.pod.metadata
        arguments = {"PodName": meta.name, "PodNamespace": meta.namespace, "PodUID": meta.uid, "Node": node}
        answer = await self._call(self.bind_verb, msgspec.json.encode(arguments))
        result = _decoded(self.bind_verb, answer, _BindingResult)
        if result.Error:
            self.calls["bind error"] += 1
            raise ExtenderError(result.Error)

    async def _call(self, verb: str, body: bytes) -> bytes:
        self.calls[verb] += 1
        url = f"{self.prefix}/{verb}"
        try:
            status, answer = await self._post(url, body)
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            self.calls[f"{verb} error"] += 1
            raise ExtenderError(f'Post "{url}": {" ".join(str(exc).split()) or type(exc).__name__}') from exc
        if status != 200:
            self.calls[f"{verb} error"] += 1
            raise ExtenderError(f'failed {verb} with extender at URL "{url}", code {status}')
        return answer

    async def _post(self, url: str, body: bytes) -> tuple[int, bytes]:
        """Status and body of an answer."""
        async with self._session.post(url, data=body, headers=_HEADERS, timeout=self._timeout) as response:
            return response.status, await response.read()


def _arguments(info: PodInfo, names: Sequence[str]) -> bytes:
    return b'{"Pod":%b,"Nodes":null,"NodeNames":%b}' % (info.raw, msgspec.json.encode(list(names)))


def _decoded(verb: str, answer: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(answer, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ExtenderError(f"{verb}: the answer cannot be decoded: {exc}") from exc

"""Which label the marker devices have, and what the node answers to a request: a state machine without I/O.

Inputs are the scheduler's request, the kubelet's connection, its list of markers, and its Allocate calls; each has the
time of a monotonic clock. Outputs are the label to send, the status to write, and the time of the next step.

- All markers have the same label, also allocated markers: the kubelet frees the markers of an ended pod only at its
  next admission, and an old label would offer its NUMA node again.
- At rest a marker has no NUMA node at all. A marker near every NUMA node is not neutral: its hints prefer a single NUMA
  node, so `restricted` refuses pods that need several.
- A kubelet that has just started admits its pods again, with hints from these labels. So a new kubelet sees no label
  for some seconds.
- The next list is sent when the kubelet shows the last list, so that an old list cannot be mistaken for the new list.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import Final, TypeAlias

from topowise.steering import ALLOCATED, Request, Status

Label: TypeAlias = int | None
"""A NUMA node, or None for no label."""

RESTART_S: Final = 10.0
"""Without a label after the start of a kubelet: the time in which it admits its pods again."""
_UNSEEN_S: Final = 1.0
"""The next list is sent after this time, although the kubelet has not shown the last list."""


class Labels:
    """A request is active from its acceptance to its end. `label` was sent last, `status` is what the Lease should say;
    both are read after each input."""

    def __init__(self, numa_nodes: Collection[int]) -> None:
        self._numa_nodes = frozenset(numa_nodes)
        self._request: Request | None = None
        self._last_id = ""
        self._remaining = 0
        self._ends = self._sent = self._settled = 0.0
        self._is_connected = self._is_shown = False
        self._final: Status | None = None
        self.label: Label = None
        self.status: Status | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the kubelet has not shown the label yet."""
        return self._is_connected and not self._is_shown

    @property
    def wakes_at(self) -> float:
        """When `step` has something to do without another input; infinity for never."""
        unseen = self._sent + _UNSEEN_S if self._is_connected and self.label != self._target else inf
        return min(unseen, inf if self._request is None else self._ends)

    @property
    def _target(self) -> Label:
        return None if self._request is None else self._request.numa

    def connect(self, now: float, *, is_new_kubelet: bool) -> None:
        """The kubelet has opened its stream, and gets a list without a label first."""
        self._finish("the kubelet has connected again")
        self._is_connected, self._is_shown = True, False
        self.label, self._sent = None, now
        if is_new_kubelet:
            self._settled = now + RESTART_S

    def disconnect(self, now: float) -> None:
        """The kubelet has closed its stream. It admits no pod with a marker before it connects again."""
        self._finish("the kubelet has disconnected")
        self._is_connected = self._is_shown = False
        self.label = None
        self.step(now)

    def request(self, request: Request | None, now: float, *, is_new: bool) -> None:
        """The Lease has this request, or none. `is_new` is False for a request of unknown age, from a list."""
        if request is None:
            self._finish("the request was withdrawn")
        elif request.id != self._last_id:
            problem = self._problem(request, now, is_new=is_new)
            self._last_id, self._request, self._final = request.id, None, None
            if problem:
                self._final = Status(request.id, "rejected", problem)
            else:
                self._request, self._remaining = request, request.containers
                self._ends = now + request.seconds
                self._note_labelled()
        self.step(now)

    def _problem(self, request: Request, now: float, *, is_new: bool) -> str:
        if not is_new:
            return "the request is older than the watch of the plug-in; send a new request"
        if not self._is_connected:
            return "the kubelet is not connected to the plug-in; try again later"
        if now < self._settled:
            return f"the kubelet has just started; try again in {self._settled - now:.0f} s"
        if request.numa not in self._numa_nodes:
            return f"NUMA node {request.numa} does not exist, expected one of {sorted(self._numa_nodes)}"
        return ""

    def reject(self, problem: str, now: float) -> None:
        """The Lease has a request that cannot be read, so its id is unknown."""
        self._last_id, self._request = "", None
        self._final = Status("", "rejected", problem)
        self.step(now)

    def show(self, labels: Collection[Label], now: float) -> None:
        """The kubelet lists its markers with these labels."""
        self._is_shown |= self._is_connected and set(labels) == {self.label}
        self._note_labelled()
        self.step(now)

    def allocate(self, containers: int, now: float) -> None:
        """The kubelet allocates markers for this number of containers. It has already decided about their CPUs and
        memory."""
        if self._request is not None and self.status == Status(self._request.id, "labelled"):
            self._remaining -= containers
            if self._remaining <= 0:
                self._finish(ALLOCATED)
        self.step(now)

    def step(self, now: float) -> None:
        """Ends an expired request, sends the next label if that is allowed, and publishes the last status of a request
        when the kubelet has no label any more."""
        if self._request is not None and now >= self._ends:
            self._finish("the request has expired")
        may_send = self._is_shown or now >= self._sent + _UNSEEN_S
        if self._is_connected and self.label != self._target and may_send:
            self.label, self._sent, self._is_shown = self._target, now, False
        has_no_label = not self._is_connected or (self.label is None and self._is_shown)
        if has_no_label and self._final is not None:
            self.status, self._final = self._final, None

    def _note_labelled(self) -> None:
        """The kubelet may have the label of the request already, from a request that this request has replaced."""
        if self._is_shown and self._request is not None and self.label == self._request.numa:
            self.status = Status(self._request.id, "labelled")

    def _finish(self, reason: str) -> None:
        if self._request is not None:
            self._final = Status(self._request.id, "released", reason)
            self._request = None

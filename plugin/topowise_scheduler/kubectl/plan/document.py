"""The plan for programs: `-o json` and `-o yaml`."""

from __future__ import annotations

from typing import Any

import msgspec

from topowise_scheduler.explain.refusal_texts import bare
from topowise_scheduler.kubectl.plan.planned import Planned, title, verdict
from topowise_scheduler.overlay.plan import NOT_MODELLED, Result


def of(planned: Planned) -> dict[str, Any]:
    """Returns the document. CPUs are in milli-CPUs, memory is in bytes, times are in seconds."""
    document: dict[str, Any] = {
        "verdict": verdict(planned),
        "existing": planned.existing,
        "complete": all(result.is_complete for result in planned.results),
        "scenarios": [_scenario(result) for result in planned.results],
        "notModelled": list(NOT_MODELLED),
    }
    found = planned.found
    if found is not None:
        change = None if found.result is None else title(found.result)
        document["smallest"] = {"change": change, "tries": found.tries, "least": found.is_least}
    return document


def _scenario(result: Result) -> dict[str, Any]:
    if result.error:
        return {"name": title(result), "error": result.error, "fits": False}
    return {
        "name": title(result),
        "fits": result.fits,
        "complete": result.is_complete,
        "nodes": result.nodes,
        "nodesUsed": result.nodes_used,
        "placed": result.placed,
        "spread": result.spread,
        "refused": result.refused,
        "replaced": result.replaced,
        "displaced": list(result.displaced),
        "kubeletRefusals": result.kubelet_refusals,
        "moves": result.moves,
        "workloads": [
            {
                "name": entry.name,
                "asked": entry.asked,
                "placed": entry.placed,
                "why": {bare(reason): count for reason, count in entry.why.items()},
            }
            for entry in result.workloads
        ],
        "resources": {
            entry.name: {
                "allocatable": entry.allocatable,
                "used": entry.used,
                "free": entry.free,
                "stranded": entry.stranded,
            }
            for entry in result.resources
        },
        "waits": None if result.waits is None else msgspec.to_builtins(result.waits),
        "restarts": [{**msgspec.to_builtins(restart), "outcome": restart.outcome} for restart in result.restarts],
        "restartsWithoutForecast": result.without_forecast,
        "notChecked": {name: list(terms) for name, terms in result.unexamined.items()},
    }

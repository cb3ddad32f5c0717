"""The next step in the answer of /explain."""

from __future__ import annotations

import asyncio
import json

import pytest

from scheduling import NoApi, Service, exact, kubelet, pod
from topowise_scheduler.serve.extender.explaining import Explainer
from topowise_scheduler.serve.extender.replies import BadRequestError


def test_the_answer_has_the_next_step_only_on_request() -> None:
    service = Service()
    service.report(exact(kubelet(), "1"))
    explainer = Explainer(NoApi(), service.view, lambda: None)
    body = json.dumps(pod("a", "5")).encode()
    nodes = json.loads(asyncio.run(explainer.explain(body, {})).body)
    waiting = json.loads(asyncio.run(explainer.explain(body, {"view": ("waiting",)})).body)
    assert waiting == {"cause": "never", "nextStep": waiting["nextStep"], "nodes": nodes}
    assert waiting["nextStep"].startswith("no node can ever take it: cpu 5 on one NUMA node")
    with pytest.raises(BadRequestError, match="expected nodes or waiting"):
        asyncio.run(explainer.explain(body, {"view": ("other",)}))

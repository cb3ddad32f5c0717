"""How large the measured cluster is, and how long things take; the environment scales all of it down."""

from __future__ import annotations

import os
from typing import Final

NODES: Final = int(os.environ.get("BENCH_NODES", "5000"))
CALLS: Final = int(os.environ.get("BENCH_CALLS", "1000"))
STORM_S: Final = float(os.environ.get("BENCH_STORM_S", "6"))
POLICY: Final = os.environ.get("BENCH_POLICY", "single-numa-node")

PART: Final = 500
"""Names in a question about a part of the nodes."""

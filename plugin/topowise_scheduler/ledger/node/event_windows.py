"""For how long the service is unsure of the order of events on a node. Times are in seconds."""

from __future__ import annotations

from typing import Final

# The service hears of simultaneous events of the API server within EARLY_S, and of events on a node within LATE_S.
EARLY_S: Final = 0.2
LATE_S: Final = 2.0
# A report that lists an ended pod is taken for an old report for so long, and for the present state after that.
ENDED_KEPT_S: Final = 120.0

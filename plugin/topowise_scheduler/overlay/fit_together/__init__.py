"""Whether several pods fit at once, aligned, and reservations for them.

    group_placement  places the pods in order on copies of the nodes; changes nothing
    reservations     the request, and the reservations that it may ask for

`extender/fitting.py` and `grpc_api.py` present the answer.
"""

from topowise_scheduler.overlay.fit_together.group_placement import GroupPlacement
from topowise_scheduler.overlay.fit_together.reservations import FitTogether, FitTogetherService

__all__ = ["FitTogether", "FitTogetherService", "GroupPlacement"]

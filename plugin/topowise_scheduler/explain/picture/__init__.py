"""One machine as a picture: `read` makes a `Picture` of a kubelet, `svg` and `terminal` draw it.

    Kubelet -> read -> Picture -> lay_out(pixels or characters) -> boxes and texts -> svg, terminal

`Picture` (contents.py) does not depend on its source, and the layout (layout.py) not on the writer: one layout serves
both writers, which differ only in their measures (measures.py). The package does no I/O.
"""

from topowise_scheduler.explain.picture.contents import Picture
from topowise_scheduler.explain.picture.from_kubelet import read
from topowise_scheduler.explain.picture.svg import svg
from topowise_scheduler.explain.picture.terminal import lines, terminal
from topowise_scheduler.explain.picture.zone import with_claimed, with_devices

__all__ = ["Picture", "lines", "read", "svg", "terminal", "with_claimed", "with_devices"]

"""One machine as a picture: `read` makes a `Picture` of a kubelet, `svg` and `terminal` draw it.

    Kubelet -> read -> Picture -> lay_out(pixels or characters) -> boxes and texts -> svg, terminal

What is drawn (model.py) does not depend on where it comes from, and where it goes (layout.py) not on who draws it: one
layout serves both writers, which differ in their measures (measures.py) alone. All of it is pure.
"""

from topowise_scheduler.presentation.picture.claimed import with_claimed
from topowise_scheduler.presentation.picture.model import Picture
from topowise_scheduler.presentation.picture.places import with_places
from topowise_scheduler.presentation.picture.read import read
from topowise_scheduler.presentation.picture.svg import ThemeName, svg
from topowise_scheduler.presentation.picture.terminal import lines, terminal

__all__ = ["Picture", "ThemeName", "lines", "read", "svg", "terminal", "with_claimed", "with_places"]

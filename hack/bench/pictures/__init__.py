"""Pictures of a run as SVG that needs nothing but a viewer, for light and dark pages."""

from bench.pictures.density import density
from bench.pictures.growth import growth

__all__ = ["density", "growth"]

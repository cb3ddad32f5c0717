"""kubectl-topowise as one file for a laptop: what of the package it needs, and krew's manifest for it."""

"""kubectl-topowise as a single file for a laptop: the modules that it needs, and krew's manifest."""

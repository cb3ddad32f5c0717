"""Builds the objects from an observation of the node, and writes them to the API server."""

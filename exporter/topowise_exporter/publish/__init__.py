"""From what was observed to the object on the API server."""

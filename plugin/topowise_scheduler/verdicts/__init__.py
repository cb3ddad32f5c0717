"""Which nodes take a pod, and how good they are, for thousands of nodes at once: the engine, strategies, refusals."""

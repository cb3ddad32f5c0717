"""All nodes: their states by name, and the rows of the engine that have these states."""

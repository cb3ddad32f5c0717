"""Parts of clusters of hollow nodes: kinds of nodes and pods, and the scheduler service as a process."""

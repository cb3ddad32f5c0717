"""What keeps a pod from a node."""

"""Which nodes a pod fits on, where on them it will go, and how good that is."""

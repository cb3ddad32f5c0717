"""What would be if: pods placed, removed or moved, nodes added or changed, on copies of the cluster."""

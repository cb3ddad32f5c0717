"""What the kubelet says of itself: its allocations (podresources) and its configuration."""

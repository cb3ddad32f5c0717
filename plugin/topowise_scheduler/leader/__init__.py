"""What one replica alone does to the cluster, unasked: pods are tried again, told what they wait for, or make room."""

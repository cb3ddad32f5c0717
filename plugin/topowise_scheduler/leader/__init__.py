"""What one replica alone does to the cluster, unasked: small repairs of what kubelets and nodes leave behind."""

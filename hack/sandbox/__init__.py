"""The developers' sandbox: a Kubernetes API server and kubelets that need no cluster and no root."""

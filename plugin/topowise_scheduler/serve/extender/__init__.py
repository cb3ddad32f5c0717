"""kube-scheduler's extender protocol over HTTP."""

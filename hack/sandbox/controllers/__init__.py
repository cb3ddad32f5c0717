"""An emulation of kube-controller-manager: Deployments, ReplicaSets and StatefulSets that create and replace pods.

`workloads` decides, as functions of the objects; `__main__` reads the objects and writes the decisions. Left out are
adoption, back-off, revisions and rolling updates.
Sources: pkg/controller/{deployment,replicaset,statefulset} of Kubernetes 1.36.
"""

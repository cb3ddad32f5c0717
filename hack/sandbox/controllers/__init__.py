"""An emulation of kube-controller-manager: the controllers that create, replace and delete pods.

`workloads` decides, as functions of the objects; `__main__` reads the objects and writes the decisions. Left out are
adoption, back-off, revisions, rolling updates of StatefulSets and DaemonSets, and tolerationSeconds.
Sources: pkg/controller/{deployment,replicaset,statefulset,daemon,tainteviction} of Kubernetes 1.36.
"""

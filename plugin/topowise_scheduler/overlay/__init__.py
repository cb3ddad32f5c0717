"""Every "what if": does a pod fit, on the cluster as it is or on a copy with changes?

- trial.py: the checks of the cluster as it is that no change of pods alters, and kube-scheduler's sums;
- overlay.py: copies of the cluster on which pods are placed, removed and moved, also with nodes that it does not have,
  and the trial of a pod there;
- candidates.py: the nodes that may take the pods of a class, the best first beside the pods that were placed before.

Nothing here changes the ledger, and nothing makes words for people but those that kube-scheduler and the gates make.
"""

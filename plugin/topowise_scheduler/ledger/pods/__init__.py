"""What the ledger knows of pods: a record of each pod, and the node where it is or is expected."""

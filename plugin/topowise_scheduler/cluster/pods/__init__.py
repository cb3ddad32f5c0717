"""What the ledger knows of pods: one record of each, and where each is or is expected."""

"""One node: its history, the fold of the kubelet model over the history, and where its newest pods may lie."""

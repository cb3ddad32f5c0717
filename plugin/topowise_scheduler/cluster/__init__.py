"""What is known of the cluster: NRTs, nodes and pods, and what each node can still give."""

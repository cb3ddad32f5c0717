"""`make demo`: a whole cluster on loopback, from /sys to a verdict, in under a minute.

Exporters and the scheduler service run as in a real cluster: the same processes, the same configuration files. The
sandbox provides what a laptop lacks: an API server, and kubelets on emulated machines.
"""

"""`make demo`: a whole cluster on loopback, from /sys to a verdict, in under a minute.

Everything that would run in a real cluster runs here as the same process with the same configuration file: exporters,
the scheduler service. What a laptop lacks is the sandbox's: an API server, and kubelets on machines that are folders.
"""
